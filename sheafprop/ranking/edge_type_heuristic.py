"""A baseline without vectors: entities seen on that side of that relation."""

import torch
from torch import Tensor

from sheafprop.ranking.triple_filter import GroupedValues, check_ids, check_triples

#: The name of the baseline in results and reports.
HEURISTIC = "edge-type heuristic"


class EdgeTypeHeuristic:
    r"""The edge-type heuristic: a candidate scores 1 if it was observed on that side of that
    relation.

    .. math::
        s(h, r, t) = \begin{cases}
            1 & \text{if some observed triple reads } (\cdot, r, t) \\
            0 & \text{otherwise}
        \end{cases}

    for tails, and likewise with :math:`(h, r, \cdot)` for heads. It ignores the query entity, so a
    model that ranks better uses more than types.

    Nearly all scores are tied, so results depend on the tie rule: with mean ranks (:obj:`hits@k`),
    large groups of ties are misses; in random order (:obj:`expected_hits@k`), they are hits with
    some probability. Both conventions are used in publications, and reports show both.

    Args:
        triples (torch.Tensor): The observed triples :math:`(m, 3)`.
        num_nodes (int): The number of entities.
        num_relations (int): The number of relations.

    Shapes:
        - **input:** relation ids :math:`(B)`
        - **output:** scores :math:`(B, N)`
    """

    def __init__(self, triples: Tensor, num_nodes: int, num_relations: int) -> None:
        check_triples(triples, num_nodes, num_relations)
        self.num_nodes = num_nodes
        self.num_relations = num_relations
        head, relation, tail = triples.unbind(1)
        self._ends = GroupedValues(
            torch.cat([relation, relation + num_relations]), torch.cat([tail, head])
        )

    def score_tails(self, head_index: Tensor, rel_type: Tensor) -> Tensor:
        r"""Scores all entities as tails of :obj:`rel_type`; :obj:`head_index` is ignored."""
        return self._score(rel_type, 0)

    def score_heads(self, rel_type: Tensor, tail_index: Tensor) -> Tensor:
        r"""Scores all entities as heads of :obj:`rel_type`; :obj:`tail_index` is ignored."""
        return self._score(rel_type, self.num_relations)

    def is_seen(self, rel_type: Tensor, dtype: torch.dtype = torch.bool) -> Tensor:
        r"""Returns ones :math:`(B, N)` for the entities observed at the end of relations
        :math:`(B)`.

        Args:
            rel_type (Tensor): The relations; ids from :math:`R` on denote inverse relations, which
                end at the heads.
            dtype (torch.dtype): The number type of the result.
        """
        row, entity = self._ends(rel_type.to(self._ends.keys.device))
        table = torch.zeros(rel_type.numel(), self.num_nodes, dtype=dtype, device=rel_type.device)
        table[row.to(table.device), entity.to(table.device)] = 1
        return table

    def _score(self, rel_type: Tensor, shift: int) -> Tensor:
        check_ids(rel_type, self.num_relations, "relation")
        return self.is_seen(rel_type + shift, torch.get_default_dtype())

    def __repr__(self) -> str:
        return (
            f"{self.__class__.__name__}(num_nodes={self.num_nodes}, "
            f"num_relations={self.num_relations})"
        )
