"""What every run consumes: a training graph, an inference graph, and what to predict."""

import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from sheafprop.checks import check_choice, count_noun
from sheafprop.data.inspection import connected_components, first_occurrences, triple_codes
from sheafprop.data.knowledge_graph import KnowledgeGraph
from sheafprop.data.label_checks import (
    EXAMPLES,
    MODES,
    Mode,
    check_labels,
    lookalike_notes,
    named_counts,
)
from sheafprop.data.triples import LabelTriples, as_label_triples
from sheafprop.data.vocabulary import Vocabulary
from sheafprop.errors import DataError

__all__ = ["InductiveData", "assemble"]

_SPOKEN = {
    "train": "training",
    "train_valid": "transductive validation",
    "observed": "observed",
    "valid": "validation",
    "test": "test",
}
_MEANING = {
    "semi-inductive": "entities known from training keep their vectors",
    "fully-inductive": "all entities of the inference graph are new, whatever their labels",
}


@dataclass(frozen=True, repr=False)
class InductiveData:
    r"""A training graph, the observed inference graph, and the triples to predict.

    All relation ids are those of the training graph.

    Args:
        name: The name of the data set.
        mode: ``"semi-inductive"``: entities known from training are the boundary, and the inference
            graph holds the training graph, with its ids first. ``"fully-inductive"``: every entity
            of the inference graph is free, and its vocabulary is one of its own.
        train: The training graph.
        train_valid: Transductive validation triples over training ids ``[m, 3]``, or None.
        inference: The observed graph in inference ids.
        boundary_mask: True for known and fixed entities of the inference graph, of shape ``[n]``.
        boundary_source: Their training ids, -1 for free entities, of shape ``[n]``.
        valid: Validation triples in inference ids ``[m, 3]``, or None.
        test: Test triples in inference ids ``[m, 3]``, or None.
        report: Counts of everything noticed, in plain values; ``report["notes"]`` holds sentences.
    """

    name: str
    mode: Mode
    train: KnowledgeGraph
    train_valid: Tensor | None
    inference: KnowledgeGraph
    boundary_mask: Tensor
    boundary_source: Tensor
    valid: Tensor | None
    test: Tensor | None
    report: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice("mode", self.mode, MODES)
        self.train.validate_ids()
        self.inference.validate_ids()
        num_nodes = self.inference.num_nodes
        for key in ("boundary_mask", "boundary_source"):
            value = getattr(self, key)
            if value.shape != (num_nodes,):
                raise DataError(
                    f"'{key}' has one entry for each of the {num_nodes} entities of the inference "
                    f"graph (got shape {list(value.shape)})"
                )
        if self.boundary_mask.dtype != torch.bool:
            raise DataError(f"'boundary_mask' is boolean (got {self.boundary_mask.dtype})")
        if bool(((self.boundary_source >= 0) != self.boundary_mask).any()):
            raise DataError("'boundary_source' holds a training id exactly where the mask is true")
        if bool((self.boundary_source >= self.train.num_nodes).any()):
            raise DataError(
                f"'boundary_source' holds ids of the {self.train.num_nodes} training entities "
                f"(got {int(self.boundary_source.max())})"
            )
        if bool(self.boundary_mask.all()):
            raise DataError(
                f"{self.name}: the inference graph has no free entities: all {num_nodes} are known"
            )

    @property
    def num_relations(self) -> int:
        r"""The number of relations, those of the training graph."""
        return int(self.train.num_relations or 0)

    def summary(self) -> str:
        r"""Returns what there is to train on, to propagate into and to predict, and the notes."""
        report, free = self.report, int((~self.boundary_mask).sum())
        entities = (
            f"{count_noun(self.inference.num_nodes or 0, 'entity')}, {free:,} of them new"
            if self.mode == "semi-inductive"
            else f"{count_noun(free, 'entity')}, all of them new"
        )
        held = "" if self.train_valid is None else f", {len(self.train_valid):,} to validate on"
        valid, test = (0 if part is None else len(part) for part in (self.valid, self.test))
        lines = [
            f"{self.name} ({self.mode}: {_MEANING[self.mode]})",
            f"  training graph: {count_noun(self.train.num_nodes or 0, 'entity')}, "
            f"{count_noun(self.num_relations, 'relation')}, "
            f"{count_noun(self.train.num_edges, 'triple')}{held}",
            f"  inference graph: {entities}, {count_noun(self.inference.num_edges, 'triple')}",
            f"  to predict there: {count_noun(valid, 'triple')} to choose settings by, "
            f"{test:,} to test on",
        ]
        unanchored = report.get("components_without_boundary", 0)
        if self.mode == "semi-inductive" and unanchored:
            lines.append(
                f"  note: {unanchored:,} of {count_noun(report['components'], 'component')} of the "
                "inference graph hold no known entity"
            )
        return "\n".join(lines + [f"  note: {note}" for note in report.get("notes", [])])

    def __repr__(self) -> str:
        valid, test = (0 if part is None else len(part) for part in (self.valid, self.test))
        return (
            f"{self.__class__.__name__}({self.name}, {self.mode}, "
            f"train=[{self.train.num_nodes} entities, {self.train.num_edges} triples], "
            f"inference=[{self.inference.num_nodes} entities, {self.inference.num_edges} triples, "
            f"{int((~self.boundary_mask).sum())} free], valid={valid}, test={test})"
        )


