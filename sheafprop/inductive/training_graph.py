"""Uses the training graph as an inference graph, with some of its entities treated as new."""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from sheafprop.data.inductive_data import InductiveData
from sheafprop.data.knowledge_graph import KnowledgeGraph
from sheafprop.data.splits import disjoint_split, hold_out_mask, semi_inductive_split

#: Share of the training triples that are held out where there are no transductive validation
#: triples, and of those of new entities.
_HELD_OUT = {"fully-inductive": 0.1, "semi-inductive": 0.2}
#: Bounds of the share of the training entities taken as new, which is that of the inference graph.
_SHARES = (0.1, 0.5)
#: Transductive validation triples of new entities that are enough to choose by.
_ENOUGH = 200


def training_graph_as_new(data: InductiveData, *, seed: int = 0) -> InductiveData:
    r"""Uses the training graph as the inference graph, to select settings.

    Nothing of the inference graph is used except the fraction of its entities that are new.

    In the mode ``"fully-inductive"``, all training entities are treated as new, and the
    transductive validation triples are predicted. In the mode ``"semi-inductive"``, a random sample
    of the training entities is treated as new, the others are the boundary, and the transductive
    validation triples of new entities are predicted; the others are only used to filter. If there
    are no such triples (or, in the second mode, few), training triples (of new entities) are held
    out instead and removed from the graphs.

    Args:
        data (InductiveData): The data of a run.
        seed (int): Random seed.

    Raises:
        DataError: If the training graph is too small to be split.
    """
    count, triples = data.train.num_nodes or 0, data.train.triples
    new = torch.ones(count, dtype=torch.bool)
    old = held = torch.zeros(len(triples), dtype=torch.bool)
    valid, others = data.train_valid, None
    if data.mode == "semi-inductive":
        share = 1 - float(data.boundary_mask.float().mean())
        split = semi_inductive_split(
            triples,
            count,
            new_fraction=min(max(share, _SHARES[0]), _SHARES[1]),
            observed_fraction=1 - _HELD_OUT[data.mode],
            valid_fraction=_HELD_OUT[data.mode],
            seed=seed,
        )
        new, old, held = split.new_entity_mask, split.train_mask, split.valid_mask
        if valid is not None:
            touches = new[valid[:, [0, 2]]].any(dim=1)
            valid, others = valid[touches], valid[~touches]
            if len(valid) < min(_ENOUGH, int(held.sum())):
                valid, others = None, data.train_valid
    elif valid is None:
        held = hold_out_mask(triples, fraction=_HELD_OUT[data.mode], seed=seed)
    if valid is None:
        valid = triples[held]
    else:
        held = torch.zeros_like(held)
    ids = torch.arange(count)
    return replace(
        data,
        name=f"{data.name}, training graph",
        train=_part(data.train, old if data.mode == "semi-inductive" else ~held),
        train_valid=None,
        inference=_part(data.train, ~held),
        boundary_mask=~new,
        boundary_source=torch.where(new, -1, ids),
        valid=valid,
        test=others,
        report={},
    )


class TrainingParts(NamedTuple):
    """Two parts of a training graph without a common entity, each with ids from 0 on.

    Args:
        part (Tensor): Triples to train on, ``[m, 3]``.
        part_entities (Tensor): Ids of its entities in the training graph.
        other (Tensor): Triples of the other part, to evaluate on.
        other_entities (Tensor): Ids of its entities in the training graph.
    """

    part: Tensor
    part_entities: Tensor
    other: Tensor
    other_entities: Tensor


def split_training_triples(triples: Tensor, num_nodes: int, *, seed: int = 0) -> TrainingParts:
    """Splits a training graph as :func:`~sheafprop.data.splits` does.

    Args:
        triples (Tensor): The training triples ``[m, 3]``.
        num_nodes (int): Number of entities.
        seed (int): Random seed.

    Raises:
        DataError: If the graph is too small to be split.
    """
    split = disjoint_split(triples, num_nodes, seed=seed)
    part, part_entities = _renumber(triples[split.train_mask])
    other, other_entities = _renumber(triples[split.new_mask])
    return TrainingParts(part, part_entities, other, other_entities)


def _renumber(triples: Tensor) -> tuple[Tensor, Tensor]:
    """Renumbers the entities of triples from 0 on; also returns their old ids."""
    entities, ids = torch.unique(triples[:, [0, 2]], return_inverse=True)
    return torch.stack([ids[:, 0], triples[:, 1], ids[:, 1]], dim=1), entities


def draw_triples(triples: Tensor, count: int, seed: int = 0) -> Tensor:
    """Samples triples without changing their order."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(triples), generator=generator)
    return triples[order[:count].sort().values.to(triples.device)]


def _part(graph: KnowledgeGraph, mask: Tensor) -> KnowledgeGraph:
    """Returns the graph with a subset of its triples and all entities and relations."""
    if bool(mask.all()):
        return graph
    return KnowledgeGraph.from_triples(
        graph.triples[mask],
        num_nodes=graph.num_nodes,
        num_relations=graph.num_relations,
        entities=graph.entities,
        relations=graph.relations,
    )
