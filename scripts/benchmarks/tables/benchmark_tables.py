"""The tables of the benchmarks of propagation, extensions and queries, as documents print them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sheafprop.report.text import NOTHING, duration, markdown_table, size

__all__ = ["propagation_headline", "propagation_table", "query_speed_table", "service_table"]

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
    parts = [
        measured_on(result, cases),
        _table(_STEP, [_step(case) for case in steps], left=2),
        _table(_SCALE, list(_scales(scales)), left=0),
        _table(_LIMIT, list(_limits(limits)), left=2),
    ]
    return "\n\n".join(part for part in parts if part)


def propagation_headline(result: Mapping[str, Any]) -> str:
    r"""Returns what a step on the largest graph takes beside other ways, as a sentence.

    Args:
        result (dict): What the script writes.
    """
    found = {
        (case["name"].split(", ")[0], case["maps"], case["width"]): case
        for case in result["cases"]
        if case.get("ratio_scatter") is not None
    }
    large = {maps: case for (name, maps, _), case in found.items() if name == "power law"}
    parts = [
        f"{maps} maps {_ratio(large[maps], 'ratio_scatter')}"
        for maps in ("identity", "diagonal")
        if maps in large
    ]
    first = f"Against two `MessagePassing.propagate` calls with scatter: {', '.join(parts)}"
    if "identity" in large:
        first += f"; {_ratio(large['identity'], 'ratio_csr')} the time of one bare sparse product"
    dense = [
        f"{_ratio(case, 'ratio_scatter')} at $d = {width}$"
        for (name, maps, width), case in found.items()
        if (name, maps) == ("FB15k-237", "dense")
    ]
    second = f" Dense maps on FB15k-237: {' and '.join(dense)}." if dense else ""
    return f"{first}.{second} {measured_on(result, list(found.values()))}."


def measured_on(result: Mapping[str, Any], cases: Sequence[Mapping[str, Any]]) -> str:
    """Hardware, versions, threads and runs, as the cases themselves have them.

    What older records lack is said not to be stored; the note that a file has follows.
    """
    commits = list(dict.fromkeys(case.get("commit") or result.get("commit") for case in cases))
    named = [str(commit) for commit in commits if commit]
    parts = [
        str(result["hardware"]),
        f"torch {result['torch']}",
        *([f"commit{'s' * (len(named) > 1)} {', '.join(named)}"] if named else []),
    ]
    counts = Counter(_conditions(case) for case in cases)
    for text, count in counts.items():
        parts.append(text if len(counts) == 1 else f"{text} ({count} of {len(cases)} cases)")
    note = f": {result['note']}" if "note" in result else ""
    return ", ".join(parts) + note


def _conditions(case: Mapping[str, Any]) -> str:
    threads, runs = case.get("threads"), case.get("runs")
    texts = [
        "threads not stored" if threads is None else f"{threads} thread{'s' * (threads != 1)}",
        "runs not stored"
        if runs is None
        else "one run"
        if runs == 1
        else f"median of {runs} runs with their range",
    ]
    return ", ".join(texts)


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
            _time(case, "extend_seconds"),
            size(case["extend_peak_bytes"]),
            _time(case, "extend_one_seconds"),
            _ratio(case, "ratio_recompute"),
            _time(case, "predict_seconds"),
            _time(case, "bare_seconds"),
            _ratio(case, "ratio_bare"),
        ]
        for case in result["cases"]
    ]
    table = _table(_SERVICE, rows, left=2)
    if "hardware" not in result:
        return table
    return f"{measured_on(result, result['cases'])}\n\n{table}"


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
            seconds = ("seconds_per_query", "loop_seconds_per_query")
            row += [f"{case['distinct_relation_pairs']:,}", *(_time(case, s) for s in seconds)]
            loops.append([*row, _ratio(case, "ratio")])
        else:
            row += [_time(case, "seconds"), _time(case, "distance_seconds")]
            rankings.append([*row, _ratio(case, "ratio"), size(case["peak_bytes"])])
    parts = [
        measured_on(result, result["cases"]),
        _table(_LOOP, loops, left=1),
        _table(_RANKING, rankings, left=1),
    ]
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
        _time(case, "seconds"),
        _ratio(case, "ratio_scatter") + ("" if sample == 1 else " (sample)"),
        _ratio(case, "ratio_lean"),
        _ratio(case, "ratio_torch_sparse"),
        _ratio(case, "ratio_csr"),
        _percent(case.get("bandwidth_fraction")),
        _percent(case.get("matmul_fraction")),
        size(case.get("peak_bytes")),
        size(case.get("peak_bytes_scatter")),
        _time(case, "startup_seconds"),
    ]


def _scales(cases: list[Mapping[str, Any]]) -> Iterator[list[str]]:
    for case in sorted(cases, key=lambda case: (case["maps"] != "identity", case["triples"])):
        yield [
            f"{case['entities']:,}",
            f"{case['triples']:,}",
            case["maps"],
            str(case["width"]),
            _time(case, "seconds"),
            _time(case, "startup_seconds"),
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


def _time(case: Mapping[str, Any], key: str) -> str:
    return with_range(case, key, _short)


def _ratio(case: Mapping[str, Any], key: str) -> str:
    return with_range(case, key, _times)


def with_range(case: Mapping[str, Any], key: str, show: Callable[[Any], str]) -> str:
    """A figure of a case, with its range over the runs in parentheses where it is stored."""
    text = show(case.get(key))
    if key not in case.get("ranges", {}):
        return text
    low, high = map(show, case["ranges"][key])
    return f"{text} ({low} to {high})"


def _times(ratio: float | None) -> str:
    return NOTHING if ratio is None else f"{ratio:.1f}x" if ratio >= 2 else f"{ratio:.2f}x"


def _percent(share: float | None) -> str:
    return NOTHING if share is None else f"{share:.0%}"


def _short(seconds: float | None) -> str:
    if seconds is None:
        return NOTHING
    return duration(seconds) if seconds >= 1 else f"{1000 * seconds:.3g} ms"
