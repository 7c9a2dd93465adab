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
    r"""Reports on all runs of a group together.

    Reads the ``metrics.json`` of every run folder in the group and writes, into the group's own
    folder, ``metrics.json`` (the list of the records), ``report.md`` and, where there is a
    validation curve, ``hits_by_iteration.png``.

    Args:
        group_folder (str): The folder that holds the run folders.

    Returns:
        str: The results table, for a terminal.

    Raises:
        FormatError: If there is no record, or one is malformed; it names the file.
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
    """Where a run's record is: beside a file of the user's, where that has its name."""
    beside = run / "metrics.sheafprop.json"
    return beside if beside.exists() else run / "metrics.json"


def _is_of_others(path: Path) -> bool:
    """Whether a file is not a record: the list of a group among the runs, or another program's."""
    try:
        content = json.loads(path.read_bytes())
    except ValueError:
        return False  # a record that was damaged, perhaps: its reader says so
    if isinstance(content, dict):
        return not {"format", "run"} & content.keys()
    return isinstance(content, list)
