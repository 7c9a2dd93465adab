"""The tables of the query benchmark: query types by ratio, each averaging by itself."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from sheafprop.kge import KGE_REGISTRY
from sheafprop.query import CONJUNCTIVE
from sheafprop.ranking.edge_type_heuristic import HEURISTIC
from sheafprop.report.published import published_query_means, published_rows
from sheafprop.report.records import tie_conventions
from sheafprop.report.tables import NOTHING, escape, markdown_table, mean_with_error

__all__ = [
    "AVERAGINGS",
    "NEGATION",
    "UNIONS",
    "entity_summary",
    "entity_table",
    "mean_of_types",
    "query_curves",
    "query_figures",
    "query_report",
    "query_summary",
]

#: How hard answers are averaged, and what that means.
AVERAGINGS = {
    "macro": "mean over the answers of a query, then over queries",
    "micro": "mean over all pairs of query and answer, as in the code of Cobb and Gebhart",
}
#: The types with a union.
UNIONS = ("2u", "up")
#: The types with a negation.
NEGATION = ("2in", "3in", "inp", "pin", "pni")
_MEAN = "mean of 7"
_GNN = "NodePiece-QE w/ GNN"
_PRESETS = {"no-prior": "best without prior"}

Record = dict[str, Any]
#: Hits@10 of every seed, by method and query type.
Figures = dict[str, dict[str, list[float]]]


def query_figures(records: Sequence[Record], ratio: str, averaging: str) -> Figures:
    r"""Returns Hits@10 by method and type for one ratio, published methods last.

    Args:
        records (list): What ``scripts/reproduce_queries.py`` wrote.
        ratio (str): The ratio of the data set, such as ``"550"``.
        averaging (str): ``"macro"`` or ``"micro"``; published figures of the other one are
            excluded.

    Cells of the comparison of hyperparameters are excluded, too. Results of a configuration that
    has changed since have a row of their own, with the commit that gave them.
    """
    found: Figures = {}
    own = [r for r in records if (r["ratio"], r["averaging"]) == (ratio, averaging)]
    own = [record for record in _dated(own) if not _is_tuned(record)]
    for record in sorted(own, key=_place):
        own_model = record["model"] in KGE_REGISTRY
        named = tie_conventions("full") if record["model"] == HEURISTIC else {"": _method(record)}
        for prefix, name in named.items():
            if f"{prefix}hits@10" not in record:
                continue
            values = found.setdefault(name, {}).setdefault(record["type"], [])
            # The heuristic has no seed and no preset: the same figure with every cell.
            if own_model or not values:
                values.append(record[f"{prefix}hits@10"])
    for row in published_rows("queries", "paper", ratio):
        if row["averaging"] == averaging:
            name = f"{row['method']} (published, {row['mark']})"
            found[name] = {kind: [value] for kind, value in row["hits@10"].items()}
    return found


def query_summary(records: Sequence[Record]) -> str:
    r"""Returns mean Hits@10 over the seven conjunctive types by method and ratio, in Markdown.

    Args:
        records (list): What ``scripts/reproduce_queries.py`` wrote.
    """
    ratios = _ratios(records)
    parts = []
    for averaging, meaning in AVERAGINGS.items():
        columns = {ratio: query_figures(records, ratio, averaging) for ratio in ratios}
        methods = dict.fromkeys(name for figures in columns.values() for name in figures)
        ordered = sorted(methods, key=lambda name: "(published" in name)
        rows = [
            [escape(name), *(_mean_cell(columns[ratio].get(name, {})) for ratio in ratios)]
            for name in ordered
        ]
        header = [f"ratio, {averaging}", *ratios]
        parts += [f"**{averaging}** ({meaning})", markdown_table(header, rows)]
    return "\n\n".join(parts)


def query_report(records: Sequence[Record]) -> str:
    r"""Returns Hits@10 of every query type at every ratio, and what was chosen, in Markdown.

    Args:
        records (list): What ``scripts/reproduce_queries.py`` wrote.
    """
    parts = [
        "# Logical queries on the FB15k-237 splits",
        "Hits@10 in percent over the hard answers of every test query, by realistic ranks among "
        "the entities of the observed test graph with all other answers removed. Rows of other "
        "averaging are not comparable. `published, paper`: figures that Cobb and Gebhart print; "
        "those of NodePiece-QE and of that edge-type heuristic come from Galkin et al. The "
        "heuristic here stands in two rows: where equal scores have their mean rank, large ties "
        "are never a hit; where they stand in random order, they are with some probability.",
        query_summary(records),
    ]
    for ratio in _ratios(records):
        parts.append(f"## Ratio {ratio}")
        for averaging in AVERAGINGS:
            figures = query_figures(records, ratio, averaging)
            header = [averaging, *CONJUNCTIVE, _MEAN, *UNIONS]
            rows = []
            for name, by_type in figures.items():
                cells = [_cell(by_type.get(kind)) for kind in (*CONJUNCTIVE, *UNIONS)]
                cells.insert(len(CONJUNCTIVE), _mean_cell(by_type))
                rows.append([escape(name), *cells])
            parts.append(markdown_table(header, rows))
        parts.append(_chosen(records, ratio))
    parts.append(_tuned(records))
    return "\n\n".join(part for part in parts if part) + "\n"


def query_curves(records: Sequence[Record]) -> str:
    r"""Returns learning curves: validation Hits@10 by batches of training, in Markdown.

    Args:
        records (list): What ``scripts/reproduce_queries.py --curve`` wrote.
    """
    rows = [
        [
            record["ratio"],
            escape(f"{_method(record)}, seed {record['seed']}"),
            f"{record['steps']:,} of {record['length']:,}",
            f"{record['seconds']:,.0f} s",
            str(record["iterations"]),
            *(f"{100 * record[averaging]:.1f}" for averaging in AVERAGINGS),
        ]
        for record in sorted(records, key=_curve_place)
    ]
    return markdown_table(
        ["ratio", "model", "batches", "training", "iterations", *AVERAGINGS], rows, "llrrrrr"
    )


def entity_table(records: Sequence[Record]) -> str:
    r"""Returns Hits@10 and MRR by ratio and method: means over the nine types without and the five
    with negation, in Markdown. Standard errors of Hits@10 are over queries.

    Args:
        records (list): What ``scripts/reproduce_queries.py --entities`` wrote.
    """
    cells: dict[tuple[str, ...], dict[str, Record]] = {}
    for record in records:
        name = f"{_method(record)}, seed {record['seed']}: {record['method']}"
        key = (record["ratio"], name, record["averaging"])
        cells.setdefault(key, {})[record["type"]] = record
    rows = []
    for (ratio, name, averaging), by_type in sorted(
        cells.items(), key=lambda cell: (int(cell[0][0]), *cell[0][1:])
    ):
        limit = next(iter(by_type.values()))["limit"]
        queries = "all" if limit is None else f"at most {limit:,}"
        row = [ratio, escape(name), averaging, queries]
        row += [_mean_of(by_type, types) for types in ((*CONJUNCTIVE, *UNIONS), NEGATION)]
        row += [
            f"{100 * by_type[kind]['hits@10']:.1f}" if kind in by_type else NOTHING
            for kind in (*CONJUNCTIVE, *UNIONS, *NEGATION)
        ]
        rows.append(row)
    header = ["ratio", "method", "averaging", "queries per type", "mean of 9", "mean of 5"]
    return markdown_table([*header, *CONJUNCTIVE, *UNIONS, *NEGATION], rows)


def entity_summary(records: Sequence[Record]) -> str:
    r"""Returns macro Hits@10 and MRR of every method by ratio and over all ratios, in Markdown: the
    means of the nine types without negation, the five with it, and the seven conjunctive ones.

    Args:
        records (list): What ``scripts/reproduce_queries.py --entities`` wrote.
    """
    cells: dict[str, dict[str, dict[str, Record]]] = {}
    for record in records:
        if record["averaging"] == "macro":
            by_ratio = cells.setdefault(f"{_method(record)}: {record['method']}", {})
            by_ratio.setdefault(record["ratio"], {})[record["type"]] = record
    ratios = _ratios(records)
    published = published_query_means()
    gnn = {
        ratio: {kind: {"hits@10": value} for kind, value in row["hits@10"].items()}
        for ratio in ratios
        for row in published_rows("queries", "paper", ratio)
        if row["method"] == _GNN
    }
    parts = []
    for title, types in (
        ("without negation", (*CONJUNCTIVE, *UNIONS)),
        ("with negation", NEGATION),
        ("conjunctive", CONJUNCTIVE),
    ):
        header = [f"{len(types)} types {title}", *ratios, f"mean of {len(ratios)}"]
        named = [(name + _limits(by_ratio), by_ratio) for name, by_ratio in cells.items()]
        own = [*named, (f"{_GNN} (published, paper; macro, ties by an unstable sort)", gnn)]
        rows = []
        for name, by_ratio in own:
            row = [_mean_of(by_ratio.get(ratio, {}), types) for ratio in ratios]
            whole = [_figures(by_ratio.get(ratio, {}), types) for ratio in ratios]
            if any(cell != NOTHING for cell in row):
                rows.append([escape(name), *row, _mean_of_means(whole)])
        for name, figures in published.items():
            if title in figures:
                means = f"{100 * figures[title]['hits@10']:.1f} / {figures[title]['mrr']:.3f}"
                ties = f"{figures['averaging']}, {figures['ties']} ties"
                name = f"{name} (published, {figures['mark']}; {ties}, 9 ratios)"
                rows.append([escape(name), *[NOTHING] * len(ratios), means])
        parts.append(markdown_table(header, rows))
    return "\n\n".join(parts)


def _limits(by_ratio: dict[str, dict[str, Record]]) -> str:
    """How many queries of each type were ranked at most, where it was not all of them."""
    found = {record["limit"] for by_type in by_ratio.values() for record in by_type.values()}
    some = sorted(found - {None})
    if not some:
        return ""
    numbers = f"{some[0]:,}" if len(some) == 1 else f"{some[0]:,} to {some[-1]:,}"
    return f" ({numbers} queries per type{' or all' if None in found else ''})"


def _figures(by_type: dict[str, Record], types: Sequence[str]) -> tuple[float, float | None] | None:
    """Mean Hits@10, and mean MRR where there is one; None unless all types are there."""
    own = [by_type[kind] for kind in types if kind in by_type]
    if len(own) < len(types):
        return None
    hits = statistics.fmean(record["hits@10"] for record in own)
    known = all("mrr" in record for record in own)
    return hits, statistics.fmean(record["mrr"] for record in own) if known else None


def _mean_of_means(found: Sequence[tuple[float, float | None] | None]) -> str:
    own = [pair for pair in found if pair is not None]
    if len(own) < len(found):
        return NOTHING
    hits = statistics.fmean(hits for hits, _ in own)
    mrr = [value for _, value in own if value is not None]
    return f"{100 * hits:.1f}" + (f" / {statistics.fmean(mrr):.3f}" if mrr else "")


def _mean_of(by_type: dict[str, Record], types: Sequence[str]) -> str:
    """Mean Hits@10 with its standard error where there is one, and mean MRR."""
    found = _figures(by_type, types)
    if found is None:
        return NOTHING
    hits, mrr = found
    error = ""
    errors = [by_type[kind].get("standard_error", math.nan) for kind in types]
    whole = sum(value**2 for value in errors) ** 0.5 / len(errors)
    if not math.isnan(whole):
        error = f" ± {100 * whole:.1f}"
    return f"{100 * hits:.1f}{error}" + ("" if mrr is None else f" / {mrr:.3f}")


def _curve_place(record: Record) -> tuple[Any, ...]:
    return (int(record["ratio"]), *_place(record), record["length"], record["steps"])


def _ratios(records: Sequence[Record]) -> list[str]:
    return sorted({record["ratio"] for record in records}, key=int)


def _method(record: Record) -> str:
    if record["model"] not in KGE_REGISTRY:
        return str(record["model"])
    preset = _PRESETS.get(record["preset"], record["preset"])
    return f"{KGE_REGISTRY[record['model']].__name__}, {preset}"


def _dated(records: Sequence[Record]) -> list[Record]:
    """The records, the older ones of a cell whose configuration has changed marked as such.

    The file of results grows at its end: what a changed configuration gave stands behind what the
    old one gave.
    """

    def cell(record: Record) -> tuple[Any, ...]:
        return tuple(record.get(key) for key in ("ratio", "model", "preset", "seed"))

    current = {cell(record): record.get("config_hash") for record in records}
    return [
        record
        if record.get("config_hash") == current[cell(record)]
        else record | {"preset": f"{record['preset']} at commit {record['commit']}"}
        for record in records
    ]


def _place(record: Record) -> tuple[bool, str, str, int]:
    return (record["model"] not in KGE_REGISTRY, record["preset"], record["model"], record["seed"])


def _cell(values: Sequence[float] | None) -> str:
    return mean_with_error([100 * value for value in values]) if values else NOTHING


def _mean_cell(by_type: dict[str, list[float]]) -> str:
    """The mean over the seven types; nothing unless all of them are there for every seed."""
    means = _means_of_types(by_type)
    return _cell(means) if means else NOTHING


def mean_of_types(by_type: dict[str, list[float]]) -> float | None:
    r"""Returns the mean Hits@10 in percent over the seven conjunctive types and the seeds.

    Args:
        by_type (dict): Hits@10 of every seed by type.

    Returns:
        float, optional: None unless all types are there for every seed.
    """
    means = _means_of_types(by_type)
    return 100 * statistics.fmean(means) if means else None


def _means_of_types(by_type: dict[str, list[float]]) -> list[float]:
    columns = [by_type.get(kind, []) for kind in CONJUNCTIVE]
    if not all(columns) or len({len(column) for column in columns}) > 1:
        return []
    return [statistics.fmean(values) for values in zip(*columns, strict=True)]


def _chosen(records: Sequence[Record], ratio: str) -> str:
    """What every cell of a ratio chose, and how long it took."""
    cells: dict[str, list[Record]] = {}
    for record in _dated(records):
        known = record["ratio"] == ratio and record["model"] in KGE_REGISTRY
        if known and not _is_tuned(record) and record["averaging"] == "macro":
            cells.setdefault(record["config_hash"], []).append(record)
    rows = []
    for own in sorted(cells.values(), key=lambda found: _place(found[0])):
        first = own[0]
        rows.append(
            [
                escape(f"{_method(first)}, seed {first['seed']}"),
                str(first["iterations"]),
                f"{100 * first['validation_hits@10']:.1f}",
                f"{first['train_seconds']:.0f} s",
                f"{sum(record['seconds'] for record in own):.0f} s",
                f"{sum(record['queries'] for record in own):,}",
                str(first["commit"]),
            ]
        )
    header = ["cell", "iterations", "validation", "training", "ranking", "queries", "commit"]
    return markdown_table(header, rows) if rows else ""


def _tuned(records: Sequence[Record]) -> str:
    """Hyperparameters tuned transductively beside those tuned on pi and ip."""
    cells: dict[tuple[Any, ...], dict[str, Record]] = {}
    for record in filter(_is_tuned, records):
        if record["averaging"] == "micro":
            key = (int(record["ratio"]), record["model"], record["seed"], record["preset"])
            cells.setdefault(key, {})[record["type"]] = record
    if not cells:
        return ""
    rows = []
    for (ratio, _, seed, preset), by_type in sorted(cells.items()):
        first = by_type["1p"]
        best = max(first["tried"], key=lambda entry: entry[preset])
        hits = {kind: [record["hits@10"]] for kind, record in by_type.items()}
        rows.append(
            [
                escape(f"{ratio}, {KGE_REGISTRY[first['model']].__name__}, seed {seed}, {preset}"),
                f"{best['lr']:g}",
                f"{best['scale']:g}",
                str(first["iterations"]),
                *(_cell(hits.get(kind)) for kind in CONJUNCTIVE),
                _mean_cell(hits),
            ]
        )
    text = (
        "## Hyperparameters tuned transductively, and on pi and ip\n\n"
        "Learning rate and scale of the loss, chosen by triples held out of the training graph, "
        "or by validation queries pi and ip after propagation. Test, micro."
    )
    header = ["cell", "lr", "scale", "iterations", *CONJUNCTIVE, _MEAN]
    return f"{text}\n\n{markdown_table(header, rows)}"


def _is_tuned(record: Record) -> bool:
    return "tried" in record
