"""Data sets in the ids of a model, and keys by which a data set is known again."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from sheafprop.checks import count_noun, quote
from sheafprop.data.inductive_data import InductiveData
from sheafprop.data.knowledge_graph import KnowledgeGraph
from sheafprop.data.vocabulary import Vocabulary
from sheafprop.errors import DataError
from sheafprop.seeding import combine_keys, label_keys

__all__ = ["renumber", "triple_set_keys"]


def renumber(data: InductiveData, entities: Vocabulary, relations: Vocabulary) -> InductiveData:
    r"""Returns the same data with the ids that a model was trained with.

    Ids follow the order in which labels first appear in a file, so the same triples in another
    order get other ids, while the rows of a trained model stay where they are.

    Args:
        data: The data.
        entities: The labels of the model's entities, in the order of its rows.
        relations: The labels of its relations, likewise.

    Raises:
        DataError: If the labels of the training graph are not those of the model.
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

    def mapped(triples: Tensor | None, ids: Tensor) -> Tensor | None:
        if triples is None:
            return None
        head, relation, tail = triples.unbind(1)
        return torch.stack([ids[head], relation_id[relation], ids[tail]], dim=1)

    def graph(old: KnowledgeGraph, ids: Tensor, labels: Vocabulary) -> KnowledgeGraph:
        triples = mapped(old.triples, ids)
        assert triples is not None
        return KnowledgeGraph.from_triples(triples, entities=labels, relations=relations)

    return replace(
        data,
        train=graph(data.train, entity_id, entities),
        train_valid=mapped(data.train_valid, entity_id),
        inference=graph(data.inference, inference_id, inference_entities),
        boundary_mask=data.boundary_mask[old_row],
        boundary_source=source,
        valid=mapped(data.valid, inference_id),
        test=mapped(data.test, inference_id),
    )


def triple_set_keys(data: InductiveData) -> dict[str, str]:
    r"""Returns a key for each set of triples, by which it is known again.

    A key depends on the set of label triples alone: not on the order of lines, on repeated ones, or
    on the place of a file. Sets that are missing have no key.
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
        # Sums of 64-bit words wrap around, and no order matters to them.
        keys[name] = f"{int(words.sum(dtype=np.uint64)):016x}"
    return keys


def _places(name: str, labels: Vocabulary, wanted: Vocabulary) -> Tensor:
    """The id that each of the labels has among those that are wanted, which are the same ones."""
    ids = wanted.lookup(labels)
    known = set(labels)
    extra = [label for label, place in zip(labels, ids.tolist(), strict=True) if place < 0]
    missing = [label for label in wanted if label not in known]
    if extra or missing:
        found = count_noun(len(extra), "label") + " it does not know"
        found += f" (first: {quote(extra[0])})" if extra else ""
        lacking = f"{count_noun(len(missing), 'label')} of its own missing"
        lacking += f" (first: {quote(missing[0])})" if missing else ""
        raise DataError(
            f"the model was trained on {len(wanted)} {wanted.kind} that are not the {len(labels)} "
            f"of this training graph ({name}): {found}, {lacking}; give the data that it was "
            "trained on, with --data.root"
        )
    return ids
