"""Tables of how the paper's procedure differs from ours."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.presets import VERSIONS
from benchmarks.tables.figures import FAMILIES, NAMES
from sheafprop.report.published import published_rows
from sheafprop.report.tables import NOTHING, duration, markdown_table, mean_with_error

__all__ = [
    "curve_table",
    "leak_table",
    "procedure_report",
    "procedure_table",
    "seeds_table",
    "steps_table",
]

Record = dict[str, Any]
Choice = tuple[str, str, str, str]

OURS: Choice = ("as we do", "step of the text", "our start", "as we do")
THEIRS: Choice = ("released", "released step", "normal start", "the paper's number of iterations")
_PARTS = ("trained", "step", "start", "evaluated")
_LEAK = "iterations chosen on test"
_NOT_RUN = "Not run yet."


def procedure_report(records: Sequence[Record]) -> str:
    r"""Returns the tables below that have rows.

    Args:
        records (list): What ``scripts/paper_procedure.py`` stores.
    """
    tables = [table(records) for table in (procedure_table, steps_table, seeds_table)]
    return "\n\n".join(table for table in tables if table != _NOT_RUN)


def procedure_table(records: Sequence[Record]) -> str:
    r"""Returns test Hits@10 in percent of our procedure with one change, and of the released one.

    Figures are means over seeds with the standard error of the mean; in parentheses stands the
    difference to the first row of the part, over the seeds that both have. What :func:`steps_table`
    shows is left out.

    Args:
        records (list): What ``scripts/paper_procedure.py`` stores.
    """
    records, _ = _apart(records)
    if not records:
        return _NOT_RUN
    columns = list(dict.fromkeys((r["dataset"], r["model"]) for r in records))
    found: dict[tuple[Choice, tuple[str, str]], dict[int, float]] = {}
    for r in records:
        choice: Choice = tuple(r[part] for part in _PARTS)  # type: ignore[assignment]
        values = found.setdefault((choice, (r["dataset"], r["model"])), {})
        values[r["seed"]] = 100 * r["hits@10"]
    choices = list(dict.fromkeys(choice for choice, _ in found))
    rows = [["**our procedure**", *_cells(found, OURS, None, columns)]]
    rows += [
        [_name(choice, OURS), *_cells(found, choice, OURS, columns)]
        for choice in choices
        if _changes(choice, OURS) == 1
    ]
    rows.append(["**released procedure**", *_cells(found, THEIRS, None, columns)])
    for choice in _back(choices):
        rows.append([_name(choice, THEIRS), *_cells(found, choice, THEIRS, columns)])
    rows.append(["the paper's figure", *(_published(*column) for column in columns)])
    header = ["changed", *(f"{dataset}, {NAMES[model]}" for dataset, model in columns)]
    return markdown_table(header, [row for row in rows if set(row[1:]) != {NOTHING}])


def seeds_table(records: Sequence[Record]) -> str:
    r"""Returns the spread of test Hits@10 in percent over seeds, as Markdown.

    Args:
        records (list): What ``scripts/paper_procedure.py`` stores.
    """
    rows = []
    for dataset, model in dict.fromkeys((r["dataset"], r["model"]) for r in records):
        for name, choice in (("ours", OURS), ("released", THEIRS)):
            values = [
                100 * r["hits@10"]
                for r in records
                if (r["dataset"], r["model"]) == (dataset, model)
                and tuple(r[part] for part in _PARTS) == choice
            ]
            if len(values) > 1:
                figures = (min(values), statistics.fmean(values), max(values))
                spread = f"{statistics.stdev(values):.1f}"
                numbers = [str(len(values)), *(f"{figure:.1f}" for figure in figures), spread]
                rows.append([dataset, NAMES[model], name, *numbers, _published(dataset, model)])
    if not rows:
        return _NOT_RUN
    header = ["data set", "model", "procedure", "seeds", "least", "mean", "best", "deviation"]
    return markdown_table([*header, "paper"], rows, "lllrrrrrr")


def steps_table(records: Sequence[Record]) -> str:
    r"""Returns test Hits@10 in percent by training, step and start, with the number of iterations.

    It shows the models and data sets with trainings that end early, with all their trainings.

    Args:
        records (list): What ``scripts/paper_procedure.py`` stores.
    """
    found: dict[tuple[str, ...], dict[str, Record]] = {}
    records = _apart(records)[1]
    order = list(dict.fromkeys((r["dataset"], r["model"]) for r in records))
    for r in sorted(records, key=lambda r: order.index((r["dataset"], r["model"]))):
        row = r["dataset"], r["model"], r["trained"], r["step"], r["start"]
        found.setdefault(row, {})[r["evaluated"]] = r
    rows = []
    for (dataset, model, *names), ways in found.items():
        chosen = [ways.get(choice) for choice in (OURS[3], THEIRS[3])]
        cells = [
            f"{100 * w['hits@10']:.1f} ({w['iterations']:,})" if w else NOTHING for w in chosen
        ]
        rows.append([dataset, NAMES[model], *names, *cells, _published(dataset, model)])
    if not rows:
        return _NOT_RUN
    header = ["data set", "model", "training", "step", "start", "iterations by validation"]
    return markdown_table([*header, THEIRS[3], "paper"], rows, "lllllrrr")


def leak_table(records: Sequence[Record]) -> str:
    r"""Returns what a choice of iterations on the test triples would give the preset ``paper``.

    Args:
        records (list): What ``scripts/reproduce_completion.py`` stores.
    """
    rows = []
    for family, title in FAMILIES.items():
        for model, name in NAMES.items():
            cells = [_with_leak(records, f"{family}_{v}", model) for v in VERSIONS]
            if set(cells) != {NOTHING}:
                rows.append([f"{title}, {name}", *cells])
    return markdown_table(["preset paper: by validation, best on test (paper)", *VERSIONS], rows)


def curve_table(records: Sequence[Record]) -> str:
    r"""Returns learning curves, as Markdown.

    Args:
        records (list): What ``scripts/paper_procedure.py --curve`` stores.
    """
    order = sorted(records, key=lambda r: (r["dataset"], r["model"], r["seed"], r["epochs"]))
    rows = [
        [
            r["dataset"],
            NAMES[r["model"]],
            str(r["epochs"]),
            duration(r["seconds_train"]),
            f"{100 * r['held_out_hits@10']:.1f}",
            f"{100 * r['validation_hits@10']:.1f}",
            str(r["iterations"]),
        ]
        for r in order
    ]
    if not rows:
        return _NOT_RUN
    header = ["data set", "model", "epochs", "trained for", "held-out training triples"]
    return markdown_table([*header, "validation", "iterations"], rows, "llrrrrr")


def _apart(records: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """The records of models and data sets without trainings that end early, and the others."""
    early = {(r["dataset"], r["model"]) for r in records if r["trained"].endswith("epochs")}
    parts: tuple[list[Record], list[Record]] = [], []
    for r in records:
        parts[(r["dataset"], r["model"]) in early].append(r)
    return parts


def _with_leak(records: Sequence[Record], dataset: str, model: str) -> str:
    wanted = {"preset": "paper", "protocol": "full", "dataset": dataset, "model": model}
    found = [r for r in records if wanted.items() <= r.items() and "test_curve" in r]
    if not found:
        return NOTHING
    chosen = statistics.fmean(100 * r["hits@10"] for r in found)
    best = statistics.fmean(100 * max(hits for _, hits in r["test_curve"]) for r in found)
    return f"{chosen:.1f}, {best:.1f} ({_published(dataset, model)})"


def _back(choices: Iterable[Choice]) -> list[Choice]:
    """The released procedure with one part as ours.

    Its number of iterations belongs to its step, so the other step comes with a choice of its own.
    """
    text = (*THEIRS[:1], OURS[1], *THEIRS[2:3], OURS[3])
    wanted = []
    for choice in choices:
        trained, step, _, evaluated = choice
        if choice == text or (
            _changes(choice, THEIRS) == 1
            and step == THEIRS[1]
            and evaluated in (THEIRS[3], OURS[3], _LEAK)
            and trained in (OURS[0], *_released([trained]))
        ):
            wanted.append(choice)
    return wanted


def _released(names: Sequence[str]) -> list[str]:
    return [name for name in names if name.startswith(THEIRS[0])]


def _changes(choice: Choice, base: Choice) -> int:
    return sum(one != other for one, other in zip(choice, base, strict=True))


def _name(choice: Choice, base: Choice) -> str:
    labels = {"as we do": {"trained": "training as ours", "evaluated": "iterations by validation"}}
    parts = []
    for part, value, other in zip(_PARTS, choice, base, strict=True):
        if value != other:
            text = labels.get(value, {}).get(part, value)
            parts.append(f"{text} (leak)" if value == _LEAK else text)
    return ", ".join(parts)


def _cells(
    found: dict[tuple[Choice, tuple[str, str]], dict[int, float]],
    choice: Choice,
    base: Choice | None,
    columns: Sequence[tuple[str, str]],
) -> list[str]:
    cells = []
    for column in columns:
        values = found.get((choice, column))
        if values is None:
            cells.append(NOTHING)
            continue
        text = mean_with_error(list(values.values()))
        others = found.get((base, column), {}) if base else {}
        common = [seed for seed in values if seed in others]
        if common:
            change = statistics.fmean(values[seed] - others[seed] for seed in common)
            text += f" ({change:+.1f})"
        cells.append(text)
    return cells


def _published(dataset: str, model: str) -> str:
    name = f"{NAMES[model]} + harmonic extension"
    for row in published_rows("completion", "full", dataset, marks=["paper"]):
        if row["method"] == name:
            return f"{100 * row['hits@10']:.1f}"
    return NOTHING
