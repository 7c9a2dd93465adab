"""The data of a run: a training graph, an inference graph and the triples to predict."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sheafprop.checks import check_choice, count_noun, quote
from sheafprop.data.features import FEWEST, FeatureTable
from sheafprop.data.knowledge_graph import KnowledgeGraph
from sheafprop.data.label_checks import MODES, Mode
from sheafprop.data.vocabulary import Vocabulary
from sheafprop.errors import DataError
from sheafprop.seeding import combine_keys, label_keys

_MEANING = {
    "semi-inductive": "entities of the training graph keep their vectors",
    "fully-inductive": "all entities of the inference graph are new",
}


@dataclass(frozen=True, repr=False)
class InductiveData:
    r"""A training graph, the observed inference graph, and the triples to predict.

    All relation ids are those of the training graph.

    Args:
        name: The name of the data set.
        mode: ``"semi-inductive"``: entities known from training are the boundary, and the inference
            graph contains the training graph, whose entities come first. ``"fully-inductive"``:
            every entity of the inference graph is free, and it has its own vocabulary.
        train: The training graph.
        train_valid: Transductive validation triples over training ids ``[m, 3]``, or None.
        inference: The observed graph in inference ids.
        boundary_mask: True for known and fixed entities of the inference graph, of shape ``[n]``.
        boundary_source: Their training ids, -1 for free entities, of shape ``[n]``.
        valid: Validation triples in inference ids ``[m, 3]``, or None.
        test: Test triples in inference ids ``[m, 3]``, or None.
        report: Counts as plain values, and notes in ``report["notes"]``.
        features: Features of the entities of both graphs, by label, or None.
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
    features: FeatureTable | None = None

    def __post_init__(self) -> None:
        check_choice("mode", self.mode, MODES)
        self.train.validate_ids()
        self.inference.validate_ids()
        num_nodes = self.inference.num_nodes
        for key in ("boundary_mask", "boundary_source"):
            value = getattr(self, key)
            if value.shape != (num_nodes,):
                raise DataError(
                    f"'{key}' must have shape [{num_nodes}], the number of entities of the "
                    f"inference graph (got {list(value.shape)})"
                )
        if self.boundary_mask.dtype != torch.bool:
            raise DataError(f"'boundary_mask' must be boolean (got {self.boundary_mask.dtype})")
        if bool(((self.boundary_source >= 0) != self.boundary_mask).any()):
            raise DataError(
                "'boundary_source' must be a training id where 'boundary_mask' is true, else -1"
            )
        if bool((self.boundary_source >= self.train.num_nodes).any()):
            raise DataError(
                f"'boundary_source' must be below the number of training entities, "
                f"{self.train.num_nodes} (got {int(self.boundary_source.max())})"
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
        r"""Returns a summary of the graphs and the triples to predict, with all notes."""
        report, free = self.report, int((~self.boundary_mask).sum())
        entities = (
            f"{count_noun(self.inference.num_nodes or 0, 'entity')}, {free:,} of them new"
            if self.mode == "semi-inductive"
            else f"{count_noun(free, 'entity')}, all of them new"
        )
        held = "" if self.train_valid is None else f", {len(self.train_valid):,} validation triples"
        valid, test = (0 if part is None else len(part) for part in (self.valid, self.test))
        lines = [
            f"{self.name} ({self.mode}: {_MEANING[self.mode]})",
            f"  training graph: {count_noun(self.train.num_nodes or 0, 'entity')}, "
            f"{count_noun(self.num_relations, 'relation')}, "
            f"{count_noun(self.train.num_edges, 'triple')}{held}",
            f"  inference graph: {entities}, {count_noun(self.inference.num_edges, 'triple')}",
            f"  to predict: {count_noun(valid, 'validation triple')}, "
            f"{count_noun(test, 'test triple')}",
        ]
        unanchored = report.get("components_without_boundary", 0)
        if self.mode == "semi-inductive" and unanchored:
            lines.append(
                f"  note: {unanchored:,} of {count_noun(report['components'], 'component')} of the "
                "inference graph have no known entity"
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


def renumber(data: InductiveData, entities: Vocabulary, relations: Vocabulary) -> InductiveData:
    r"""Renumbers the data with the ids of a trained model.

    Ids follow the order in which labels first appear in a file. The same triples in another order
    get other ids, while the rows of a trained model are fixed.

    Args:
        data: The data.
        entities: The entities of the model, in the order of its rows.
        relations: The relations of the model, in the order of its rows.

    Raises:
        DataError: If the labels of the training graph differ from those of the model.
    """
    own_entities, own_relations = data.train.entities, data.train.relations
    assert own_entities is not None
    assert own_relations is not None
    if own_entities == entities and own_relations == relations:
        return data
    entity_id = _places(data.name, own_entities, entities)
    relation_id = _places(data.name, own_relations, relations)
    inference_labels = data.inference.entities
    assert inference_labels is not None
    if data.mode == "semi-inductive":
        inference_entities = entities.extend(inference_labels)
        inference_id = inference_entities.lookup(inference_labels)
    else:
        inference_entities = inference_labels
        inference_id = torch.arange(len(inference_labels))
    old_row = inference_id.argsort()
    source = data.boundary_source[old_row]
    source = torch.where(source >= 0, entity_id[source.clamp_min(0)], source)

    def renumber(triples: Tensor | None, ids: Tensor) -> Tensor | None:
        if triples is None:
            return None
        head, relation, tail = triples.unbind(1)
        return torch.stack([ids[head], relation_id[relation], ids[tail]], dim=1)

    def graph(old: KnowledgeGraph, ids: Tensor, labels: Vocabulary) -> KnowledgeGraph:
        triples = renumber(old.triples, ids)
        assert triples is not None
        return KnowledgeGraph.from_triples(triples, entities=labels, relations=relations)

    return replace(
        data,
        train=graph(data.train, entity_id, entities),
        train_valid=renumber(data.train_valid, entity_id),
        inference=graph(data.inference, inference_id, inference_entities),
        boundary_mask=data.boundary_mask[old_row],
        boundary_source=source,
        valid=renumber(data.valid, inference_id),
        test=renumber(data.test, inference_id),
    )


def add_features(data: InductiveData, features: FeatureTable) -> InductiveData:
    r"""Adds features of the entities, and a note with the number of entities that have some.

    Raises:
        DataError: If fewer than three training entities have features.
    """
    counts = []
    for graph, part in ((data.train, "training"), (data.inference, "inference")):
        assert graph.entities is not None
        found = int((features.lookup(graph.entities.labels) >= 0).sum())
        counts.append(found)
        if not found and part == "training":
            raise DataError(
                f"{features.source}: none of its {count_noun(len(features), 'label')} occurs in "
                f"the training graph (a label there: {quote(graph.entities.labels[0])}, here: "
                f"{quote(features.labels[0]) if len(features) else 'none'})"
            )
        columns = features.select(graph.entities.labels).columns
        known = int(np.logical_or.reduce([column.present() for column in columns]).sum())
        if known < FEWEST and part == "training":
            raise DataError(
                f"{features.source}: at least {FEWEST} training entities must have features (got "
                f"{known}; a label there: {quote(features.labels[0])})"
            )
    train, inference = counts
    note = (
        f"{features.source}: features of {train:,} of {data.train.num_nodes:,} training entities "
        f"and {inference:,} of {data.inference.num_nodes:,} of the inference graph"
    )
    report = data.report | {"notes": [*data.report.get("notes", []), note]}
    return replace(data, features=features, report=report)


def triple_set_keys(data: InductiveData) -> dict[str, str]:
    r"""Returns a hash of each set of triples.

    A hash depends only on the set of label triples, not on the order of lines, duplicates or the
    path of a file. Missing sets have none.
    """
    sets = {
        "train": (data.train.triples, data.train.entities),
        "train_valid": (data.train_valid, data.train.entities),
        "inference": (data.inference.triples, data.inference.entities),
        "valid": (data.valid, data.inference.entities),
        "test": (data.test, data.inference.entities),
    }
    assert data.train.relations is not None
    relation_keys = label_keys(data.train.relations.labels)
    keys: dict[str, str] = {"mode": data.mode}
    for name, (triples, entities) in sets.items():
        if triples is None:
            continue
        assert entities is not None
        entity_keys = label_keys(entities.labels)
        head, relation, tail = np.unique(triples.cpu().numpy(), axis=0).T
        words = combine_keys(entity_keys[head], relation_keys[relation], entity_keys[tail])
        # Sums of 64-bit words wrap around and do not depend on the order.
        keys[name] = f"{int(words.sum(dtype=np.uint64)):016x}"
    return keys


def _places(name: str, labels: Vocabulary, wanted: Vocabulary) -> Tensor:
    """Returns the ids of labels in another vocabulary, which must have the same labels."""
    ids = wanted.lookup(labels)
    known = set(labels)
    extra = [label for label, place in zip(labels, ids.tolist(), strict=True) if place < 0]
    missing = [label for label in wanted if label not in known]
    if extra or missing:
        found = count_noun(len(extra), "label") + " unknown to the model"
        found += f" (first: {quote(extra[0])})" if extra else ""
        lacking = f"{count_noun(len(missing), 'label')} of the model missing"
        lacking += f" (first: {quote(missing[0])})" if missing else ""
        raise DataError(
            f"the {len(wanted)} {wanted.kind} of the model must be the {len(labels)} {wanted.kind} "
            f"of the training graph ({name}): {found}, {lacking}; give the data that the model was "
            "trained on with --data.root"
        )
    return ids
