"""The tables of the benchmarks of propagation, extensions and queries, as documents print them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sheafprop.report._text import NOTHING, duration, markdown_table, size

__all__ = ["propagation_table", "query_speed_table", "service_table"]

_STEP = (
    *("graph", "maps", "width", "step", "scatter", "lean step", "torch-sparse", "CSR product"),
    *("copy", "products", "memory", "memory, scatter", "start-up"),
)
_SCALE = ("entities", "triples", "maps", "width", "step", "start-up", "peak memory")
_SERVICE = (
    *("model", "maps", "extend by 1,000", "memory", "extend by 1", "recompute"),
    *("predict", "bare product", "predict / bare"),
)
_LOOP = (
    "queries",
    "number",
    "distinct pairs of relations",
    "a query",
    "in a loop",
    "loop / together",
)
_RANKING = ("queries", "number", "ranking", "bare distances", "ranking / bare", "peak memory")
_LIMIT = ("graph", "maps", "known", "Euler", "CG", "Chebyshev", "Euler / CG")


def propagation_table(result: Mapping[str, Any]) -> str:
    r"""Returns the measurements of ``scripts/bench_propagation.py`` as Markdown.

    The first table has one step for each graph and map kind, with the time of other ways to compute
    it in multiples of the step's (the bare sparse product the other way round), and the shares of
    the machine's copy bandwidth and matrix product rate that it reaches. The second shows how time
    and memory grow; the third counts operator applications that the limit takes.

    Args:
        result (dict): What the script writes.
    """
    cases = result["cases"]
    limits = [case for case in cases if "applications" in case]
    scales = [case for case in cases if "peak_bytes_beyond_imports" in case]
    steps = [case for case in cases if case.get("ratio_scatter") is not None]
    commits = list(dict.fromkeys(case.get("commit", result["commit"]) for case in cases))
    named = f"commit{'s' * (len(commits) > 1)} {', '.join(commits)}"
    where = f"{result['hardware']}, torch {result['torch']}, {named}"
    parts = [
        where,
        _table(_STEP, [_step(case) for case in steps], left=2),
        _table(_SCALE, list(_scales(scales)), left=0),
        _table(_LIMIT, list(_limits(limits)), left=2),
    ]
    return "\n\n".join(part for part in parts if part)


def service_table(result: Mapping[str, Any]) -> str:
    r"""Returns the measurements of ``scripts/bench_service.py`` as Markdown.

    A row for each model: the time and memory to extend it by 1,000 entities and by one, that of
    solving the same problem over all rows in multiples of the first, and the time of a prediction
    beside that of the one product with the table of vectors that it cannot do without.

    Args:
        result (dict): What the script writes.
    """
    rows = [
        [
            case["model"],
            case["maps"],
            _short(case["extend_seconds"]),
            size(case["extend_peak_bytes"]),
            _short(case["extend_one_seconds"]),
            _times(case["ratio_recompute"]),
            _short(case["predict_seconds"]),
            _short(case["bare_seconds"]),
            _times(case["ratio_bare"]),
        ]
        for case in result["cases"]
    ]
    return _table(_SERVICE, rows, left=2)


def query_speed_table(result: Mapping[str, Any]) -> str:
    r"""Returns the measurements of ``scripts/bench_queries.py`` as Markdown.

    The first table compares queries answered together with a loop that takes the Schur complement
    of each, the second rankings by type with the bare distance matrices of that size.

    Args:
        result (dict): What the script writes.
    """
    loops, rankings = [], []
    for case in result["cases"]:
        row = [case["name"], f"{case['queries']:,}"]
        if "loop_seconds_per_query" in case:
            seconds = (case["seconds_per_query"], case["loop_seconds_per_query"])
            row += [f"{case['distinct_relation_pairs']:,}", *map(_short, seconds)]
            loops.append([*row, _times(case["ratio"])])
        else:
            row += [_short(case["seconds"]), _short(case["distance_seconds"])]
            rankings.append([*row, _times(case["ratio"]), size(case["peak_bytes"])])
    where = f"{result['hardware']}, torch {result['torch']}, commit {result['commit']}"
    parts = [where, _table(_LOOP, loops, left=1), _table(_RANKING, rankings, left=1)]
    return "\n\n".join(part for part in parts if part)


def _table(header: Sequence[str], rows: list[list[str]], left: int) -> str:
    align = "l" * left + "r" * (len(header) - left)
    return markdown_table(header, rows, align) if rows else ""


def _step(case: Mapping[str, Any]) -> list[str]:
    sample = case.get("scatter_sample", 1)
    return [
        case["name"].removesuffix(f", {case['maps']}, width {case['width']}"),
        case["maps"],
        str(case["width"]),
        _short(case["seconds"]),
        _times(case["ratio_scatter"]) + ("" if sample == 1 else " (sample)"),
        _times(case.get("ratio_lean")),
        _times(case.get("ratio_torch_sparse")),
        _times(case.get("ratio_csr")),
        _percent(case.get("bandwidth_fraction")),
        _percent(case.get("matmul_fraction")),
        size(case.get("peak_bytes")),
        size(case.get("peak_bytes_scatter")),
        _short(case.get("startup_seconds")),
    ]


def _scales(cases: list[Mapping[str, Any]]) -> Iterator[list[str]]:
    for case in sorted(cases, key=lambda case: (case["maps"] != "identity", case["triples"])):
        yield [
            f"{case['entities']:,}",
            f"{case['triples']:,}",
            case["maps"],
            str(case["width"]),
            _short(case["seconds"]),
            _short(case["startup_seconds"]),
            size(case["peak_bytes"]),
        ]
        if "slope_seconds" in case:
            memory = case["slope_peak_bytes_beyond_imports"]
            slopes = [case["slope_seconds"], case["slope_startup_seconds"], memory]
            exponents = [f"exponent {slope:.2f}" for slope in slopes]
            yield ["", "", case["maps"], str(case["width"]), *exponents]


def _limits(cases: list[Mapping[str, Any]]) -> Iterator[list[str]]:
    rows: dict[tuple[str, str, float], dict[str, Any]] = {}
    for case in cases:
        graph = case["name"].split(", ")[1]
        row = rows.setdefault((graph, case["maps"], case["known"]), {})
        row[case["solver"]] = case["applications"]
        row["euler"] = case["applications_euler"]
    for (graph, maps, known), row in rows.items():
        ratio = row["euler"] / row["cg"]
        counts = [f"{row[name]:,}" for name in ("euler", "cg", "chebyshev")]
        yield [graph, maps, f"{known:.0%}", *counts, _times(ratio)]


def _times(ratio: float | None) -> str:
    return NOTHING if ratio is None else f"{ratio:.1f}x" if ratio >= 2 else f"{ratio:.2f}x"


def _percent(share: float | None) -> str:
    return NOTHING if share is None else f"{share:.0%}"


def _short(seconds: float | None) -> str:
    if seconds is None:
        return NOTHING
    return duration(seconds) if seconds >= 1 else f"{1000 * seconds:.3g} ms"
