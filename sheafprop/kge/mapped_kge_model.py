from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sheafprop.kernels.mapped_rows import groups
from sheafprop.kernels.threads import run_chunks
from sheafprop.kge.base import KGEModel, Side
from sheafprop.kge.distance import BLOCK_ELEMENTS, full_precision, pairwise_distance, row_distance

Mapping = Callable[[Tensor, Tensor], Tensor]

# Fewer numbers than this in the candidates of a relation are mapped on one thread.
_FEW_NUMBERS = 2**22


class MappedKGEModel(KGEModel):
    r"""An abstract base class of models whose relations map the candidates too.

    Queries are grouped by relation, and all candidates are mapped once for each relation. No tensor
    of triples x candidates x width is formed.
    """

    @abstractmethod
    def _maps(self, side: Side) -> Tensor:
        """The parameters of the restriction maps of heads or of tails, of shape [R, ...]."""

    @abstractmethod
    def _apply_map(self, rows: Tensor, weight: Tensor) -> Tensor:
        """One map, of parameters `weight`, applied to rows [C, s, d]."""

    @abstractmethod
    def _mapped(self, rows: Tensor, rel_type: Tensor, side: Side) -> Tensor:
        """Each row of [B, s, d] under the map of its own relation."""

    def _translations(self) -> Tensor | None:
        """The translations, of shape [R, k]."""
        return None

    def _residual(self, heads: Tensor, rel_type: Tensor, tails: Tensor) -> Tensor:
        return self._shifted(self._mapped(heads, rel_type, "head"), rel_type, 1) - self._mapped(
            tails, rel_type, "tail"
        )

    def _distances(self, known: Tensor, rel_type: Tensor, rows: Tensor, side: Side) -> Tensor:
        if rel_type.numel() == 0:
            return known.new_zeros(0, rows.size(0))
        queries = self._queries(known, rel_type, side)
        order, relations, counts = groups(rel_type)

        def distance(queries: Tensor, mapped: Tensor) -> Tensor:
            return pairwise_distance(queries, mapped, p=self.p, squared=self.squared, paired=False)

        return _GroupedDistance.apply(
            distance,
            self._apply_map,
            order.split(counts),
            queries,
            rows,
            self._maps(side)[relations],
        )

    def _queries(self, known: Tensor, rel_type: Tensor, side: Side) -> Tensor:
        """What the mapped candidates at a side are compared with, of shape [B, s, k]."""
        mapped = self._mapped(known, rel_type, "head" if side == "tail" else "tail")
        return self._shifted(mapped, rel_type, 1 if side == "tail" else -1)

    def score_replaced(self, x: Tensor, triples: Tensor, entity: Tensor, at_head: Tensor) -> Tensor:
        rows, (head_index, rel_type, tail_index) = self._rows(x), triples.unbind(1)
        place = {"head": at_head.nonzero(as_tuple=True), "tail": (~at_head).nonzero(as_tuple=True)}
        known: dict[str, Tensor] = {}
        put: dict[str, Tensor] = {}
        ends: list[tuple[Side, Tensor]] = [("head", head_index), ("tail", tail_index)]
        with full_precision(x):
            # What a map is applied to goes through it at once, the ends that stay only once.
            for side, index in ends:
                triple = place[side][0]
                mapped = self._mapped(
                    rows.index_select(0, torch.cat([index, entity[place[side]]])),
                    torch.cat([rel_type, rel_type[triple]]),
                    side,
                )
                known[side], put[side] = mapped.split([index.numel(), triple.numel()])
            distance = rows.new_zeros(entity.shape)
            for side, other, sign in (("head", "tail", -1), ("tail", "head", 1)):
                query = self._shifted(known[other], rel_type, sign)
                residual = query.index_select(0, place[side][0]) - put[side]
                found = row_distance(residual, p=self.p, squared=self.squared, paired=False)
                distance = distance.index_put(place[side], found.sum(1))
        return -distance

    def _chunk_size(self, rows: Tensor) -> int:
        return max(1, BLOCK_ELEMENTS // (rows.size(1) * self.hidden_channels))

    def _shifted(self, mapped: Tensor, rel_type: Tensor, sign: int) -> Tensor:
        translation = self._translations()
        if translation is None:
            return mapped
        return mapped.add(translation[rel_type].unsqueeze(1), alpha=sign)


class _GroupedDistance(torch.autograd.Function):
    """Distances of the queries of each relation to the candidates under the map of that relation.

    Mapped candidates live for one relation at a time (where they are few, for one on each thread);
    the backward pass maps them again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        distance: Mapping,
        mapping: Mapping,
        groups: tuple[Tensor, ...],
        queries: Tensor,
        rows: Tensor,
        maps: Tensor,
    ) -> Tensor:
        out = queries.new_empty(queries.size(0), rows.size(0))

        def measure(group: tuple[Tensor, Tensor]) -> None:
            index, weight = group
            out[index] = distance(queries[index], mapping(rows, weight))

        # Large products share their work themselves, and need the memory of one relation.
        small = rows.device.type == "cpu" and rows.numel() < _FEW_NUMBERS
        run_chunks(measure, list(zip(groups, maps, strict=True)), None if small else 0)
        ctx.distance, ctx.mapping, ctx.groups = distance, mapping, groups
        ctx.save_for_backward(queries, rows, maps)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        queries, rows, maps = ctx.saved_tensors
        need_rows = ctx.needs_input_grad[4]
        grad_queries, grad_maps = torch.empty_like(queries), torch.empty_like(maps)
        grad_rows = torch.zeros_like(rows) if need_rows else None
        rows = rows.detach().requires_grad_(need_rows)
        with full_precision(grad):
            for i, index in enumerate(ctx.groups):
                query, weight = queries[index].requires_grad_(), maps[i].clone().requires_grad_()
                with torch.enable_grad():
                    out = ctx.distance(query, ctx.mapping(rows, weight))
                wanted = (query, weight, rows) if need_rows else (query, weight)
                grad_queries[index], grad_maps[i], *rest = torch.autograd.grad(
                    out, wanted, grad[index]
                )
                if grad_rows is not None:
                    grad_rows += rest[0]
        return None, None, None, grad_queries, grad_rows, grad_maps
