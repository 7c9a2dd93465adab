from functools import cached_property

import torch
from torch import Tensor

from sheafprop.kernels.coupling import needs_gradient
from sheafprop.kernels.csr_product import CSRProduct, TiledSum
from sheafprop.kernels.hermitian_blocks import (
    definite_inverses,
    hermitian_norms,
    multiply_blocks,
    root_of_inverse,
)
from sheafprop.kernels.memory import announce, empty
from sheafprop.kernels.relation_incidence import RelationIncidence, equal_rows, joint_product
from sheafprop.kernels.rows import take_rows
from sheafprop.kernels.threads import num_threads, run_chunks
from sheafprop.sheaf.vertex_blocks import (
    VertexBlocks,
    check_blocks,
    relative_tolerance,
    warn_of_lost,
)

# Bytes of dense blocks that one thread inverts at once: they stay in its cache.
_CHUNK_BYTES = 2**20
# Bytes of dense blocks that one thread sums at once: they share what they read of the table.
_SUMMED_BYTES = 2**27
# Groups of such blocks for each thread.
_GROUPS = 4


class DenseBlocks(VertexBlocks):
    """Dense blocks, of which equal ones are held and factored once, in chunks of bounded memory.

    The pseudo-inverse is formed explicitly, in the number type of the table (double precision), and
    then rounded to that of the features: by elimination where the block is well conditioned (judged
    by a bound of its condition number), by an eigendecomposition with a relative cut-off otherwise.
    The cut-off is 1e-10, or the precision of the features if that is coarser: what such a direction
    receives would be rounding alone. The gradient is the closed formula of Golub and Pereyra,
    finite also where eigenvalues coincide. A step needs the pseudo-inverses alone, so the blocks
    themselves are held only once they are asked for.

    Args:
        product (CSRProduct): The distinct blocks as sums of the table.
        table (Tensor): The terms, ``[t, d, d]``.
        vertices (Tensor): A vertex of each distinct block, int64 ``[m]``.
        kind (Tensor): The block of each vertex, int64 ``[n]``.
        dtype (torch.dtype): Number type of the features.
        present (Tensor, optional): Bool ``[t]``: terms of maps that are not zero. A warning counts
            the coordinates that they leave without a block or an inverse, by underflow or overflow.
    """

    def __init__(
        self,
        product: CSRProduct,
        table: Tensor,
        vertices: Tensor,
        kind: Tensor,
        dtype: torch.dtype,
        present: Tensor | None = None,
    ):
        self._dtype, self._present = dtype, present
        self._rtol = max(relative_tolerance(table.dtype, table.shape[-1]), torch.finfo(dtype).eps)
        self._recorded = needs_gradient(table)
        self._product, self._table = product, table if self._recorded else table.detach()
        self._vertices, self._kind = vertices, kind
        if self._recorded:
            # Later, gradients might be switched off.
            self.prepare()

    @classmethod
    def of_maps(
        cls, tail: Tensor, head: Tensor, ends: RelationIncidence, loops: RelationIncidence
    ) -> "DenseBlocks":
        """The blocks of maps ``[R, k, d]``; see :meth:`RelationSheaf.vertex_blocks`."""
        first, kind = equal_rows(ends, loops)
        if first.numel() < kind.numel():
            ends, loops = ends.of(first), loops.of(first)
        product, column = joint_product(ends, loops)
        size, d = len(head), head.shape[2]
        # Squares have half the digits: of single precision a map's weakest directions would keep
        # none.
        double = torch.promote_types(head.dtype, torch.float64)
        announce(column.numel() * d * d * double.itemsize, "squares of the maps")
        tails, heads, looped = (
            column[(column >= i * size) & (column < (i + 1) * size)] - i * size for i in range(3)
        )
        squares = [take_rows(tail, 0, tails), take_rows(head, 0, heads)]
        if looped.numel():
            at_tail, at_head = (take_rows(m, 0, looped).to(double) for m in (tail, head))
            squares.append(at_tail - at_head)
        maps = torch.cat([m.to(double) for m in squares])
        table = maps.mH @ maps
        present = (maps.detach() != 0).flatten(1).any(dim=1)
        return cls(product, table, first, kind, head.dtype, present)

    @cached_property
    def blocks(self) -> Tensor:
        """The distinct blocks ``[m, d, d]``."""
        announce(self._num_bytes, "the diagonal blocks")
        with torch.inference_mode(False):
            blocks = self._product(self._table.to(self._dtype))
        check_blocks(blocks, self._vertices)
        if "_factors" not in vars(self):
            # The largest entry of a definite matrix lies on its diagonal.
            size = blocks.detach().diagonal(dim1=1, dim2=2).real
            self._warn_of_lost(~(size >= torch.finfo(self._dtype).tiny).any(dim=1))
        return blocks

    @cached_property
    def inverses(self) -> Tensor:
        """Their pseudo-inverses ``[m, d, d]``."""
        return self._factors[0]

    @cached_property
    def singular(self) -> Tensor:
        return self._factors[1][self._kind]

    def prepare(self) -> None:
        # Within a function transform of torch none of this could be computed.
        if self._singular_index.numel():
            _ = self._projections

    @property
    def _num_bytes(self) -> int:
        return self._product.num_rows * self._table[:1].numel() * self._dtype.itemsize

    @cached_property
    def _factors(self) -> tuple[Tensor, Tensor]:
        n, d = self._product.num_rows, self._table.shape[-1]
        each = max(1, self._table[:1].numel() * self._table.element_size())
        chunk = max(1, _CHUNK_BYTES // each)
        if self._recorded:
            parts = [
                self._round(*_pseudo_inverse(part, *definite_inverses(part), self._rtol))
                for part in self._product(self._table).split(chunk)
            ]
            inverse, singular = (torch.cat(found) for found in zip(*parts, strict=True))
            return self._check(inverse, singular)
        announce(self._num_bytes, "the inverses of the diagonal blocks")
        with torch.inference_mode(False):
            inverse = empty((n, d, d), self._table[:0].to(self._dtype))
            # Pieces are written by threads that know of no inference mode.
            singular = torch.zeros(n, dtype=torch.bool, device=self._table.device)
            certain = torch.zeros_like(singular)
        sums = TiledSum(self._product, self._table)
        # Some groups for each thread at least, so that none waits long for another.
        group = max(1, min(_SUMMED_BYTES // each, -(-n // (_GROUPS * num_threads()))))

        def invert(first: int) -> None:
            with torch.no_grad():
                piece = slice(first, first + group)
                target = part = inverse[piece]
                if target.dtype != self._table.dtype:
                    part = torch.empty(target.shape, dtype=self._table.dtype, device=target.device)
                sums.fill(first, part)
                spare = torch.empty_like(part[:chunk])
                found = [
                    _invert(blocks, spare[: len(blocks)], self._rtol)
                    for blocks in part.split(chunk)
                ]
                if part is not target:
                    target.copy_(part)
                certain[piece] = torch.cat(found)
                # The largest entry of a definite matrix lies on its diagonal.
                certain[piece] &= torch.isfinite(target.diagonal(dim1=1, dim2=2)).all(dim=1)

        def settle(kinds: Tensor) -> None:
            with torch.no_grad():
                part = self._some(kinds)
                check_blocks(part.to(self._dtype), self._vertices[kinds])
                found = _pseudo_inverse(part, *definite_inverses(part), self._rtol)
                inverse[kinds], singular[kinds] = self._round(*found)

        run_chunks(invert, range(0, n, group))
        # Few, so that they are better looked at together; in the order of their vertices.
        rest = (~certain).nonzero().flatten()
        rest = rest[torch.argsort(self._vertices[rest])]
        most = max(1, min(64, chunk, rest.numel() // num_threads()))
        run_chunks(settle, [part for part in rest.split(most) if part.numel()])
        return self._check(inverse, singular)

    def _round(self, inverse: Tensor, singular: Tensor) -> tuple[Tensor, Tensor]:
        """Pseudo-inverses in the number type of the features, and which blocks count as singular:
        also those whose inverses would be infinite, which become zero."""
        rounded = inverse.to(self._dtype)
        over = ~torch.isfinite(rounded.detach()).flatten(1).all(dim=1)
        return torch.where(over.view(-1, 1, 1), 0, rounded), singular | over

    def _check(self, inverse: Tensor, singular: Tensor) -> tuple[Tensor, Tensor]:
        """The arguments, after a look at the inverses that are zero."""
        zero = ~(inverse.detach().diagonal(dim1=1, dim2=2).real > 0).any(dim=1)
        self._warn_of_lost(zero & singular)
        large = (zero & ~singular).nonzero().flatten()
        if large.numel():
            check_blocks(self._some(large).to(self._dtype), self._vertices[large])
        return inverse, singular

    def _warn_of_lost(self, lost: Tensor) -> None:
        """Warns of the blocks among ``lost [m]`` that maps which are not zero add to."""
        if self._present is not None and bool(lost.any()):
            met = self._product(self._present.to(self._table.real.dtype).unsqueeze(1)).flatten() > 0
            width = self._table.shape[-1]
            warn_of_lost(int((lost & met)[self._kind].sum()) * width, self._dtype)

    def num_frozen(self, width: int) -> Tensor:
        count = torch.zeros(self._kind.numel(), dtype=torch.long, device=self._kind.device)
        if self._singular_index.numel():
            projections, kind = self._projections
            rank = projections.diagonal(dim1=1, dim2=2).real.sum(dim=1).round().long()
            count[self._singular_index] = (width - rank)[kind]
        return count

    def _some(self, kinds: Tensor) -> Tensor:
        return self._product.rows(kinds)(self._table)

    @cached_property
    def _singular_index(self) -> Tensor:
        return self.singular.nonzero().flatten()

    def apply(self, x: Tensor) -> Tensor:
        return multiply_blocks(self.blocks, self._kind, x)

    def apply_pinv(self, x: Tensor) -> Tensor:
        return multiply_blocks(self.inverses, self._kind, x)

    def project(self, x: Tensor) -> Tensor:
        if self._singular_index.numel() == 0:
            return x
        index = self._singular_index
        projections, kind = self._projections
        return x.index_copy(0, index, take_rows(x, 0, index) @ take_rows(projections, 0, kind).mT)

    @cached_property
    def _projections(self) -> tuple[Tensor, Tensor]:
        with torch.inference_mode(False):
            present, kind = torch.unique(self._kind[self._singular_index], return_inverse=True)
            blocks = self._some(present)
            pinv, _ = _pseudo_inverse(blocks, *definite_inverses(blocks), self._rtol)
            projections = (pinv @ blocks).to(self._dtype)
            return torch.where(self._in_range[present].view(-1, 1, 1), projections, 0), kind

    @property
    def _in_range(self) -> Tensor:
        """Which pseudo-inverses are not zero: those that the features' number type can hold."""
        return (self.inverses.detach() != 0).flatten(1).any(dim=1)

    def apply_pinv_sqrt(self, x: Tensor) -> Tensor:
        # From the blocks: rounded pseudo-inverses have lost the small ones of their eigenvalues.
        values, vectors = torch.linalg.eigh(self._product(self._table))
        kept = (values > self._rtol * values[:, -1:]) & self._in_range.unsqueeze(1)
        roots = torch.where(kept, torch.where(kept, values, 1.0).rsqrt(), 0.0)
        roots = ((vectors * roots.unsqueeze(1)) @ vectors.mH).to(self._dtype)
        return x @ roots[self._kind].mT

    def norms(self) -> Tensor:
        return torch.linalg.eigvalsh(self.blocks)[:, -1][self._kind]


def _invert(blocks: Tensor, spare: Tensor, rtol: float) -> Tensor:
    """Replaces blocks by their inverses; returns which of these are certain to be no worse than the
    pseudo-inverses."""
    norm = hermitian_norms(blocks)
    _, definite = definite_inverses(blocks, blocks, spare)
    # The product of Frobenius norms bounds the condition number; most blocks pass it.
    bound = norm * hermitian_norms(blocks)
    return definite & (bound < 0.5 / rtol)


def _pseudo_inverse(
    blocks: Tensor, inverse: Tensor, definite: Tensor, rtol: float
) -> tuple[Tensor, Tensor]:
    """Pseudo-inverses, and which blocks are singular, from the inverses of the definite ones, which
    are written over."""
    given = blocks.detach()
    # Fourth roots of the sums of the eigenvalues' fourth powers bound the condition number closely.
    # Near the cut-off only the eigenvalues can decide.
    bound = (_square_norm(given) * _square_norm(inverse)).sqrt()
    regular = definite & (bound < 0.5 / rtol)
    doubtful = (~regular).nonzero().flatten()
    singular = torch.zeros(blocks.shape[0], dtype=torch.bool, device=blocks.device)
    if blocks.requires_grad:
        inverse = torch.zeros_like(blocks)
        certain = regular.nonzero().flatten()
        root = root_of_inverse(torch.linalg.cholesky(take_rows(blocks, 0, certain)))
        inverse = inverse.index_copy(0, certain, root.mH @ root)
    if doubtful.numel():
        part = take_rows(blocks, 0, doubtful)
        values, vectors = torch.linalg.eigh(part.detach())
        singular[doubtful] = values[:, 0] <= rtol * values[:, -1]
        if blocks.requires_grad:
            pinv = torch.linalg.pinv(part, rtol=rtol, hermitian=True)
        else:
            size = values.abs()
            keep = size > rtol * size.amax(dim=1, keepdim=True)
            reciprocal = torch.where(keep, 1 / torch.where(keep, values, 1.0), 0.0)
            pinv = (vectors * reciprocal.unsqueeze(1)) @ vectors.mH
        inverse.index_copy_(0, doubtful, pinv)
    return inverse, singular


def _square_norm(blocks: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(blocks @ blocks)
