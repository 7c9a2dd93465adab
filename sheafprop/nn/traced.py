"""Propagation as straight-line tensor code, for ``torch.compile`` and ``torch.export``.

Nothing here depends on the values of a tensor: no sorting into groups, no index lists of free
vertices, no checks of ids. Messages go edge by edge; dense maps are gathered for every edge, so
that large ones are better propagated eagerly.
"""

import torch
from torch import Tensor

from sheafprop.kernels.rows import add_rows, take_rows
from sheafprop.sheaf.graph_checks import GraphInput
from sheafprop.sheaf.plan import Normalization
from sheafprop.sheaf.relation_sheaf import Side
from sheafprop.sheaf.vertex_blocks import relative_tolerance


class TracedPropagation:
    r"""The steps of a :class:`~sheafprop.sheaf.PropagationPlan`, free of data-dependent branches.

    Features are ``[..., N, d]`` and boundary rows are part of them.
    """

    def __init__(
        self, graph: GraphInput, num_nodes: int, *, normalization: Normalization, dtype: torch.dtype
    ):
        edge_index, edge_type, sheaf, edge_weight, boundary_mask = graph
        real = torch.zeros((), dtype=dtype).real.dtype
        sheaf = sheaf.promote(dtype)
        head, tail = edge_index[0].long(), edge_index[1].long()
        self._head, self._tail, self._edge_type = head, tail, edge_type.long()
        self._weight = (
            torch.ones(head.shape[0], dtype=real, device=head.device)
            if edge_weight is None
            else edge_weight.to(real)
        )
        self._sheaf, self._num_nodes = sheaf, num_nodes
        self._acts_by_rows = sheaf.independent_columns or sheaf.has_diagonal_blocks
        self._dtype = sheaf.dtype or dtype
        self._translation = sheaf.translation_of(self._edge_type)
        self._free = None if boundary_mask is None else ~boundary_mask.unsqueeze(-1)
        self._blocks: Tensor | None = None
        self._entries: Tensor | None = None
        if normalization == "degree":
            tails, heads = sheaf.end_norms().to(real)[:, None].chunk(2)
            everywhere = torch.zeros_like(head, dtype=torch.bool)
            self._entries = self._sum_ends(tails, heads, None, everywhere)
        elif normalization == "block":
            tails, heads, gap = (
                term.to(torch.promote_types(term.dtype, real)) for term in sheaf.block_terms()
            )
            diagonal = self._sum_ends(tails, heads, gap, head == tail)
            if diagonal.dim() == 2:
                self._entries = diagonal
            else:
                self._blocks = diagonal
        self._invert()

    def step(self, x: Tensor, step_size: float) -> Tensor:
        r"""One explicit Euler step of the free rows, :math:`x_U - h M^+ g_U`."""
        return self.keep_boundary(x, x - step_size * self._precondition(self._gradient(x)))

    def step_with_teleport(
        self, x: Tensor, first: Tensor, step_size: float, teleport: float
    ) -> Tensor:
        r"""A step with a pull of strength :math:`a` back to the first features."""
        if teleport == 0:
            return self.step(x, step_size)
        h = step_size / (1 + teleport)
        # Boundary rows never leave their first value, so nothing pulls them.
        return self.step(x, h) - h * teleport * (x - first)

    def keep_boundary(self, x: Tensor, moved: Tensor) -> Tensor:
        """Free rows of ``moved``, boundary rows of ``x``."""
        return moved if self._free is None else torch.where(self._free, moved, x)

    def _gradient(self, x: Tensor) -> Tensor:
        residual = self._restrict(take_rows(x, -2, self._tail), "tail") - self._restrict(
            take_rows(x, -2, self._head), "head"
        )
        if self._translation is not None:
            residual = residual - self._translation
        residual = residual * self._weight.unsqueeze(-1)
        into_tail = self._restrict_adjoint(residual, "tail")
        into_head = self._restrict_adjoint(residual, "head")
        received = add_rows(torch.zeros_like(x), -2, self._tail, into_tail)
        return add_rows(received, -2, self._head, -into_head)

    def _restrict(self, x: Tensor, side: Side) -> Tensor:
        if self._acts_by_rows:
            return self._sheaf.restrict(x, self._edge_type, side)
        maps = self._sheaf.matrices(side, self._edge_type)
        return (maps @ x.unsqueeze(-1)).squeeze(-1)

    def _restrict_adjoint(self, y: Tensor, side: Side) -> Tensor:
        if self._acts_by_rows:
            return self._sheaf.restrict_adjoint(y, self._edge_type, side)
        maps = self._sheaf.matrices(side, self._edge_type)
        return (maps.mH @ y.unsqueeze(-1)).squeeze(-1)

    def _sum_ends(
        self, tails: Tensor, heads: Tensor, gap: Tensor | None, is_loop: Tensor
    ) -> Tensor:
        """Adds tables ``[R, ...]`` over the triple ends at each vertex; loops give ``gap`` once."""
        shape = (-1, *[1] * (tails.dim() - 1))
        weight, loop = self._weight.view(shape).to(tails.real.dtype), is_loop.view(shape)
        at_tail, at_head = tails[self._edge_type], heads[self._edge_type]
        if gap is not None:
            at_tail = torch.where(loop, gap[self._edge_type], at_tail)
            at_head = torch.where(loop, 0.0, at_head)
        return (
            tails.new_zeros(self._num_nodes, *tails.shape[1:])
            .index_add(0, self._tail, at_tail * weight)
            .index_add(0, self._head, at_head * weight)
        )

    def _invert(self) -> None:
        if self._entries is not None:
            entries = self._entries
            keep = entries >= torch.finfo(entries.dtype).tiny
            self._entries = torch.where(keep, 1 / torch.where(keep, entries, 1.0), 0.0)
        if self._blocks is not None:
            rtol = relative_tolerance(self._blocks.real.dtype, self._blocks.shape[-1])
            rtol = max(rtol, torch.finfo(self._dtype).eps)
            inverse = torch.linalg.pinv(self._blocks, rtol=rtol, hermitian=True)
            self._blocks = inverse.to(self._dtype)

    def _precondition(self, g: Tensor) -> Tensor:
        if self._blocks is not None:
            return (self._blocks @ g.unsqueeze(-1)).squeeze(-1)
        return g if self._entries is None else g * self._entries
