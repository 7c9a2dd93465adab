"""The tables and the report of the inductive completion benchmarks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.presets import VERSIONS
from benchmarks.tables import figures
from sheafprop.files import write_text
from sheafprop.inductive.rank_completion import FILTERED_PROXIMITY, PEERS, PROXIMITY
from sheafprop.ranking import PROTOCOLS
from sheafprop.ranking.edge_type_heuristic import HEURISTIC
from sheafprop.report.published import NEIGHBOURS, published_rows
from sheafprop.report.records import tie_conventions
from sheafprop.report.tables import (
    NOTHING,
    duration,
    escape,
    markdown_table,
    mean_with_error,
    size,
)

__all__ = ["ablation_table", "completion_cost_table", "completion_report", "completion_table"]

Record = dict[str, Any]

FAMILIES = figures.FAMILIES
NAMES = figures.NAMES | {"pairre": "PairRE"}
_MARKS = ("paper", "read", "second-hand", "recalled")
_NEAR = "†"  # beside figures of a neighbouring protocol
_PRESETS = {
    "best": "{} + sheaf propagation",
    "best, share from validation": "{} + sheaf propagation, share from validation",
    "paper": "{}, the paper's settings",
    "reference": "{} trained on the inference graph (reference)",
}
#: Methods of presets with a record for each: their names, the presets, of which the first that has
#: a data set is taken, and what the records call them.
_EPISODES = {
    "{} + episodes + proximity": (("episodes",), "{} + episodes + proximity"),
    "{} + episodes + proximity + peers": (("episodes",), "{} + episodes + proximity + peers"),
    "{} + episodes": (("episodes",), "{} + episodes"),
    "{} + episodes + proximity, isolated entities ranked": (
        ("isolated",),
        "{} + episodes + proximity",
    ),
    "{} + episodes, isolated entities ranked": (("isolated",), "{} + episodes"),
    "{} + episodes + proximity, base of 100 steps": (("shorter",), "{} + episodes + proximity"),
    "{} + episodes, base of 100 steps": (("shorter",), "{} + episodes"),
    "{} + episodes + proximity, numbers of answers": (
        ("numbers",),
        "{} + episodes + proximity",
    ),
    "{} + episodes, numbers of answers": (("numbers",), "{} + episodes"),
    "{} + episodes + proximity, plain walk": (("plain-walk",), "{} + episodes + proximity"),
    "{} + episodes + proximity, 64 columns": (("narrow",), "{} + episodes + proximity"),
    "{} + episodes + proximity + peers, 64 columns": (
        ("peers",),
        "{} + episodes + proximity + peers",
    ),
    "{} + episodes, 64 columns": (("narrow",), "{} + episodes"),
    "{} + sheaf propagation + proximity + peers": (("peers",), "{} + proximity + peers"),
    "{} + sheaf propagation + proximity": (
        ("narrow", "episodes", "isolated", "numbers", "plain-walk"),
        "{} + proximity",
    ),
}

_FIGURES = {
    "hits_by_version.png": (figures.completion_by_version, "Hits@10 by version"),
    "hits_by_iteration.png": (
        figures.completion_by_iteration,
        "Hits@10 by iteration on validation",
    ),
    "validation_against_test.png": (
        figures.validation_against_test,
        "The paper's settings: iterations chosen on validation, and the best on test",
    ),
}


def completion_table(
    records: Sequence[Record], protocol: str, *, marks: Iterable[str] = ("paper", "read")
) -> str:
    r"""Returns Hits@10 in percent by data set under one protocol, as Markdown.

    There is a table for each family of data sets. Figures are means over seeds with the standard
    error of the mean; MRR stands in parentheses. The first row takes, for each data set, the model
    with the best Hits@10 on what the settings were chosen on; rows with a mark, such as ``selected
    on half of the test``, are not among them. Published figures of the same
    protocol follow, with their sources, and how many data sets they are reached on. Those of a
    neighbouring protocol have a symbol, whose meaning stands below the table, and are counted
    apart. Notes on published figures stand there too.

    Args:
        records (list): What ``scripts/reproduce_completion.py`` stores.
        protocol (str): ``"full"``, ``"sampled50"``, ``"merged"`` or ``"strict"``.
        marks (optional): Marks of the published figures to show. (default: ``("paper", "read")``)

    Raises:
        ValueError: If a figure is not finite.
    """
    marks = tuple(marks)
    chosen = [r for r in records if r["protocol"] == protocol]
    parts = []
    for family, title in FAMILIES.items():
        datasets = [f"{family}_{version}" for version in VERSIONS]
        rows = _our_rows(chosen, datasets)
        if not rows:
            continue
        best = _best_of_models(chosen, datasets)
        rows = {"best model, chosen on validation": best} | rows if best else rows
        others = _published(protocol, datasets, marks)
        near, differs = {}, ""
        if protocol in NEIGHBOURS:
            neighbour, differs = NEIGHBOURS[protocol]
            near = _published(neighbour, datasets, marks)
        rows |= {f"{name} [{source}]": row for (name, source), row in others.items()}
        rows |= {f"{name} {_NEAR} [{source}]": row for (name, source), row in near.items()}
        lines = [
            [escape(name), *(_cell(row.get(d)) for d in datasets)] for name, row in rows.items()
        ]
        parts.append(markdown_table([f"{title}, {protocol}", *VERSIONS], lines))
        if near:
            parts.append(f"{_NEAR} {differs}.")
        for name, own in ({"the best model": best} | _with_episodes(rows)).items():
            parts += _reached(name, own, others) + _reached(name, own, near, f" ({differs})")
        parts += _notes(others | near)
    return "\n\n".join(parts)


def completion_cost_table(records: Sequence[Record], *presets: str) -> str:
    r"""Returns time and memory of the completion benchmarks by data set and model, as Markdown.

    Args:
        records (list): What ``scripts/reproduce_completion.py`` stores.
        presets (str): Whose runs are shown. (default: ``"best"``)
    """
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        own = record["preset"] in (presets or ("best",)) and record["protocol"] == "full"
        if own and "seconds_train" in record:
            groups.setdefault((record["dataset"], record["model"]), []).append(record)
    order = [f"{family}_{version}" for family in FAMILIES for version in VERSIONS]
    rows = []
    for (dataset, model), members in sorted(groups.items(), key=lambda g: order.index(g[0][0])):
        times = [
            duration(statistics.fmean(r.get(f"seconds_{part}", 0.0) for r in members))
            for part in ("train", "episodes", "select", "propagate", "rank")
        ]
        peak = size(max(record["peak_bytes"] for record in members))
        steps = ", ".join(
            str(r.get("iterations", NOTHING)) for r in sorted(members, key=lambda r: r["seed"])
        )
        rows.append([dataset, _name(model), *times, peak, steps])
    header = ["data set", "model", "train", "episodes", "select", "propagate", "rank", "memory"]
    return markdown_table([*header, "iterations"], rows, "llrrrrrrr")


def _name(model: str) -> str:
    """A method of the preset ``episodes``, or a model, by the name that it is printed under."""
    kind, plus, rest = model.partition(" + ")
    return NAMES.get(kind, kind) + plus + rest


def ablation_table(records: Sequence[Record]) -> str:
    r"""Returns validation Hits@10 in percent of every variant of a preset, as Markdown.

    Figures are means over seeds with the standard error of the mean; in parentheses stands the
    difference to the preset as it is.

    Args:
        records (list): What ``scripts/ablate_completion.py`` stores.
    """
    columns = list(dict.fromkeys((record["dataset"], record["model"]) for record in records))
    groups: dict[str, dict[tuple[str, str], list[float]]] = {}
    for record in records:
        key = record["dataset"], record["model"]
        figures = groups.setdefault(record["ablation"], {}).setdefault(key, [])
        figures.append(100 * record["validation_hits@10"])
    whole = groups.get("as it is", {})
    rows = []
    for name, found in groups.items():
        cells = []
        for column in columns:
            text = mean_with_error(found[column]) if column in found else NOTHING
            if column in found and column in whole and name != "as it is":
                change = statistics.fmean(found[column]) - statistics.fmean(whole[column])
                text += f" ({change:+.1f})"
            cells.append(text)
        rows.append([escape(name), *cells])
    header = ["variant", *(f"{dataset}, {NAMES[model]}" for dataset, model in columns)]
    return markdown_table(header, rows)


def completion_report(records: Sequence[dict[str, Any]], folder: Path) -> str:
    r"""Writes tables and figures of the completion benchmarks into a folder and returns the text.

    Args:
        records (list): What ``scripts/reproduce_completion.py`` stores.
        folder (Path): Where ``report.md`` and the pictures are written.
    """
    parts = [
        "# Inductive completion",
        "Hits@10 in percent (MRR in parentheses), both sides, mean over seeds ± standard error. "
        "Settings are chosen on validation (`merged`: on the training graph); the test triples are "
        "ranked once. Published rows follow filters and, but for `merged`, tie rules of their own; "
        "those marked recalled or second-hand are not verified.",
    ]
    for protocol in PROTOCOLS:
        table = completion_table(records, protocol, marks=_MARKS)
        if table:
            parts += [f"## {protocol}", PROTOCOLS[protocol].description, table]
    parts += ["## Time and memory", completion_cost_table(records)]
    for name, (draw, title) in _FIGURES.items():
        if draw(records, folder / name):
            parts += [f"## {title}", f"![{title}]({name})"]
    text = "\n\n".join(parts) + "\n"
    write_text(folder / "report.md", text)
    return text


def _our_rows(records: Sequence[Record], datasets: list[str]) -> dict[str, dict[str, list[Record]]]:
    """For each of our methods, its records (one a seed) by data set."""
    rows: dict[str, dict[str, list[Record]]] = {}
    for pattern, (presets, label) in _EPISODES.items():
        for model, name in NAMES.items():
            found: dict[str, list[Record]] = {}
            for preset in presets:
                found = _by_dataset(records, datasets, preset, label.format(model)) | found
            if found:
                rows[pattern.format(name)] = found
    for preset, pattern in _PRESETS.items():
        for model, name in NAMES.items():
            found = _by_dataset(records, datasets, preset, model)
            marks = {r["mark"]: None for part in found.values() for r in part if "mark" in r}
            if found:
                rows["; ".join([pattern.format(name), *marks])] = found
    heuristic = _by_dataset(records, datasets, None, HEURISTIC)
    for protocol in dict.fromkeys(record["protocol"] for record in records):
        for prefix, name in tie_conventions(protocol).items():
            # One record: it needs no model and no seed.
            found = {
                dataset: [{key: members[0][prefix + key] for key in ("hits@10", "mrr")}]
                for dataset, members in heuristic.items()
                if f"{prefix}hits@10" in members[0]
            }
            rows |= {name: found} if found else {}
    for name in (PROXIMITY, FILTERED_PROXIMITY, PEERS):
        if found := _by_dataset(records, datasets, "none", name):
            rows[name] = found
    return rows


def _by_dataset(
    records: Sequence[Record], datasets: list[str], preset: str | None, model: str
) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        if (
            record["dataset"] in datasets
            and record["model"] == model
            and preset in (None, record["preset"])
        ):
            found.setdefault(record["dataset"], []).append(record)
    return found


def _best_of_models(records: Sequence[Record], datasets: list[str]) -> dict[str, list[Record]]:
    """For each data set the records of the model that is best where its settings were chosen."""
    best = {}
    for dataset in datasets:
        groups: dict[str, list[Record]] = {}
        for record in records:
            own = record["dataset"] == dataset and record["preset"] == "best"
            # A figure that was selected on what it ranks is shown, and not compared.
            if own and "selection_hits@10" in record and "mark" not in record:
                groups.setdefault(record["model"], []).append(record)
        if groups:
            best[dataset] = max(
                groups.values(),
                key=lambda group: statistics.fmean(r["selection_hits@10"] for r in group),
            )
    return best


def _published(
    protocol: str, datasets: list[str], marks: tuple[str, ...]
) -> dict[tuple[str, str], dict[str, list[Record]]]:
    rows: dict[tuple[str, str], dict[str, list[Record]]] = {}
    for dataset in datasets:
        for row in published_rows("completion", protocol, dataset, marks=marks):
            source = row["source"] if row["mark"] in ("paper", "read") else row["mark"]
            if row["mrr_mark"] not in (None, row["mark"]):
                source += f", MRR {row['mrr_mark']}"
            key = row["method"], source
            rows.setdefault(key, {})[dataset] = [row]
    return rows


def _cell(records: list[Record] | None) -> str:
    if not records:
        return NOTHING
    values = [record["hits@10"] for record in records]
    mrr = [record["mrr"] for record in records if record.get("mrr") is not None]
    known = [value for value in values if value is not None]
    if not all(math.isfinite(value) for value in known + mrr):
        raise ValueError(f"Expected finite scores (got {known + mrr})")
    whole = len(known) == len(values)
    text = mean_with_error([100 * value for value in known]) if whole else NOTHING
    return f"{text} ({statistics.fmean(mrr):.3f})" if mrr else text


def _with_episodes(
    rows: dict[str, dict[str, list[Record]]],
) -> dict[str, dict[str, list[Record]]]:
    """The row of episodes with proximity of the model that they were selected for, by name."""
    name = "RotatE + episodes + proximity"
    return {name: rows[name]} if name in rows else {}


def _reached(
    method: str,
    best: dict[str, list[Record]],
    others: dict[tuple[str, str], dict[str, list[Record]]],
    differs: str = "",
) -> list[str]:
    """One sentence for all published rows: on how many data sets a method is as good."""
    own = {d: statistics.fmean(r["hits@10"] for r in found) for d, found in best.items()}
    counts = []
    for (name, _), row in others.items():
        theirs = {d: row[d][0]["hits@10"] for d in own if d in row}
        won = [own[d] >= hits for d, hits in theirs.items() if hits is not None]
        if won:
            counts.append(f"{escape(name)} {sum(won)} of {len(won)}")
    reached = f"reaches at least the published Hits@10{differs}: {', '.join(counts)}"
    text = f"Number of data sets on which {method} {reached}."
    return [text] if counts else []


def _notes(others: dict[tuple[str, str], dict[str, list[Record]]]) -> list[str]:
    """A line for each note on published figures, with the methods that it is about."""
    found: dict[str, list[str]] = {}
    for (name, _), row in others.items():
        for note in dict.fromkeys(r["note"] for cells in row.values() for r in cells if r["note"]):
            found.setdefault(note, []).append(name)
    return [f"{escape(', '.join(names))}: {escape(note)}." for note, names in found.items()]
