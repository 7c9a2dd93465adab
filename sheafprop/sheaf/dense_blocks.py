from functools import cached_property

import torch
from torch import Tensor

from sheafprop.kernels.block_product import multiply_blocks
from sheafprop.kernels.coupling import needs_gradient
from sheafprop.kernels.csr_product import CSRProduct
from sheafprop.kernels.definite_inverse import (
    definite_inverses,
    hermitian_norms,
    root_of_inverse,
)
from sheafprop.kernels.memory import announce, empty
from sheafprop.kernels.rows import take_rows
from sheafprop.kernels.threads import num_threads, run_chunks
from sheafprop.kernels.tiled_sum import TiledSum
from sheafprop.sheaf.vertex_blocks import VertexBlocks, check_blocks, relative_tolerance

# Bytes of dense blocks that one thread inverts at once: they stay in its cache.
_CHUNK_BYTES = 2**20
# Bytes of dense blocks that one thread sums at once: they share what they read of the table.
_SUMMED_BYTES = 2**27
# Groups of such blocks for each thread.
_GROUPS = 4


class DenseBlocks(VertexBlocks):
    """Dense blocks, of which equal ones are held and factored once, in chunks of bounded memory.

    The pseudo-inverse is formed explicitly: by elimination where the block is well conditioned
    (judged by a bound of its condition number), by an eigendecomposition with the relative
    cut-off otherwise. Its gradient is the closed formula of Golub and Pereyra, finite also where
    eigenvalues coincide. A step needs the pseudo-inverses alone, so the blocks themselves are held
    only once they are asked for.

    Args:
        product (CSRProduct): The distinct blocks as sums of the table.
        table (Tensor): The terms, ``[t, d, d]``.
        vertices (Tensor): A vertex of each distinct block, int64 ``[m]``.
        kind (Tensor): The block of each vertex, int64 ``[n]``.
    """

    def __init__(self, product: CSRProduct, table: Tensor, vertices: Tensor, kind: Tensor):
        self._recorded = needs_gradient(table)
        self._product, self._table = product, table if self._recorded else table.detach()
        self._vertices, self._kind = vertices, kind
        if self._recorded:
            # Later, gradients might be switched off.
            self.prepare()

    @cached_property
    def blocks(self) -> Tensor:
        """The distinct blocks ``[m, d, d]``."""
        announce(self._num_bytes, "the diagonal blocks")
        with torch.inference_mode(False):
            blocks = self._product(self._table)
        check_blocks(blocks, self._vertices)
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
        return self._product.num_rows * self._table[:1].numel() * self._table.element_size()

    @cached_property
    def _factors(self) -> tuple[Tensor, Tensor]:
        n, d = self._product.num_rows, self._table.shape[-1]
        each = max(1, self._table[:1].numel() * self._table.element_size())
        chunk = max(1, _CHUNK_BYTES // each)
        if self._recorded:
            parts = [
                _pseudo_inverse(blocks, *definite_inverses(blocks))
                for blocks in self.blocks.split(chunk)
            ]
            return torch.cat([part for part, _ in parts]), torch.cat([found for _, found in parts])
        announce(self._num_bytes, "the inverses of the diagonal blocks")
        with torch.inference_mode(False):
            inverse = empty((n, d, d), self._table)
            # Pieces are written by threads that know of no inference mode.
            singular = torch.zeros(n, dtype=torch.bool, device=self._table.device)
            definite, certain = torch.zeros_like(singular), torch.zeros_like(singular)
        sums = TiledSum(self._product, self._table)
        # Some groups for each thread at least, so that none waits long for another.
        group = max(1, min(_SUMMED_BYTES // each, -(-n // (_GROUPS * num_threads()))))

        def invert(first: int) -> None:
            with torch.no_grad():
                part = inverse[first : first + group]
                sums.fill(first, part)
                spare = torch.empty_like(part[:chunk])
                found = [_invert(blocks, spare[: len(blocks)]) for blocks in part.split(chunk)]
                piece = slice(first, first + group)
                definite[piece], certain[piece] = map(torch.cat, zip(*found, strict=True))

        def settle(kinds: Tensor) -> None:
            with torch.no_grad():
                part = self._some(kinds)
                check_blocks(part, self._vertices[kinds])
                inverse[kinds], singular[kinds] = _pseudo_inverse(
                    part, inverse[kinds], definite[kinds]
                )

        run_chunks(invert, range(0, n, group))
        # Few, so that they are better looked at together; in the order of their vertices.
        rest = (~certain).nonzero().flatten()
        rest = rest[torch.argsort(self._vertices[rest])]
        most = max(1, min(64, chunk, rest.numel() // num_threads()))
        run_chunks(settle, [part for part in rest.split(most) if part.numel()])
        return inverse, singular

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
            blocks = take_rows(self.blocks, 0, present) if self._recorded else self._some(present)
            return take_rows(self.inverses, 0, present) @ blocks, kind

    def apply_pinv_sqrt(self, x: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(self.inverses)
        roots = (vectors * values.clamp_min(0).sqrt().unsqueeze(1)) @ vectors.mH
        return x @ roots[self._kind].mT

    def norms(self) -> Tensor:
        return torch.linalg.eigvalsh(self.blocks)[:, -1][self._kind]


def _invert(blocks: Tensor, spare: Tensor) -> tuple[Tensor, Tensor]:
    """Replaces blocks by their inverses; returns which of them are definite, and which of those
    inverses are certain to be no worse than the pseudo-inverses."""
    norm = hermitian_norms(blocks)
    _, definite = definite_inverses(blocks, blocks, spare)
    # The product of Frobenius norms bounds the condition number; most blocks pass it.
    bound = norm * hermitian_norms(blocks)
    return definite, definite & (bound < 0.5 / _tolerance(blocks))


def _pseudo_inverse(blocks: Tensor, inverse: Tensor, definite: Tensor) -> tuple[Tensor, Tensor]:
    """Pseudo-inverses, and which blocks are singular, from the inverses of the definite ones, which
    are written over."""
    rtol, given = _tolerance(blocks), blocks.detach()
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


def _tolerance(blocks: Tensor) -> float:
    return relative_tolerance(blocks.real.dtype, blocks.shape[-1])


def _square_norm(blocks: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(blocks @ blocks)
