"""Reports of one or several runs as Markdown."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sheafprop.checks import count_noun
from sheafprop.files import write_text
from sheafprop.ranking import PROTOCOLS
from sheafprop.report.figures import hits_by_iteration
from sheafprop.report.own_files import own_path, sign
from sheafprop.report.published import published_rows
from sheafprop.report.records import (
    Record,
    alike,
    by_dataset,
    dataset_title,
    describe_proximity,
    protocol_order,
    run_name,
)
from sheafprop.report.tables import (
    NOTHING,
    duration,
    escape,
    markdown_table,
    result_table,
    size,
    strata_table,
)

_PICTURE = "hits_by_iteration.png"
_GRAPH_COLUMNS = ("entities", "relations", "triples", "duplicates", "self_loops")
# Excluded or unanchored data: always shown, also if there are none.
_NOTICED = {
    "dropped_triples": "dropped triples (unknown relation)",
    "unknown_relations": "unknown relations",
    "unseen_entities_train_valid": "transductive validation triples removed (unseen entities)",
    "unseen_entities_valid": "validation triples removed (unseen entities)",
    "unseen_entities_test": "test triples removed (unseen entities)",
    "components_without_boundary": "components without a known entity (unanchored)",
    "isolated_free": "free entities without a triple (isolated)",
    "overlaps": "triples in two sets",
}
_COUNTS = {
    "observed_triples": "observed triples of the inference graph, without training triples",
    "boundary_entities": "known entities in the inference graph, which keep their vectors",
    "free_entities": "new (free) entities in the inference graph",
    "shared_labels": "entity labels that occur in both graphs",
    "anchored_by_label": "entities of observed triples that are known from training",
    "components": "connected components of the inference graph",
    "train_valid_triples": "transductive validation triples, within the training graph",
    "valid_triples": "validation triples, in the inference graph",
    "test_triples": "test triples, in the inference graph",
    "valid_duplicates": "repeated validation triples",
    "test_duplicates": "repeated test triples",
    "valid_without_free": "validation triples without a new entity",
    "test_without_free": "test triples without a new entity",
    "valid_swapped_pairs": "validation triples with an observed triple in the other direction",
    "test_swapped_pairs": "test triples with an observed triple in the other direction",
}
#: Explanations of propagation settings, shown for those in use.
_TERMS = {
    "start": {
        "mixed": "start mixed: one section starts at the prototype, the others at random vectors",
        "random": "start random: new entities start at random vectors seeded by their labels",
        "prototype": "start prototype: new entities start at the mean trained vector of the "
        "(relation, side) pairs of their triples",
        "zeros": "start zeros: new entities start at zero",
    },
    "iterations": "iterations: number of diffusion steps",
    "step_size": "step size: fraction of a full step, which moves a vector to its energy minimum",
    "normalization": {
        "block": "normalization block: a step is divided by diagonal blocks of the Laplacian",
        "degree": "normalization degree: a step is divided by the weighted degree of each entity",
        None: "normalization none: plain gradient steps",
    },
    "num_sections": "sections: number of starts that are propagated; their scores are summed",
    "num_random": "num random: number of sections that start at random",
    "prototype_share": "prototype share: weight of the prototype section in the score; a prototype "
    "is the mean trained vector of the (relation, side) pairs of an entity",
    "normalize_output": "normalize output: new vectors are scaled to the norm used in training "
    "after the last step (row normalization)",
    "relation_weights": "relation weights: triples of relations with small training residuals have "
    "larger weights",
    "teleport": "teleport: weight of the start in every step; 0 for none",
    "seed": "seed: of the random starts",
}


def write_report(folder: str | os.PathLike[str], records: Sequence[Record]) -> Path:
    r"""Writes ``report.md``, and ``hits_by_iteration.png`` beside it, and returns its path.

    If ``report.md`` was not written by sheafprop, it is kept, and the report is
    ``report.sheafprop.md``.

    The report contains the results and how to read them, results by strata of the test queries, the
    protocols, published results, the selection on validation, the validation curve, a summary of
    the data with everything that was excluded, and time and memory. Missing parts of records are
    named.

    Args:
        folder (str): The folder of the report.
        records (list): One or more records of runs (their ``metrics.json``).

    Raises:
        ValueError: If there is no record, or a score is not finite.
    """
    if not records:
        raise ValueError("'records' must hold at least one record (got none)")
    folder = Path(folder)
    picture, path = own_path(folder, _PICTURE), own_path(folder, "report.md")
    drawn = picture.name if hits_by_iteration(records, picture) else None
    parts = [
        _title(folder, records),
        _results(records),
        _protocols(records),
        _published(records),
        _selection(records, drawn),
        _data(records),
        _runs(records),
        _cost(records),
    ]
    write_text(path, sign("\n\n".join(part for part in parts if part) + "\n"))
    return path


def _title(folder: Path, records: Sequence[Record]) -> str:
    datasets = escape(", ".join(by_dataset(records)))
    if len(records) == 1:
        run = records[0]["run"]
        return f"# {escape(run.get('model', run_name(records[0])))} on {datasets}"
    return f"# {escape(folder.resolve().name)}: {len(records)} runs on {datasets}"


def _results(records: Sequence[Record]) -> str:
    if not any(record.get("test") for record in records):
        return "## Results\n\nThe test triples have not been ranked yet."
    missing = [run_name(record) for record in records if not record.get("test")]
    lines = ["## Results", result_table(records)]
    if missing:
        lines.append(f"Not tested yet: {escape(', '.join(missing))}.")
    lines.append(
        "Hits@k is the percentage of queries whose true answer is among the first k, MRR the mean "
        "reciprocal rank; ± is the standard error over seeds. `full`, `merged` and `strict` rank "
        "among all entities, `sampled50` among 50 only, with far higher results: compare rows of "
        "one protocol, never across protocols."
    )
    strata = strata_table(records)
    if strata:
        lines.append(
            "**By what the observed graph knows of the true answer**: Hits@10 in percent (MRR in "
            "parentheses). A half-link is observed if an observed triple has the true answer on "
            "that side of the relation of the query; steps are observed triples, in any direction, "
            "between the query entity and the true answer."
        )
        lines.append(strata)
    return "\n\n".join(lines)


def _published(records: Sequence[Record]) -> str:
    entries = [
        ((str(record["run"].get("dataset")), str(entry["protocol"])), bool(entry.get("mark")))
        for record in records
        if record["run"].get("mode") == "fully-inductive"
        for entry in record.get("test", [])
        if entry["protocol"] in PROTOCOLS
    ]
    # Where an entry is marked, as chosen on what it is tested on, nothing is compared.
    used = {pair for pair, _ in entries} - {pair for pair, marked in entries if marked}
    rows = [
        [
            escape(row["method"]),
            escape(dataset),
            protocol,
            NOTHING if row["hits@10"] is None else f"{100 * row['hits@10']:.1f}",
            NOTHING if row["mrr"] is None else f"{row['mrr']:.3f}",
            row["ties"] or NOTHING,
            "Cobb and Gebhart" if row["source"] == "paper" else escape(row["source"]),
        ]
        for dataset, protocol in sorted(used, key=lambda pair: (pair[0], protocol_order(pair[1])))
        for row in published_rows("completion", protocol, dataset)
    ]
    if not rows:
        return ""
    header = ("method", "data", "protocol", "Hits@10", "MRR", "ties", "source")
    return (
        "## Published figures\n\n"
        "Published results under the same protocol. Their filters and, if unknown "
        f"({NOTHING}), their tie rules may differ.\n\n" + markdown_table(header, rows, "lllrrll")
    )


def _protocols(records: Sequence[Record]) -> str:
    names = dict.fromkeys(
        str(name)
        for record in records
        for name in [*record.get("protocols", {}), *(e["protocol"] for e in record.get("test", []))]
    )
    lines = ["## Protocols"]
    for name in sorted(names, key=protocol_order):
        boxes = [{"run": r["run"], "box": r.get("protocols", {}).get(name)} for r in records]
        known = list(alike([box for box in boxes if box["box"]], "box"))
        for members, box in known:
            whose = "" if len(known) == 1 else f" ({escape(', '.join(map(run_name, members)))})"
            lines += [f"`{name}`{whose}", f"```text\n{box}\n```"]
        if not known:
            text = PROTOCOLS[name].description if name in PROTOCOLS else "Not recorded."
            lines.append(f"`{name}`: {text} Its candidates and filter were not recorded.")
    return "\n\n".join(lines) if names else ""


def _selection(records: Sequence[Record], picture: str | None) -> str:
    lines = ["## Selection"]
    lines.append("\n".join(_choice(record, len(records) > 1) for record in records))
    lines += _terms(records)
    if picture:
        lines.append(f"![Validation Hits@10 and MRR by number of iterations]({picture})")
    else:
        lines.append("There is no validation curve.")
    return "\n\n".join(lines)


def _choice(record: Record, named: bool) -> str:
    head = f"- **{escape(run_name(record))}**: " if named else ""
    selection = record.get("selection")
    if not selection:
        return f"{head}No selection was recorded."
    chosen = selection.get("chosen") or {}
    settings = ", ".join(f"{key.replace('_', ' ')} {_value(v)}" for key, v in chosen.items())
    note = f" {escape(selection['note'])}" if selection.get("note") else ""
    tried = selection.get("tried", len(selection.get("curve", [])))
    places = {
        "validation": "validation",
        "training graph": "training entities that are treated as new",
    }
    place = places.get(selection.get("on"))
    if place is None:
        origin = escape(selection.get("on", "unknown"))
        origin = "defaults were used" if origin == "defaults" else f"settings come from: {origin}"
        tail = f"; {count_noun(tried, 'configuration')} tried" if tried else ""
        return (
            f"{head}No settings were selected on validation; {origin}{tail}: "
            f"{settings or NOTHING}.{note}"
        )
    protocol = selection.get("protocol", "full")
    triples = f", {count_noun(selection['count'], 'triple')}" if "count" in selection else ""
    if selection.get("available") is not None:
        triples += f" drawn from {selection['available']:,}"
    value = "" if selection.get("value") is None else f" {selection['value']:.3f}"
    near = selection.get("proximity")
    if near and (text := describe_proximity(near, selection.get("metric", "mrr"))):
        note += f" {text[0].upper()}{text[1:]}."
    return (
        f"{head}{count_noun(tried, 'configuration')} tried on {place} (best "
        f"`{selection.get('metric', 'mrr')}`{value} under `{protocol}`{triples}). "
        f"Selected: {settings or 'not recorded'}.{note}"
    )


def _terms(records: Sequence[Record]) -> list[str]:
    """A line for each setting in use."""
    found = []
    for key, meaning in _TERMS.items():
        for record in records:
            chosen = (record.get("selection") or {}).get("chosen") or {}
            if key in chosen:
                line = meaning.get(chosen[key]) if isinstance(meaning, dict) else meaning
                if line and line not in found:
                    found.append(line)
    return ["\n".join(f"- {line}" for line in found)] if found else []


def _value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else escape(value)


def _data(records: Sequence[Record]) -> str:
    lines = ["## Data"]
    for members in by_dataset(records).values():
        groups = list(alike(members, "data"))
        for same, data in groups:
            title = escape(dataset_title(same[0]))
            if len(groups) > 1:
                title += f": {escape(', '.join(map(run_name, same)))}"
            lines.append(f"**{title}**")
            lines += _data_summary(data) if data else ["No summary of the data was recorded."]
    return "\n\n".join(lines)


def _data_summary(data: dict[str, Any]) -> Iterator[str]:
    left = {key: value for key, value in data.items() if key not in ("name", "mode", "notes")}
    rows = []
    for graph in ("train", "inference"):
        cells = [left.pop(f"{graph}_{column}", None) for column in _GRAPH_COLUMNS]
        if any(cell is not None for cell in cells):
            rows.append([graph, *(NOTHING if cell is None else f"{cell:,}" for cell in cells)])
    if rows:
        header = ("graph", *(column.replace("_", "-") for column in _GRAPH_COLUMNS))
        yield markdown_table(header, rows, "lrrrrr")
    noticed = {name: left.pop(key) for key, name in _NOTICED.items() if key in left}
    counts = [
        [
            escape(_COUNTS.get(key, key.replace("_", " "))),
            f"{value:,}" if isinstance(value, int) else escape(value),
        ]
        for key, value in left.items()
        if not isinstance(value, dict | list)
    ]
    if counts:
        yield markdown_table(("count", ""), counts, "lr")
    noticed |= {
        key.replace("_", " "): value
        for key, value in left.items()
        if isinstance(value, dict | list)
    }
    lines = [f"- {escape(name)}: {_format_finding(value)}" for name, value in noticed.items()]
    lines += [f"- note: {escape(note)}" for note in data.get("notes", [])]
    if lines:
        yield "Excluded, unanchored or unusual:\n\n" + "\n".join(lines)


def _format_finding(value: Any) -> str:
    """A count, counts by name, or counts with examples, in full."""
    if isinstance(value, dict):
        known = [
            f"{escape(key)}: {_format_finding(part)}"
            for key, part in value.items()
            if part not in ([], {})
        ]
        return "; ".join(known) or "none"
    if isinstance(value, list):
        return ", ".join(
            f"({_format_finding(v)})" if isinstance(v, list) else _format_finding(v) for v in value
        )
    return f"{value:,}" if isinstance(value, int) else escape(value)


def _runs(records: Sequence[Record]) -> str:
    rows = []
    for record in records:
        run, training = record["run"], record.get("training", {})
        cells: Iterable[Any] = (
            run_name(record),
            run.get("dataset"),
            run.get("model"),
            run.get("seed"),
            training.get("epochs"),
            training.get("best_epoch"),
            training.get("monitor"),
            training.get("stopped"),
            run.get("config_hash"),
            run.get("version"),
        )
        rows.append([NOTHING if cell is None else escape(cell) for cell in cells])
    header = (
        "run",
        "data",
        "model",
        "seed",
        "epochs",
        "best",
        "by",
        "stopped",
        "config",
        "version",
    )
    return "## Runs\n\n" + markdown_table(header, rows, "lllrrrllll")


def _cost(records: Sequence[Record]) -> str:
    rows = []
    for record in records:
        seconds = {
            "train": record.get("training", {}).get("seconds"),
            "select": (record.get("selection") or {}).get("seconds"),
            **record.get("seconds", {}),
        }
        phases = [duration(seconds.get(key)) for key in ("train", "select", "propagate", "rank")]
        hardware = escape(record.get("hardware", NOTHING))
        rows.append([escape(run_name(record)), *phases, size(record.get("peak_bytes")), hardware])
    header = ("run", "train", "select", "propagate", "rank", "peak memory", "hardware")
    return (
        "## Time and memory\n\n" + markdown_table(header, rows, "lrrrrrl") + "\n\n"
        "Wall time: `train` is the time of all epochs with their validations, summed over resumed "
        "runs, `select` that of the selection on validation, and `propagate` and `rank` those of "
        "the test. Peak memory is that of the process, including libraries."
    )
