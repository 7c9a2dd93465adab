"""The report of all runs of a group."""

from __future__ import annotations

import json
import os
from pathlib import Path

from sheafprop.errors import FormatError
from sheafprop.report._files import write_text
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
    records = [read_record(path) for path in sorted(folder.glob("*/metrics.json"))]
    if not records:
        raise FormatError(f"{folder} holds no run with a metrics.json, so there is no report")
    write_text(
        folder / "metrics.json",
        json.dumps(records, indent=2, ensure_ascii=False, allow_nan=False) + "\n",
    )
    write_report(folder, records)
    return terminal_table(records)
