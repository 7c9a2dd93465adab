"""Reports of runs: tables, the validation curve, and the figures others published."""

from sheafprop.report.benchmark_tables import (
    propagation_table,
    query_speed_table,
    service_table,
)
from sheafprop.report.completion_report import completion_report
from sheafprop.report.completion_tables import (
    ablation_table,
    completion_cost_table,
    completion_table,
)
from sheafprop.report.figures import hits_by_iteration
from sheafprop.report.group import group_report
from sheafprop.report.published import published_rows
from sheafprop.report.query_figure import hits_by_ratio
from sheafprop.report.query_tables import query_curves, query_report, query_summary
from sheafprop.report.run_report import write_report
from sheafprop.report.tables import result_table, terminal_table
from sheafprop.report.training_tables import training_table, transductive_table

__all__ = [
    "ablation_table",
    "completion_cost_table",
    "completion_report",
    "completion_table",
    "group_report",
    "hits_by_iteration",
    "hits_by_ratio",
    "propagation_table",
    "published_rows",
    "query_curves",
    "query_report",
    "query_speed_table",
    "query_summary",
    "result_table",
    "service_table",
    "terminal_table",
    "training_table",
    "transductive_table",
    "write_report",
]