def assemble(
    name: str,
    mode: Mode,
    *,
    train: Iterable[Sequence[str]],
    observed: Iterable[Sequence[str]],
    train_valid: Iterable[Sequence[str]] | None = None,
    valid: Iterable[Sequence[str]] | None = None,
    test: Iterable[Sequence[str]] | None = None,
    on_unknown_relation: Literal["error", "drop"] = "error",
    on_overlap: Literal["warn", "error"] = "warn",
    notes: Sequence[str] = (),
) -> InductiveData:
    r"""Makes :class:`InductiveData` from label triples, with all checks and the report.

    Triples to predict are never added to a graph; those that a graph holds already are reported.
    Those with an entity that does not occur in the graph they belong to are removed and reported.
    A triple counts once, however often it is given: repeated ones are left out of the training
    graph, of the inference graph and of those to predict, and are reported.

    Args:
        name: The name of the data set.
        mode: ``"semi-inductive"`` or ``"fully-inductive"``, see :class:`InductiveData`.
        train: The training triples ``(head, relation, tail)``.
        observed: The observed triples of the inference graph (semi-inductive: those besides the
            training triples).
        train_valid: Transductive validation triples of the training graph.
        valid: Validation triples of the inference graph.
        test: Test triples of the inference graph.
        on_unknown_relation: Whether triples with a relation that has no training triple are an
            error or are dropped (and reported).
        on_overlap: Whether triples to predict that are known already, or are in two sets, give a
            warning or an error.
        notes: Sentences to put first among the report's notes.

    Raises:
        DataError: If there is no training or observed triple, no free entity, or no known one in
            the mode that needs some.
        UnknownRelationError: If a relation has no training triple; it is named with its triples.
    """
    check_choice("on_overlap", on_overlap, ("warn", "error"))
    given = {"train_valid": train_valid, "observed": observed, "valid": valid, "test": test}
    train_labels = as_label_triples(train, "train")
    labels = {key: as_label_triples(part, key) for key, part in given.items() if part is not None}
    semi = mode == "semi-inductive"
    found: list[str] = list(notes)
    # Labels of one graph are compared; in the fully inductive mode there are two.
    inner = [train_labels, *(labels[key] for key in ("train_valid",) if key in labels)]
    outer = [labels[key] for key in ("observed", "valid", "test") if key in labels]
    for rows in [[*inner, *outer]] if semi else [inner, outer]:
        found += _lookalikes(rows)
    labels, unknown = check_labels(name, mode, train_labels, labels, on_unknown_relation)

    train_graph = KnowledgeGraph.from_labels(train_labels)
    entities, relations = train_graph.entities, train_graph.relations
    assert entities is not None
    assert relations is not None
    repeated: dict[str, int] = {}

    def keep_first(key: str, triples: Tensor) -> Tensor:
        first = first_occurrences(triples)
        repeated[key] = int((~first).sum())
        return triples[first]

    train_graph = KnowledgeGraph.from_triples(
        keep_first("train", train_graph.triples), entities=entities, relations=relations
    )
    dropped = {key: int(sum(count.values())) for key, count in unknown.items() if count}
    if dropped:
        number = sum(dropped.values())
        found.append(
            f"{count_noun(number, 'triple')} {_were(number)} dropped for a relation without "
            f"training triples ({named_counts(sum(unknown.values(), Counter()))})"
        )

    ends = labels["observed"][:, [0, 2]].ravel()
    start = entities if semi else Vocabulary(kind="entities")
    inference_entities = start.extend(ends)
    observed_ids = keep_first(
        "observed", _encode(labels["observed"], inference_entities, relations)
    )
    inference_ids = observed_ids
    if semi:
        inference_ids = torch.cat([train_graph.triples, observed_ids])
        inference_ids = inference_ids[first_occurrences(inference_ids)]
    num_known = len(start)
    shared = len(entities) + len(set(ends)) - len(entities.extend(ends))
    boundary_source = torch.arange(len(inference_entities))
    boundary_source[num_known:] = -1
    boundary_mask = boundary_source >= 0

    parts: dict[str, Tensor | None] = {"train_valid": None, "valid": None, "test": None}
    unseen = {f"unseen_entities_{key}": _unseen() for key in parts}
    for key in parts:
        if key not in labels:
            continue
        vocabulary = entities if key == "train_valid" else inference_entities
        ids = _encode(labels[key], vocabulary, relations)
        seen = (ids >= 0).all(dim=1)
        if not seen.all():
            removed = _unseen(labels[key][~seen.numpy()], vocabulary)
            unseen[f"unseen_entities_{key}"] = removed
            found.append(
                f"{count_noun(removed['triples'], f'{_SPOKEN[key]} triple')} "
                f"{_were(removed['triples'])} removed, as "
                f"{count_noun(removed['entities'], 'entity')} of theirs cannot be found in the "
                f"{'training' if key == 'train_valid' else 'observed'} graph "
                f"(first: {removed['examples'][0]})"
            )
        parts[key] = keep_first(key, ids[seen]) if seen.any() else None

    train_sets = {"train": train_graph.triples, "train_valid": parts["train_valid"]}
    inference_sets = {"observed": observed_ids, "valid": parts["valid"], "test": parts["test"]}
    if semi:
        overlaps = _overlaps(train_sets | inference_sets, inference_entities, relations)
    else:
        overlaps = _overlaps(train_sets, entities, relations)
        overlaps |= _overlaps(inference_sets, inference_entities, relations)
    for key, number in repeated.items():
        if number:
            found.append(
                f"{count_noun(number, f'{_SPOKEN[key]} triple')} "
                f"{'repeats' if number == 1 else 'repeat'} an earlier one and "
                f"{_were(number)} left out: a triple counts once"
            )
    for key, overlap in overlaps.items():
        first, second = (_SPOKEN[part] for part in key.split("/"))
        text = (
            f"{count_noun(overlap['count'], 'triple')} {_are(overlap['count'])} both among the "
            f"{first} and the {second} triples (first: {overlap['example']})"
        )
        found.append(text)
        if key == "train/observed":  # counts once in the graph; nothing that is to be predicted
            continue
        if on_overlap == "error":
            raise DataError(f"{name}: {text}")
        warnings.warn(f"{name}: {text}", stacklevel=2)
    if not semi and shared:
        found.append(
            f"{count_noun(shared, 'label')} {'occurs' if shared == 1 else 'occur'} in both graphs; "
            "the fully inductive mode takes them for different entities"
        )

    inference = KnowledgeGraph.from_triples(
        inference_ids, entities=inference_entities, relations=relations
    )
    isolated = _isolated(inference, boundary_mask)
    if isolated:
        found.append(
            f"{count_noun(len(isolated), 'new entity')} "
            f"{'has' if len(isolated) == 1 else 'have'} no triple with another entity and "
            f"{'keeps its' if len(isolated) == 1 else 'keep their'} start "
            f"(first: {isolated[0]!r})"
        )
    report = {
        "name": name,
        "mode": mode,
        **_counts("train", train_graph),
        "train_duplicates": repeated["train"],
        **_counts("inference", inference),
        "inference_duplicates": repeated["observed"]
        + (overlaps.get("train/observed", {"count": 0})["count"] if semi else 0),
        "observed_triples": len(observed_ids),
        "boundary_entities": int(boundary_mask.sum()),
        "free_entities": int((~boundary_mask).sum()),
        "shared_labels": shared,
        "anchored_by_label": shared if semi else 0,
        **_components(inference, boundary_mask),
        "isolated_free": len(isolated),
        **{f"{key}_triples": 0 if part is None else len(part) for key, part in parts.items()},
        **{f"{key}_duplicates": repeated[key] for key in ("valid", "test") if key in repeated},
        **_targets(parts, inference, boundary_mask),
        "unknown_relations": dict(sum(unknown.values(), Counter()).most_common()),
        "dropped_triples": dropped,
        **unseen,
        "overlaps": overlaps,
        "notes": found,
    }
    return InductiveData(
        name=name,
        mode=mode,
        train=train_graph,
        train_valid=parts["train_valid"],
        inference=inference,
        boundary_mask=boundary_mask,
        boundary_source=boundary_source,
        valid=parts["valid"],
        test=parts["test"],
        report=report,
    )


