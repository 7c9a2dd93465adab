import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sheafprop.kge.base import KGEModel, Side, fill_
from sheafprop.kge.distance import BLOCK_ELEMENTS, full_precision, pairwise_distance
from sheafprop.sheaf import DenseSheaf


class DenseKGEModel(KGEModel):
    r"""An abstract base class of models whose restriction maps are matrices.

    Rows are grouped by relation, and a relation's map is applied to its rows, or to all candidates,
    by one matrix product. No tensor of triples x map or of triples x candidates x width is formed.
    """

    @abstractmethod
    def _maps(self, side: Side) -> Tensor:
        """The restriction maps of heads or of tails, of shape [R, k, d]."""

    def _translations(self) -> Tensor | None:
        """The translations, of shape [R, k]."""
        return None

    def sheaf(self) -> DenseSheaf:
        return DenseSheaf(
            head=self._maps("head"), tail=self._maps("tail"), translation=self._translations()
        )

    def _residual(self, heads: Tensor, rel_type: Tensor, tails: Tensor) -> Tensor:
        return self._shifted(self._mapped(heads, rel_type, "head"), rel_type, 1) - self._mapped(
            tails, rel_type, "tail"
        )

    def _distances(self, known: Tensor, rel_type: Tensor, rows: Tensor, side: Side) -> Tensor:
        if rel_type.numel() == 0:
            return known.new_zeros(0, rows.size(0))
        queries = self._mapped(known, rel_type, "head" if side == "tail" else "tail")
        queries = self._shifted(queries, rel_type, 1 if side == "tail" else -1)
        order, relations, counts = _groups(rel_type)

        def distance(queries: Tensor, mapped: Tensor) -> Tensor:
            return pairwise_distance(queries, mapped, p=self.p, squared=self.squared, paired=False)

        return _GroupedDistance.apply(
            distance, order.split(counts), queries, rows, self._maps(side)[relations]
        )

    def _chunk_size(self, rows: Tensor) -> int:
        widest = max(self._maps("head").size(1), self.hidden_channels)
        return max(1, BLOCK_ELEMENTS // (rows.size(1) * widest))

    def _mapped(self, rows: Tensor, rel_type: Tensor, side: Side) -> Tensor:
        maps = self._maps(side)
        if rel_type.numel() == 0:
            return rows.new_zeros(0, rows.size(1), maps.size(1))
        order, relations, counts = _groups(rel_type)
        blocks = zip(rows[order].split(counts), maps[relations].unbind(0), strict=True)
        mapped = torch.cat([block @ weight.t() for block, weight in blocks])
        return mapped.index_select(0, _inverse(order))

    def _shifted(self, mapped: Tensor, rel_type: Tensor, sign: int) -> Tensor:
        translation = self._translations()
        if translation is None:
            return mapped
        return mapped.add(translation[rel_type].unsqueeze(1), alpha=sign)


class _GroupedDistance(torch.autograd.Function):
    """Distances of the queries of each relation to the candidates under the map of that relation.

    Mapped candidates live for one relation at a time; the backward pass maps them again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        distance: Callable[[Tensor, Tensor], Tensor],
        groups: tuple[Tensor, ...],
        queries: Tensor,
        rows: Tensor,
        maps: Tensor,
    ) -> Tensor:
        out = queries.new_empty(queries.size(0), rows.size(0))
        for index, weight in zip(groups, maps, strict=True):
            out[index] = distance(queries[index], rows @ weight.t())
        ctx.distance, ctx.groups = distance, groups
        ctx.save_for_backward(queries, rows, maps)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        queries, rows, maps = ctx.saved_tensors
        grad_queries, grad_maps = torch.empty_like(queries), torch.empty_like(maps)
        grad_rows = torch.zeros_like(rows, memory_format=torch.contiguous_format)
        with full_precision(grad):
            for i, (index, weight) in enumerate(zip(ctx.groups, maps, strict=True)):
                ends = queries[index], rows @ weight.t()
                with torch.enable_grad():
                    out = ctx.distance(*(end.requires_grad_() for end in ends))
                grad_queries[index], grad_mapped = torch.autograd.grad(out, ends, grad[index])
                grad_mapped = grad_mapped.flatten(0, 1)
                if ctx.needs_input_grad[3]:
                    grad_rows.flatten(0, 1).addmm_(grad_mapped, weight)
                torch.mm(grad_mapped.t(), rows.flatten(0, 1), out=grad_maps[i])
        return None, None, grad_queries, grad_rows if ctx.needs_input_grad[3] else None, grad_maps


def _groups(rel_type: Tensor) -> tuple[Tensor, Tensor, list[int]]:
    ordered, order = rel_type.sort(stable=True)
    relations, counts = ordered.unique_consecutive(return_counts=True)
    return order, relations, counts.tolist()


def _inverse(order: Tensor) -> Tensor:
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(order.numel(), device=order.device)
    return inverse


def near_identity(parameter: Tensor, noise: float, generator: torch.Generator | None) -> None:
    r"""Draws maps around the identity, with Gaussian noise of variance noise^2 / d per entry."""
    draw = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    eye = torch.eye(parameter.size(1), parameter.size(2), dtype=torch.float64)
    fill_(parameter, eye + draw * (noise / math.sqrt(parameter.size(2))))
