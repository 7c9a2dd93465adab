"""Builds :class:`InductiveData` from label triples."""

import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from sheafprop.checks import agree, count_noun
from sheafprop.data.graph_counts import connected_components, first_occurrences, triple_codes
from sheafprop.data.inductive_data import InductiveData
from sheafprop.data.knowledge_graph import KnowledgeGraph
from sheafprop.data.label_checks import EXAMPLES, Mode, check_labels, format_counts, lookalike_notes
from sheafprop.data.triples import LabelTriples, as_label_triples
from sheafprop.data.vocabulary import Vocabulary

_SPOKEN = {
    "train": "training",
    "train_valid": "transductive validation",
    "observed": "observed",
    "valid": "validation",
    "test": "test",
}


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
    notes: Sequence[str] = (),
) -> InductiveData:
    r"""Builds :class:`InductiveData` from label triples; checks them and reports what it finds.

    Triples to predict are never added to a graph. Triples to predict with an entity that does not
    occur in their graph are removed, and so are duplicates in every set; both are reported. Triples
    that occur in two sets, or both in a graph and among those to predict, are kept, reported and
    warned about.

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
            error or are dropped and reported.
        notes: Notes that the report starts with.

    Raises:
        DataError: If there is no training triple, no observed triple or no free entity, or no known
            entity in the semi-inductive mode.
        UnknownRelationError: If relations have no training triple. The message names them with
            their numbers of triples.
    """
    given = {"train_valid": train_valid, "observed": observed, "valid": valid, "test": test}
    train_labels = as_label_triples(train, "train")
    labels = {key: as_label_triples(part, key) for key, part in given.items() if part is not None}
    semi = mode == "semi-inductive"
    found: list[str] = list(notes)
    # Labels are compared within a graph; the fully inductive mode has two graphs.
    inner = [train_labels, *(labels[key] for key in ("train_valid",) if key in labels)]
    outer = [labels[key] for key in ("observed", "valid", "test") if key in labels]
    for rows in [[*inner, *outer]] if semi else [inner, outer]:
        joined = np.concatenate(rows)
        found += lookalike_notes(joined[:, [0, 2]].ravel().tolist(), joined[:, 1].tolist())
    labels, unknown = check_labels(name, mode, train_labels, labels, on_unknown_relation)
    labels["train"] = train_labels
    unknown_relations = sum(unknown.values(), Counter[str]())
    dropped = {key: int(sum(count.values())) for key, count in unknown.items() if count}
    if dropped:
        number = sum(dropped.values())
        found.append(
            f"{count_noun(number, 'triple')} {agree(number, 'was', 'were')} dropped for a relation "
            f"without training triples ({format_counts(unknown_relations)})"
        )

    entities = Vocabulary(kind="entities").extend(train_labels[:, [0, 2]].ravel())
    relations = Vocabulary(kind="relations").extend(train_labels[:, 1])
    ends = labels["observed"][:, [0, 2]].ravel()
    start = entities if semi else Vocabulary(kind="entities")
    inference_entities = start.extend(ends)
    shared = sum(label in entities for label in set(ends))
    repeated: dict[str, int] = {}
    unseen: dict[str, dict[str, Any]] = {}

    def encode(key: str) -> Tensor:
        """Returns the distinct triples of a set as ids; drops those with an unknown entity."""
        rows = labels[key]
        vocabulary = entities if key in ("train", "train_valid") else inference_entities
        head, tail = vocabulary.lookup(rows[:, 0]), vocabulary.lookup(rows[:, 2])
        ids = torch.stack([head, relations.lookup(rows[:, 1]), tail], dim=1)
        seen = (ids >= 0).all(dim=1)
        if not seen.all():
            unseen[key] = _report_unseen(rows[~seen.numpy()], vocabulary)
            number = unseen[key]["triples"]
            found.append(
                f"{count_noun(number, f'{_SPOKEN[key]} triple')} {agree(number, 'was', 'were')} "
                f"removed: {count_noun(unseen[key]['entities'], 'entity')} not in the "
                f"{'training' if vocabulary is entities else 'observed'} graph "
                f"(first: {unseen[key]['examples'][0]})"
            )
            ids = ids[seen]
        if len(ids):
            first = first_occurrences(ids)
            repeated[key] = int((~first).sum())
            ids = ids[first]
        return ids

    train_ids, observed_ids = encode("train"), encode("observed")
    inference_ids = observed_ids
    if semi:
        inference_ids = torch.cat([train_ids, observed_ids])
        inference_ids = inference_ids[first_occurrences(inference_ids)]
    parts: dict[str, Tensor | None] = {"train_valid": None, "valid": None, "test": None}
    for key in [key for key in parts if key in labels]:
        ids = encode(key)
        parts[key] = ids if len(ids) else None

    train_graph = KnowledgeGraph.from_triples(train_ids, entities=entities, relations=relations)
    inference = KnowledgeGraph.from_triples(
        inference_ids, entities=inference_entities, relations=relations
    )
    boundary_source = torch.arange(len(inference_entities))
    boundary_source[len(start) :] = -1
    boundary_mask = boundary_source >= 0

    train_sets = {"train": train_ids, "train_valid": parts["train_valid"]}
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
                f"{agree(number, 'is a duplicate', 'are duplicates')} and "
                f"{agree(number, 'was', 'were')} removed"
            )
    for key, overlap in overlaps.items():
        first, second = (_SPOKEN[part] for part in key.split("/"))
        text = (
            f"{count_noun(overlap['count'], 'triple')} "
            f"{agree(overlap['count'], 'occurs', 'occur')} in both the {first} and the {second} "
            f"triples (first: {overlap['example']})"
        )
        found.append(text)
        if key != "train/observed":  # harmless: neither set is predicted
            warnings.warn(f"{name}: {text}", stacklevel=2)
    if not semi and shared:
        found.append(
            f"{count_noun(shared, 'label')} {agree(shared, 'occurs', 'occur')} in both graphs; "
            "the fully inductive mode treats them as different entities"
        )
    isolated = _isolated_labels(inference, boundary_mask)
    if isolated:
        number = len(isolated)
        found.append(
            f"{count_noun(number, 'new entity')} {agree(number, 'has', 'have')} no triple with "
            f"another entity and {agree(number, 'keeps its', 'keep their')} initial vector "
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
        "unknown_relations": dict(unknown_relations.most_common()),
        "dropped_triples": dropped,
        **{f"unseen_entities_{key}": unseen.get(key) or _report_unseen() for key in parts},
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


def _report_unseen(
    labels: LabelTriples | None = None, vocabulary: Vocabulary | None = None
) -> dict[str, Any]:
    """Summarizes the triples that were removed for an unknown entity."""
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
    """Returns the number of triples that two sets share, with the first as an example."""
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


def _isolated_labels(graph: KnowledgeGraph, boundary_mask: Tensor) -> list[str]:
    """Returns the labels of free entities without a triple to another entity."""
    head, tail = graph.edge_index
    alone = ~boundary_mask
    alone[graph.edge_index[:, head != tail].flatten()] = False
    assert graph.entities is not None
    return graph.entities.labels_of(alone.nonzero().flatten())


def _targets(
    parts: dict[str, Tensor | None], inference: KnowledgeGraph, boundary_mask: Tensor
) -> dict[str, int]:
    """Counts triples to predict without a free entity, and those whose inverse is observed."""
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
