"""The report of all runs of a group."""

import json
import os
from pathlib import Path

from sheafprop.errors import FormatError
from sheafprop.files import write_json
from sheafprop.report.own_files import own_path
from sheafprop.report.records import read_record
from sheafprop.report.run_report import write_report
from sheafprop.report.tables import terminal_table


def group_report(group_folder: str | os.PathLike[str]) -> str:
    r"""Writes the report of all runs of a group.

    Reads the ``metrics.json`` of every run folder in the group, and writes ``metrics.json`` (the
    list of the records), ``report.md`` and, if there is a validation curve,
    ``hits_by_iteration.png`` to the folder of the group.

    Args:
        group_folder (str): The folder that holds the run folders.

    Returns:
        str: The results table for a terminal.

    Raises:
        FormatError: If there is no record, or a record is malformed. The message names the file.
    """
    folder = Path(group_folder)
    paths = [record_path(path.parent) for path in sorted(folder.glob("*/metrics.json"))]
    records = [read_record(path) for path in paths if not _is_of_others(path)]
    if not records:
        raise FormatError(f"{folder} holds no run with a metrics.json, so there is no report")
    write_json(own_path(folder, "metrics.json"), records)
    write_report(folder, records)
    return terminal_table(records)


def record_path(run: Path) -> Path:
    """Returns the path of a run's record, which avoids a user's file of the same name."""
    beside = run / "metrics.sheafprop.json"
    return beside if beside.exists() else run / "metrics.json"


def _is_of_others(path: Path) -> bool:
    """Whether a file is not a record of a run, but of a group or of another program."""
    try:
        content = json.loads(path.read_bytes())
    except ValueError:
        return False  # a record that was damaged, perhaps: its reader says so
    if isinstance(content, dict):
        return not {"format", "run"} & content.keys()
    return isinstance(content, list)
