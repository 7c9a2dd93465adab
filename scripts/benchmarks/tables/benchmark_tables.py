"""The tables of the benchmarks of speed, as documents print them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sheafprop.report.tables import NOTHING, duration, markdown_table, size

__all__ = [
    "conditions",
    "folder_table",
    "propagation_headline",
    "propagation_table",
    "query_speed_table",
    "service_table",
    "training_table",
    "transductive_table",
]

Case = Mapping[str, Any]
#: What a column prints of a case, by its header.
Columns = Mapping[str, Callable[[Case], str]]

_NAMES = {
    "transe": "TransE",
    "rotate": "RotatE",
    "cross_entropy": "cross entropy over all entities",
    "nssa": "NSSA",
    "codex-s": "CoDEx-S",
}


def _column(key: str, show: Callable[[Any], str] = str) -> Callable[[Case], str]:
    """A figure of a case, with its range over the runs in parentheses where it is stored."""

    def text(case: Case) -> str:
        value = show(case.get(key))
        if key not in case.get("ranges", {}):
            return value
        low, high = map(show, case["ranges"][key])
        return f"{value} ({low} to {high})"

    return text


def _times(ratio: float | None) -> str:
    return NOTHING if ratio is None else f"{ratio:.1f}x" if ratio >= 2 else f"{ratio:.2f}x"


def _percent(share: float | None) -> str:
    return NOTHING if share is None else f"{share:.0%}"


def _short(seconds: float | None) -> str:
    if seconds is None:
        return NOTHING
    return duration(seconds) if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _count(number: int | None) -> str:
    return NOTHING if number is None else f"{number:,}"


def _name(value: str) -> str:
    return _NAMES.get(value, value)


def _sampled_ratio(case: Case) -> str:
    return _RATIO(case) + ("" if case.get("scatter_sample", 1) == 1 else " (sample)")


_RATIO, _COST = _column("ratio_scatter", _times), _column("seconds", _short)
_STEP: Columns = {
    "graph": lambda case: case["name"].removesuffix(f", {case['maps']}, width {case['width']}"),
    "maps": _column("maps"),
    "width": _column("width"),
    "step": _COST,
    "scatter": _sampled_ratio,
    "lean step": _column("ratio_lean", _times),
    "torch-sparse": _column("ratio_torch_sparse", _times),
    "CSR product": _column("ratio_csr", _times),
    "copy": _column("bandwidth_fraction", _percent),
    "products": _column("matmul_fraction", _percent),
    "memory": _column("peak_bytes", size),
    "memory, scatter": _column("peak_bytes_scatter", size),
    "start-up": _column("startup_seconds", _short),
}
_SCALE: Columns = {
    "entities": _column("entities", _count),
    "triples": _column("triples", _count),
    "maps": _column("maps"),
    "width": _column("width"),
    "step": _COST,
    "start-up": _column("startup_seconds", _short),
    "peak memory": lambda case: size(case["peak_bytes"]),
}
_LIMIT: Columns = {
    "graph": lambda row: row["name"].split(", ")[1],
    "maps": _column("maps"),
    "known": _column("known", _percent),
    "Euler": _column("applications_euler", _count),
    "CG": _column("cg", _count),
    "Chebyshev": _column("chebyshev", _count),
    "Euler / CG": lambda row: _times(row["applications_euler"] / row["cg"]),
}
_SERVICE: Columns = {
    "model": _column("model"),
    "maps": _column("maps"),
    "extend by 1,000": _column("extend_seconds", _short),
    "memory": lambda case: size(case["extend_peak_bytes"]),
    "extend by 1": _column("extend_one_seconds", _short),
    "recompute": _column("ratio_recompute", _times),
    "predict": _column("predict_seconds", _short),
    "bare product": _column("bare_seconds", _short),
    "predict / bare": _column("ratio_bare", _times),
}
_FOLDER: Columns = {
    "entities": _column("entities", _count),
    "facts": _column("facts", _count),
    "folder": lambda case: size(case["folder_bytes"]),
    "open": _column("open_seconds", _short),
    "its memory": _column("open_bytes", size),
    "read whole": _column("plain_seconds", _short),
    "memory of that": lambda case: (
        size(case["plain_peak_bytes"]) if "plain_peak_bytes" in case else NOTHING
    ),
    "10,000 labels and rows": _column("lookup_seconds", _short),
    "extend by 1,000 and save": _column("extend_seconds", _short),
    "one pass": _column("pass_seconds", _short),
    "predict": _column("predict_seconds", _short),
    "predict / pass": _column("ratio_pass", _times),
    "in processor time": _column("ratio_pass_cpu", _times),
}
_LOOP: Columns = {
    "queries": _column("name"),
    "number": _column("queries", _count),
    "distinct pairs of relations": _column("distinct_relation_pairs", _count),
    "a query": _column("seconds_per_query", _short),
    "in a loop": _column("loop_seconds_per_query", _short),
    "loop / together": _column("ratio", _times),
}
_RANKING: Columns = {
    "queries": _column("name"),
    "number": _column("queries", _count),
    "ranking": _COST,
    "bare distances": _column("distance_seconds", _short),
    "ranking / bare": _column("ratio", _times),
    "peak memory": lambda case: size(case["peak_bytes"]),
}
_BEAM: Columns = {
    "queries": _column("name"),
    "number": _column("queries", _count),
    "distinct rows": _column("distinct_rows", _count),
    "answers": _column("seconds", _short),
    "bare rows": _column("row_seconds", _short),
    "answers / bare": _column("ratio", _times),
    "peak memory": lambda case: size(case["peak_bytes"]) if "peak_bytes" in case else NOTHING,
}


def _table(columns: Columns, cases: Iterable[Case], left: int) -> str:
    rows = [[show(case) for show in columns.values()] for case in cases]
    align = "l" * left + "r" * (len(columns) - left)
    return markdown_table(list(columns), rows, align) if rows else ""


def _join(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)


def propagation_table(cases: Sequence[Case]) -> str:
    r"""Returns the measurements of ``scripts/bench_propagation.py`` as Markdown.

    The first table has one step for each graph and map kind, with the time of other ways to compute
    it in multiples of the step's (the bare sparse product the other way round), and the shares of
    the machine's copy bandwidth and matrix product rate that it reaches. The second shows how time
    and memory grow; the third counts operator applications that the limit takes.

    Args:
        cases (list): What the script writes.
    """
    scales = [case for case in cases if "peak_bytes_beyond_imports" in case]
    scales.sort(key=lambda case: (case["maps"] != "identity", case["triples"]))
    rows = []
    for case in scales:
        rows.append([show(case) for show in _SCALE.values()])
        if "slope_seconds" in case:
            keys = ("seconds", "startup_seconds", "peak_bytes_beyond_imports")
            exponents = [f"exponent {case[f'slope_{key}']:.2f}" for key in keys]
            rows.append(["", "", case["maps"], str(case["width"]), *exponents])
    limits: dict[Any, dict[str, Any]] = {}
    for case in (case for case in cases if "applications" in case):
        graph = case["name"].split(", ")[1]
        row = limits.setdefault((graph, case["maps"], case["known"]), dict(case))
        row[case["solver"]] = case["applications"]
    return _join(
        measured_on(cases),
        _table(_STEP, [case for case in cases if case.get("ratio_scatter") is not None], left=2),
        markdown_table(list(_SCALE), rows, "r" * len(_SCALE)) if rows else "",
        _table(_LIMIT, limits.values(), left=2),
    )


def propagation_headline(cases: Sequence[Case]) -> str:
    r"""Returns what a step on the largest graph takes beside other ways, as a sentence.

    Args:
        cases (list): What the script writes.
    """
    steps = [case for case in cases if case.get("ratio_scatter") is not None]
    graphs = [case["name"].split(", ")[0] for case in steps]
    large = {c["maps"]: c for g, c in zip(graphs, steps, strict=True) if g == "power law"}
    kinds = [maps for maps in ("identity", "diagonal") if maps in large]
    ratios = ", ".join(f"{maps} maps {_RATIO(large[maps])}" for maps in kinds)
    first = f"Against two `MessagePassing.propagate` calls with scatter: {ratios}"
    if "identity" in large:
        ratio = _column("ratio_csr", _times)(large["identity"])
        first += f"; {ratio} the time of one bare sparse product"
    dense = [
        f"{_RATIO(case)} at $d = {case['width']}$"
        for graph, case in zip(graphs, steps, strict=True)
        if (graph, case["maps"]) == ("FB15k-237", "dense")
    ]
    second = f" Dense maps on FB15k-237: {' and '.join(dense)}." if dense else ""
    return f"{first}.{second} {measured_on(steps)}."


def service_table(cases: Sequence[Case]) -> str:
    r"""Returns the measurements of ``scripts/bench_service.py`` as Markdown.

    A row for each model: the time and memory to extend it by 1,000 entities and by one, that of
    solving the same problem over all rows in multiples of the first, and the time of a prediction
    beside that of the one product with the table of vectors that it cannot do without.

    Args:
        cases (list): What the script writes.
    """
    return _join(measured_on(cases), _table(_SERVICE, cases, left=2))


def folder_table(cases: Sequence[Case]) -> str:
    r"""Returns the measurements of ``scripts/bench_scale_folder.py`` as Markdown.

    A row for each size: the time to open a mapped folder and the memory it takes that no file backs
    (beside those of a folder that is read whole, where that was measured), to look up 10,000 labels
    with their vectors, to extend by 1,000 entities and save, to read the mapped table once, and to
    predict over it. Folders are opened anew for each turn of the last three.

    Args:
        cases (list): What the script writes.
    """
    return _join(measured_on(cases), _table(_FOLDER, cases, left=0))


def query_speed_table(cases: Sequence[Case]) -> str:
    r"""Returns the measurements of ``scripts/bench_queries.py`` as Markdown.

    The first table compares queries answered together with a loop that takes the Schur complement
    of each, the second rankings by type with the bare distance matrices of that size, the third
    queries over entities with the bare scores of each (entity, relation) that their beams need.

    Args:
        cases (list): What the script writes.
    """
    loops = [case for case in cases if "loop_seconds_per_query" in case]
    rankings = [case for case in cases if "distance_seconds" in case]
    beams = [case for case in cases if case not in loops and case not in rankings]
    tables = [
        _table(columns, own, left=1)
        for columns, own in ((_LOOP, loops), (_RANKING, rankings), (_BEAM, beams))
    ]
    return _join(measured_on(cases), *tables)


def training_table(cases: Sequence[Case]) -> str:
    r"""Returns the measurements of ``scripts/bench_training.py`` as Markdown.

    Args:
        cases (list): What the script writes.
    """
    names = ("dataset", "model", "loss", "hidden_channels", "batch_size")
    shown = [_column(name, _name if name in names[:3] else str) for name in names]
    header = ["data", "model", "loss", "d", "batch"]
    for task, count in (("epoch", "train_triples"), ("ranking", "test_triples")):
        header += [f"{task} of", task, "PyKEEN", "ratio"]
        shown.append(_column(count, lambda number: f"{number:,} triples"))
        shown += [_column(f"seconds_{task}{name}", _short) for name in ("", "_pykeen")]
        shown.append(_column(f"ratio_{task}", lambda ratio: f"{ratio:.1f}x"))
    rows = [[show(case) for show in shown] for case in cases]
    where = "; ".join(dict.fromkeys(measured_on([case]) for case in cases))
    return _join(where, markdown_table(header, rows, "lllrrrrrrrrrr"))


def transductive_table(records: Sequence[Case]) -> str:
    r"""Returns the results of ``scripts/check_transductive.py`` as Markdown, a row per model.

    Args:
        records (list): What the script writes; models that one library lacks are excluded.
    """
    found: dict[tuple[str, str], dict[str, Case]] = {}
    for record in records:
        found.setdefault((record["dataset"], record["model"]), {})[record["library"]] = record
    rows = []
    for names, both in found.items():
        if len(both) == 2:
            ours, training = both["sheafprop"], both["sheafprop"]["training"]
            scores = [f"{both[library]['mrr']:.3f}" for library in ("sheafprop", "pykeen")]
            settings = [str(training["hidden_channels"]), str(ours["epochs"])]
            rows.append([*map(_name, (*names, training["loss"])), *settings, *scores])
    header = ("data", "model", "loss", "d", "epochs", "MRR", "MRR, PyKEEN")
    return markdown_table(header, rows, "lllrrrr")


def measured_on(cases: Sequence[Case]) -> str:
    """Hardware, versions, threads and runs of cases, and their notes.

    What older records lack is said not to be stored.
    """
    places = dict.fromkeys(f"{c['hardware']}, torch {c['torch']}" for c in cases if "torch" in c)
    commits = dict.fromkeys(str(case["commit"]) for case in cases if case.get("commit"))
    parts = ["; ".join(places)] if places else []
    if commits:
        parts.append(f"commit{'s' * (len(commits) > 1)} {', '.join(commits)}")
    counts = Counter(map(conditions, cases))
    for text, count in counts.items():
        parts.append(text if len(counts) == 1 else f"{text} ({count} of {len(cases)} cases)")
    notes = dict.fromkeys(f": {case['note']}" for case in cases if "note" in case)
    return ", ".join(parts) + "".join(notes)


def conditions(case: Case) -> str:
    """The threads and the runs of a case, and how their times were combined."""
    threads, runs = case.get("threads"), case.get("runs")
    first = "threads not stored" if threads is None else f"{threads} thread{'s' * (threads != 1)}"
    if runs is None:
        return f"{first}, runs not stored"
    return f"{first}, " + ("one run" if runs == 1 else f"median of {runs} runs with their range")
