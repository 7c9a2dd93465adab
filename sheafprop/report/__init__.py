"""Reports of runs: tables, figures and published results."""

from sheafprop.report.figures import hits_by_iteration
from sheafprop.report.group import group_report
from sheafprop.report.published import published_rows
from sheafprop.report.run_report import write_report
from sheafprop.report.tables import result_table, terminal_table

__all__ = [
    "group_report",
    "hits_by_iteration",
    "published_rows",
    "result_table",
    "terminal_table",
    "write_report",
]
