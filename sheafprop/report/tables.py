"""Numbers, text and tables of reports; the results table, for Markdown and for a terminal."""

import math
import re
import statistics
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from sheafprop.ranking.edge_type_heuristic import HEURISTIC
from sheafprop.ranking.protocols import HITS_AT, MAIN_METRICS
from sheafprop.report.records import (
    Record,
    by_dataset,
    metric_key,
    protocol_order,
    run_name,
    tie_conventions,
)

NOTHING = "\N{EN DASH}"

_HEADER = ("method", "protocol", *(f"Hits@{k}" for k in HITS_AT), "MRR")
_SYMBOLS = "†‡§"

_Figures = tuple[float | None, ...]
_Reader = Callable[[Record, str], _Figures]  # of an entry of the test list, and a prefix of names


@dataclass(frozen=True)
class _Row:
    method: str
    protocol: str
    mark: str | None
    values: list[_Figures]  # one for each seed; a single one where all are equal
    seeds: str


def result_table(records: Sequence[Record]) -> str:
    r"""Returns the results of runs as a Markdown table, method by protocol.

    Hits are in percent. Protocols stand in groups, in each the methods in the order of their runs,
    which begins with the run's own. Runs of the same configuration that differ only in their seed
    are averaged, with the standard error of the mean; runs of different configurations, and runs
    that share a seed, are shown separately, by name. A baseline that needs no model is shown once,
    the edge-type heuristic by both conventions for ties. Several data sets give several tables.

    Args:
        records (list): The records of the runs (their ``metrics.json``).

    Raises:
        ValueError: If a score is not finite.
    """
    parts = []
    datasets = by_dataset(records)
    for title, members in datasets.items():
        lines = [f"**{escape(title)}**", ""] if len(datasets) > 1 else []
        groups = _groups(members, _main_figures)
        if groups:
            cells, header, symbols = _cells(groups)
            rows = [[escape(cell) for cell in row] for group in cells for row in group]
            lines.append(markdown_table(header, rows, _align(header)))
            lines += [f"\n{symbol} {escape(mark)}" for mark, symbol in symbols.items()]
        else:
            lines.append("No test triples were ranked.")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def terminal_table(records: Sequence[Record]) -> str:
    r"""Returns the table of :func:`result_table` in aligned columns, for a terminal.

    Args:
        records (list): The records of the runs (their ``metrics.json``).
    """
    parts = []
    for title, members in by_dataset(records).items():
        lines = [title]
        groups = _groups(members, _main_figures)
        if groups:
            cells, header, symbols = _cells(groups)
            lines.append(plain_table(header, cells, _align(header)))
            lines += [f"{symbol} {mark}" for mark, symbol in symbols.items()]
        else:
            lines.append("No test triples were ranked.")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def strata_table(records: Sequence[Record]) -> str:
    r"""Returns Hits@10 and MRR by stratum of the test queries as a Markdown table.

    Every method has a row and every stratum a column, with its number of queries first; MRR stands
    in parentheses. The figures are those of one protocol, the first that the records have.
    Several data sets give several tables.

    Args:
        records (list): The records of the runs (their ``metrics.json``).

    Raises:
        ValueError: If a score is not finite.
    """
    parts = []
    datasets = by_dataset(records)
    for title, members in datasets.items():
        entries = [entry for record in members for entry in record.get("test", [])]
        split = [entry for entry in entries if entry.get("strata")]
        if not split:
            continue
        protocol = min((str(entry["protocol"]) for entry in split), key=protocol_order)
        strata = [entry["strata"] for entry in split if entry["protocol"] == protocol]
        names = list(dict.fromkeys(name for one in strata for name in one))
        counts = [[one[name]["count"] for one in strata if name in one] for name in names]
        rows = [["queries", *(f"{statistics.fmean(count):,.0f}" for count in counts)]]
        (group,) = (
            group
            for group in _groups(members, partial(_stratum_figures, names=names))
            if group[0].protocol == protocol
        )
        for row in group:
            columns = list(zip(*row.values, strict=True))
            cells = [
                f"{_mean(list(hits), percent=True)} ({_mean(list(mrr), percent=False)})"
                for hits, mrr in zip(columns[::2], columns[1::2], strict=True)
            ]
            method = f"{row.method}; {row.mark}" if row.mark else row.method
            rows.append([escape(method), *cells])
        lines = [f"**{escape(title)}**", ""] if len(datasets) > 1 else []
        parts.append("\n".join([*lines, markdown_table([f"`{protocol}`", *names], rows)]))
    return "\n\n".join(parts)


