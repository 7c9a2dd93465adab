"""How often entities are observed as answers, and how frequent they are estimated to be."""

import torch
from torch import Tensor

from sheafprop.kge.base import Side
from sheafprop.ranking.triple_filter import GroupedValues


class AnswerCounts:
    r"""How often each entity is an observed answer of each relation and of its inverse.

    Queries :math:`q` are relations, whose answers are tails, and then their inverses, whose answers
    are heads.

    Args:
        triples (Tensor): The observed triples, ``[m, 3]``.
        num_nodes (int): Number of entities :math:`N`.
        num_relations (int): Number of relations :math:`R`.
    """

    def __init__(self, triples: Tensor, num_nodes: int, num_relations: int):
        self.num_nodes, self.num_relations = num_nodes, num_relations
        head, relation, tail = triples.unbind(1)
        query = torch.cat([relation, relation + num_relations])
        answer = torch.cat([tail, head])
        self._code, self.number = torch.unique(query * num_nodes + answer, return_counts=True)
        #: Each pair of a query and an answer of it, once, ``[p]``, and how often it was observed.
        self.query, self.answer = self._code // num_nodes, self._code % num_nodes
        self._answers = GroupedValues(self.query, self.answer)

    def of(self, query: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the observed answers of queries, each once: its row, the entity, and how often.

        Args:
            query (Tensor): The queries, ``[n]``.
        """
        row, entity = self._answers(query)
        place = torch.searchsorted(self._code, query[row] * self.num_nodes + entity)
        return row, entity, self.number[place]

    def log_frequency(self, query: Tensor, dtype: torch.dtype) -> Tensor:
        r"""Returns :math:`\log(N \hat p_q(v))` of queries and all entities, ``[n, N]``.

        Of the :math:`T` observed triples of :math:`q`, :math:`n_v` have the answer :math:`v`. Of
        the :math:`K` entities observed there, :math:`K_1` occur once. By the Good-Turing estimate,
        an answer is one of the other entities with probability :math:`u = (K_1 + 1/2) / (T + 1)`:

        .. math::
            \hat p_q(v) = (1 - u) \, n_v / T \quad \text{if } n_v > 0, \qquad
            \hat p_q(v) = u / (N - K) \quad \text{otherwise,}

        and :math:`\hat p_q(v) = 1 / N` if :math:`T = 0`; if :math:`K = N`, these sum to
        :math:`1 - u`.

        Reference: Good, "The Population Frequencies of Species and the Estimation of Population
            Parameters", Biometrika, 1953.

        Args:
            query (Tensor): The queries, ``[n]``.
            dtype (torch.dtype): The type of the result.
        """
        row, entity, count = self.of(query)
        number = count.to(dtype)
        zeros = number.new_zeros(len(query))
        total = zeros.index_add(0, row, number)
        once = zeros.index_add(0, row, (count == 1).to(dtype))
        others = self.num_nodes - zeros.index_add(0, row, torch.ones_like(number))
        new = (once + 0.5) / (total + 1)
        every = torch.where(total > 0, self.num_nodes * new / others.clamp_min(1), 1).log()
        table = every.unsqueeze(1).repeat(1, self.num_nodes)
        table[row, entity] = (self.num_nodes * (1 - new[row]) * number / total[row]).log()
        return table

    def __call__(self, relation: Tensor, side: Side) -> Tensor:
        """Returns :meth:`log_frequency` of queries, ``[B, N]``, in the default dtype.

        Args:
            relation (Tensor): The relations, ``[B]``.
            side (str): The side of the answers, ``"tail"`` or ``"head"``.
        """
        unique, place = torch.unique(relation, return_inverse=True)
        query = unique if side == "tail" else unique + self.num_relations
        return self.log_frequency(query, torch.get_default_dtype())[place]