def _lookalikes(parts: Sequence[LabelTriples]) -> list[str]:
    rows = np.concatenate(parts)
    return lookalike_notes(rows[:, [0, 2]].ravel().tolist(), rows[:, 1].tolist())


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _encode(labels: LabelTriples, entities: Vocabulary, relations: Vocabulary) -> Tensor:
    return torch.stack(
        [
            entities.lookup(labels[:, 0]),
            relations.lookup(labels[:, 1]),
            entities.lookup(labels[:, 2]),
        ],
        dim=1,
    )


def _unseen(
    labels: LabelTriples | None = None, vocabulary: Vocabulary | None = None
) -> dict[str, Any]:
    """What is reported of triples that were removed for their entities."""
    if labels is None or vocabulary is None:
        return {"triples": 0, "entities": 0, "examples": []}
    ends = set(labels[:, [0, 2]].ravel())
    return {
        "triples": len(labels),
        "entities": sum(label not in vocabulary for label in ends),
        "examples": labels[:EXAMPLES].tolist(),
    }


def _overlaps(
    sets: dict[str, Tensor | None], entities: Vocabulary, relations: Vocabulary
) -> dict[str, dict[str, Any]]:
    """The triples that two sets over the same ids share: how many, and the first of them."""
    present = {key: part for key, part in sets.items() if part is not None}
    codes = dict(zip(present, triple_codes(*present.values()), strict=True))
    overlaps = {}
    for first, second in combinations(present, 2):
        both = torch.isin(codes[second], codes[first])
        if both.any():
            head, relation, tail = present[second][both][0].tolist()
            example = [*entities.labels_of([head]), *relations.labels_of([relation])]
            example += entities.labels_of([tail])
            overlaps[f"{first}/{second}"] = {"count": int(both.sum()), "example": example}
    return overlaps


