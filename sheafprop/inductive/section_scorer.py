from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from sheafprop.data.finite_rows import name_nonfinite_rows
from sheafprop.kge.base import KGEModel, Side


class KnownRows(NamedTuple):
    """Vectors of entities that are the same in every section.

    Args:
        table (Tensor): Trained vectors, ``[M, d]``.
        source (Tensor): The row of each known entity, in the order of their numbers.
        mask (Tensor): Which entities are known, bool ``[N]``.
    """

    table: Tensor
    source: Tensor
    mask: Tensor

    @classmethod
    def select(cls, table: Tensor, source: Tensor, mask: Tensor) -> "KnownRows":
        """Leaves the table as it is where most of its rows are known entities; else copies them."""
        if 2 * len(source) < len(table):
            table, source = table[source], torch.arange(len(source), device=source.device)
        return cls(table, source, mask)

    def join(self, free: Tensor) -> Tensor:
        """All vectors ``[N, s, d]``, with those of the free entities ``[n, s, d]``."""
        x = free.new_empty(len(self.mask), *free.shape[1:])
        x[self.mask] = self.table[self.source].unsqueeze(1).to(free)
        x[~self.mask] = free
        return x


class SectionScorer:
    r"""Scores triples by the weighted sum, over sections, of a model's own scores.

    .. math::
        f(h, r, t) = \sum_{i=1}^{s} a_i \, f_{\text{model}} \left( x_h^{(i)}, r, x_t^{(i)} \right)

    Args:
        model (KGEModel): The model that scores one section.
        x (Tensor): Vectors of all entities, ``[N, s, d]``.
        weight (sequence of float): :math:`a_i > 0`, one for each section.
        labels (sequence of str, optional): The labels of the entities, for messages.
        known (KnownRows, optional): Entities with one vector for all sections; ``x`` then holds
            the vectors of the other entities alone, in their order.

    Raises:
        ValueError: If weights and sections differ in number, or a vector is not finite (the first
            such entity is named).
    """

    def __init__(
        self,
        model: KGEModel,
        x: Tensor,
        weight: Sequence[float],
        labels: Sequence[str] | None = None,
        known: KnownRows | None = None,
    ):
        if x.dim() != 3 or x.shape[1] != len(weight):
            raise ValueError(
                f"'x' must be [N, s, d] with a weight for each section (got {list(x.shape)} and "
                f"{len(weight)} weights)"
            )
        self.model, self.known, self._total = model, known, sum(weight)
        ids = None if known is None else (~known.mask).nonzero().flatten()
        numbers = _Numbers() if labels is None else labels
        if named := name_nonfinite_rows(x, numbers, ids=ids):
            raise ValueError(
                f"the vector of {named} is not finite, so no score would mean anything"
            )
        # Sections of one weight are scored together, in one matrix product.
        self._groups: list[tuple[float, Tensor]] = []
        start = 0
        for value, members in groupby(weight):
            size = len(list(members))
            self._groups.append((value, x[:, start : start + size].contiguous()))
            start += size
        if known is not None:
            # Rows of x and of the table by the numbers of entities.
            self._row = torch.where(
                known.mask, torch.cumsum(known.mask, 0), torch.cumsum(~known.mask, 0)
            ).sub_(1)

    def score_tails(self, head_index: Tensor, rel_type: Tensor) -> Tensor:
        """Scores ``[B, N]`` of all tails for heads ``head_index`` and relations ``rel_type``."""
        if self.known is not None:
            return self._score_around(self.known, head_index, rel_type, "tail")
        return self._sum(lambda x: self.model.score_tails(x, head_index, rel_type))

    def score_heads(self, rel_type: Tensor, tail_index: Tensor) -> Tensor:
        """Scores ``[B, N]`` of all heads for relations ``rel_type`` and tails ``tail_index``."""
        if self.known is not None:
            return self._score_around(self.known, tail_index, rel_type, "head")
        return self._sum(lambda x: self.model.score_heads(x, rel_type, tail_index))

    def _score_around(
        self, known: KnownRows, entity: Tensor, rel_type: Tensor, side: Side
    ) -> Tensor:
        """Scores ``[B, N]`` of all candidates at a side, where known ones have one vector."""
        out = known.table.real.new_empty(len(entity), len(known.mask))
        queries_known = known.mask[entity]
        for mine, score in (
            (queries_known, self._score_from_known),
            (~queries_known, self._score_from_free),
        ):
            if bool(mine.any()):
                of_known, of_free = score(known, self._row[entity[mine]], rel_type[mine], side)
                part = out.new_empty(len(of_known), out.shape[1])
                part[:, known.mask] = of_known[:, known.source]
                part[:, ~known.mask] = of_free
                out[mine] = part
        return out

    def _score_from_known(
        self, known: KnownRows, row: Tensor, rel_type: Tensor, side: Side
    ) -> tuple[Tensor, Tensor]:
        """Scores of the table's rows and of free entities, for queries of known entities."""
        score, query = self.model.score_candidates, known.table[known.source[row]]
        of_free = self._sum(
            lambda x: score(query.unsqueeze(1).expand(-1, x.shape[1], -1), rel_type, x, side)
        )
        return score(query, rel_type, known.table, side) * self._total, of_free

    def _score_from_free(
        self, known: KnownRows, row: Tensor, rel_type: Tensor, side: Side
    ) -> tuple[Tensor, Tensor]:
        """The same for queries of free entities: the table meets their sections one by one."""
        score = self.model.score_candidates
        of_known = known.table.real.new_zeros(len(row), len(known.table))
        for value, x in self._groups:
            for query in x[row].unbind(1):
                of_known.add_(score(query, rel_type, known.table, side), alpha=value)
        return of_known, self._sum(lambda x: score(x[row], rel_type, x, side))

    def _sum(self, score: Callable[[Tensor], Tensor]) -> Tensor:
        total: Tensor | None = None
        for value, x in self._groups:
            part = score(x) * value
            total = part if total is None else total + part
        assert total is not None
        return total


class _Numbers:
    """Names entities by their numbers."""

    def __getitem__(self, number: int, /) -> str:
        return str(number)
