"""The report of all runs of a group."""

from __future__ import annotations

import os
from pathlib import Path

from sheafprop.errors import FormatError
from sheafprop.io import write_json
from sheafprop.report._records import read_record
from sheafprop.report.run_report import write_report
from sheafprop.report.tables import terminal_table

__all__ = ["group_report"]


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
    # A group among the runs has a metrics.json too, the list of its own runs.
    paths = sorted(folder.glob("*/metrics.json"))
    records = [read_record(path) for path in paths if not _is_list(path)]
    if not records:
        raise FormatError(f"{folder} holds no run with a metrics.json, so there is no report")
    write_json(folder / "metrics.json", records)
    write_report(folder, records)
    return terminal_table(records)


def _is_list(path: Path) -> bool:
    return path.read_bytes().lstrip().startswith(b"[")