def _counts(prefix: str, graph: KnowledgeGraph) -> dict[str, int]:
    triples = graph.triples
    return {
        f"{prefix}_entities": int(graph.num_nodes or 0),
        f"{prefix}_relations": len(triples[:, 1].unique()),
        f"{prefix}_triples": len(triples),
        f"{prefix}_self_loops": int((triples[:, 0] == triples[:, 2]).sum()),
    }


def _components(graph: KnowledgeGraph, boundary_mask: Tensor) -> dict[str, int]:
    component = connected_components(graph.edge_index, len(boundary_mask))
    total = len(component.unique())
    return {
        "components": total,
        "components_without_boundary": total - len(component[boundary_mask].unique()),
    }


def _isolated(graph: KnowledgeGraph, boundary_mask: Tensor) -> list[str]:
    """The labels of free entities that have loops at most."""
    head, tail = graph.edge_index
    alone = ~boundary_mask
    alone[graph.edge_index[:, head != tail].flatten()] = False
    assert graph.entities is not None
    return graph.entities.labels_of(alone.nonzero().flatten())


def _targets(
    parts: dict[str, Tensor | None], inference: KnowledgeGraph, boundary_mask: Tensor
) -> dict[str, int]:
    """Triples to predict without a free entity, and those whose ends swapped are observed."""
    head, tail = inference.edge_index
    num_nodes = len(boundary_mask)
    swapped = (tail * num_nodes + head)[head != tail]
    counts = {}
    for key in ("valid", "test"):
        part = parts[key]
        if part is None:
            continue
        counts[f"{key}_without_free"] = int(boundary_mask[part[:, [0, 2]]].all(dim=1).sum())
        pairs = part[:, 0] * num_nodes + part[:, 2]
        counts[f"{key}_swapped_pairs"] = int(torch.isin(pairs, swapped).sum())
    return counts