def _align(header: Sequence[str]) -> str:
    return "ll" + "r" * (len(header) - 2)


def _cells(groups: list[list[_Row]]) -> tuple[list[list[list[str]]], list[str], dict[str, str]]:
    """The text of every cell, the header, and the footnote symbol of every mark."""
    rows = [row for group in groups for row in group]
    marks = list(dict.fromkeys(row.mark for row in rows if row.mark))
    symbols = {mark: _symbol(index) for index, mark in enumerate(marks)}
    with_seeds = any(row.seeds != "1" for row in rows)

    def cells(row: _Row) -> list[str]:
        protocol = f"{row.protocol} {symbols[row.mark]}" if row.mark else row.protocol
        figures = [
            _mean([value[column] for value in row.values], percent=name != "mrr")
            for column, name in enumerate(MAIN_METRICS)
        ]
        return [row.method, protocol, *figures, *([row.seeds] if with_seeds else [])]

    header = [*_HEADER, *(["seeds"] if with_seeds else [])]
    return [[cells(row) for row in group] for group in groups], header, symbols


def _symbol(index: int) -> str:
    return _SYMBOLS[index % len(_SYMBOLS)] * (1 + index // len(_SYMBOLS))


def _mean(values: list[float | None], *, percent: bool) -> str:
    """The mean with its standard error; nothing unless every seed has a value."""
    known = [value * (100 if percent else 1) for value in values if value is not None]
    if len(known) < len(values):
        return NOTHING
    return mean_with_error(known, 1 if percent else 3)


def _groups(records: list[Record], read: _Reader) -> list[list[_Row]]:
    """The rows of one data set, by protocol, each with what is read of its entries."""
    entries: dict[tuple[str, str, str | None, str | None], list[tuple[Record, _Figures]]] = {}
    order: list[tuple[str, str, str | None, str | None]] = []
    for record in records:
        new: list[
            tuple[str, str, str | None, str | None]
        ] = []  # go before the next row that other runs have too
        for entry in record.get("test", []):
            method, protocol = str(entry["method"]), str(entry["protocol"])
            model = record["run"].get("model")
            if model is None or not (_is_propagated(method) or _names(method, model)):
                model = None  # needs no model: one row for all of them
            names = tie_conventions(protocol) if method == HEURISTIC else {"": method}
            for prefix, name in names.items():
                figures = read(entry, prefix)
                if not prefix or any(value is not None for value in figures):
                    key = protocol, name, model, entry.get("mark")
                    if key in order:
                        place = order.index(key)
                        order[place:place] = new
                        new = []
                    elif key not in new:
                        new.append(key)
                    entries.setdefault(key, []).append((record, figures))
        order += new

    rows: list[_Row] = []
    models = {record["run"].get("model") for record in records}
    for protocol, method, model, mark in order:
        found = entries[protocol, method, model, mark]
        named = model is None or len(models) == 1 or _names(method, model)
        label = method if named else f"{model}: {method}"
        rows += _rows(label, protocol, mark, found, free=model is None)
    groups: dict[str, list[_Row]] = {}
    for row in sorted(rows, key=lambda row: protocol_order(row.protocol)):
        groups.setdefault(row.protocol, []).append(row)
    return list(groups.values())


def _rows(
    method: str,
    protocol: str,
    mark: str | None,
    found: list[tuple[Record, _Figures]],
    *,
    free: bool,
) -> list[_Row]:
    """A row for each configuration, or for each of its runs if they share a seed."""

    def row(values: list[_Figures], seeds: str, name: str = "") -> _Row:
        return _Row(f"{method}{name}", protocol, mark, values, seeds)

    def average(found: list[tuple[Record, _Figures]], name: str = "") -> list[_Row]:
        seeds = [record["run"].get("seed") for record, _ in found]
        if len(found) == 1 or (None not in seeds and len(set(seeds)) == len(seeds)):
            return [row([values for _, values in found], str(len(found)), name)]
        return [row([values], "1", f" [{run_name(record)}]") for record, values in found]

    if free:
        seeds = {record["run"].get("seed") for record, _ in found}
        if len({values for _, values in found}) == 1:
            return [row([found[0][1]], f"{len(seeds)}, all equal" if len(seeds) > 1 else "1")]
        distinct = {
            (record["run"].get("seed"), values): (record, values) for record, values in found
        }
        return average(list(distinct.values()) if len(distinct) == len(seeds) else found)
    configurations: dict[str | None, list[tuple[Record, _Figures]]] = {}
    for record, values in found:
        configurations.setdefault(record["run"].get("config_hash"), []).append((record, values))
    if len(configurations) == 1:
        return average(found)
    names = _configuration_names([[r for r, _ in members] for members in configurations.values()])
    return [
        line
        for name, members in zip(names, configurations.values(), strict=True)
        for line in average(members, f" [{name}]")
    ]


def _configuration_names(configurations: Sequence[Sequence[Record]]) -> list[str]:
    """The names of the runs of each configuration, without the seed if that is unambiguous."""
    full = [", ".join(run_name(record) for record in members) for members in configurations]
    short = [
        ", ".join(dict.fromkeys(re.sub(r"-seed-?\d+$", "", run_name(r)) for r in members))
        for members in configurations
    ]
    return [
        long if len(members) == 1 or short.count(name) > 1 else name
        for long, name, members in zip(full, short, configurations, strict=True)
    ]


def _main_figures(entry: Record, prefix: str) -> _Figures:
    return _figures(entry, entry["metrics"], prefix, MAIN_METRICS)


def _figures(entry: Record, metrics: Record, prefix: str, names: Sequence[str]) -> _Figures:
    values = []
    for name in names:
        value = metrics.get(prefix + metric_key(name, str(entry["protocol"])))
        if value is not None and not math.isfinite(value):
            raise ValueError(f"Expected finite scores of {entry['method']!r} (got {name}={value})")
        values.append(value)
    return tuple(values)


def _stratum_figures(entry: Record, prefix: str, names: Sequence[str]) -> _Figures:
    """Hits@10 and MRR of each stratum."""
    strata = [entry.get("strata", {}).get(name, {}) for name in names]
    pairs = [_figures(entry, one, prefix, ("hits@10", "mrr")) for one in strata]
    return tuple(value for pair in pairs for value in pair)


def _names(method: str, model: str) -> bool:
    return str(model).lower() in method.lower()


def _is_propagated(method: str) -> bool:
    """Whether a method's vectors come from propagation, by its name."""
    method = method.lower()
    return "propagation" in method and "no propagation" not in method


def escape(text: object) -> str:
    """Text that Markdown shows as it is, also inside a table cell."""
    return re.sub(r"([\\|*`<\[\]])", r"\\\1", " ".join(str(text).split()))


def markdown_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], align: str | None = None
) -> str:
    """A Markdown table of cells that are escaped already.

    :obj:`align` holds l or r for each column; without it, the first one is left-aligned.
    """
    align = align or "l" + "r" * (len(header) - 1)
    rule = ["---:" if side == "r" else ":---" for side in align]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [header, rule, *rows])


