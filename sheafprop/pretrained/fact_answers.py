"""The facts of a model as queries ask for them, looked up where they are."""

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from sheafprop.kge.base import Side
from sheafprop.pretrained.fact_index import FactIndex
from sheafprop.query import GraphExecutor


class FactAnswers:
    """What facts lead to by entity and relation, for :class:`~sheafprop.query.LinkProbabilities`.

    Args:
        facts (FactIndex): The facts.
    """

    def __init__(self, facts: FactIndex):
        self._facts = facts

    def tails(self, head_index: Tensor, rel_type: Tensor) -> tuple[Tensor, Tensor]:
        """Distinct pairs of a position and a tail, by position."""
        return self._distinct("tail", head_index, rel_type)

    def heads(self, rel_type: Tensor, tail_index: Tensor) -> tuple[Tensor, Tensor]:
        """Distinct pairs of a position and a head, by position."""
        return self._distinct("head", tail_index, rel_type)

    def _distinct(self, side: Side, entity: Tensor, relation: Tensor) -> tuple[Tensor, Tensor]:
        pairs = torch.stack(self._facts.answers(side, entity, relation), dim=1)
        row, found = torch.unique(pairs, dim=0).unbind(1)
        return row, found


class FactExecutor(GraphExecutor):
    """The answers to queries that follow from a model's facts alone.

    Args:
        facts (FactIndex): The facts.
        num_entities (int): The number of entities.
        num_relations (int): The number of relations.
    """

    def __init__(self, facts: FactIndex, num_entities: int, num_relations: int):
        self.num_entities, self.num_relations = num_entities, num_relations
        self.domain = np.arange(num_entities, dtype=np.int32)
        self._facts = facts

    def _walk(
        self, row: NDArray, relation: NDArray[np.int64], source: NDArray, count: int
    ) -> csr_array:
        place, target = _walk(self._facts, self.num_relations, source, relation)
        entries = np.ones(len(target), dtype=bool), (row[place], target)
        return csr_array(entries, shape=(count, self.num_entities))

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len(self._facts)} triples, num_entities={self.num_entities}, "
            f"num_relations={self.num_relations})"
        )


def _walk(
    facts: FactIndex, num_relations: int, sources: NDArray, relations: NDArray
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions of sources, and where the relation of each, below :math:`2R`, leads to."""
    ids = torch.from_numpy(sources.astype(np.int64))
    inverse = torch.from_numpy(relations >= num_relations)
    kinds = torch.from_numpy(relations.astype(np.int64)) % num_relations
    places, targets = [], []
    sides: tuple[tuple[Side, bool], ...] = (("tail", False), ("head", True))
    for side, is_inverse in sides:
        own = (inverse == is_inverse).nonzero().flatten()
        place, target = facts.answers(side, ids[own], kinds[own])
        places.append(own[place])
        targets.append(target)
    return torch.cat(places).numpy(), torch.cat(targets).numpy()