def plain_table(
    header: Sequence[str], groups: Sequence[Sequence[Sequence[str]]], align: str
) -> str:
    """Aligned columns for a terminal, with a rule under the header and between groups."""
    rows = [header, *(row for group in groups for row in group)]
    widths = [max(_width(cell) for cell in column) for column in zip(*rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = []
        for cell, width, side in zip(cells, widths, align, strict=True):
            space = " " * (width - _width(cell))
            padded.append(space + cell if side == "r" else cell + space)
        return "  ".join(padded).rstrip()

    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    lines = [line(header)]
    for group in groups:
        lines += [rule, *map(line, group)]
    return "\n".join(lines)


def _width(text: str) -> int:
    """The columns a terminal needs: wide letters take two, combining marks none."""
    return sum(
        0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF")
        for char in text
    )


def mean_with_error(values: Sequence[float], digits: int = 1) -> str:
    """The mean, with its standard error where there are several values."""
    text = f"{statistics.fmean(values):.{digits}f}"
    if len(values) > 1:
        text += f" ± {statistics.stdev(values) / math.sqrt(len(values)):.{digits}f}"
    return text


def duration(seconds: float | None) -> str:
    """Seconds as people read them."""
    if seconds is None:
        return NOTHING
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def size(num_bytes: float | None) -> str:
    """Bytes as people read them."""
    if num_bytes is None:
        return NOTHING
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1023.5:
            return f"{num_bytes:.0f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.2f} GiB"
