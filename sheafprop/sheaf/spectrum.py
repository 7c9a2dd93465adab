"""Extreme eigenvalues of the normalized Laplacian on the free vertices."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from sheafprop.data.graph_counts import connected_components
from sheafprop.sheaf.plan import PropagationPlan
from sheafprop.sheaf.vertex_blocks import relative_tolerance

# Up to this many coordinates the matrix is written out and its eigenvalues are exact.
_DENSE_SIZE = 256


class SpectralBounds(NamedTuple):
    r"""The nonzero spectrum of :math:`M^{-1/2} L_{UU} M^{-1/2}`, from below and from above.

    Ritz values lie inside the spectrum: ``lower`` is at least the smallest nonzero eigenvalue,
    ``upper`` at most the largest one. Both are 0 where the operator is zero.
    """

    lower: float
    upper: float


@torch.no_grad()
def upper_bound(plan: PropagationPlan) -> float:
    r"""A bound on the largest eigenvalue that costs nothing.

    2 under ``"block"`` and ``"degree"``, :math:`2 \max_v \|D_v\|` without normalization: an edge
    term is at most twice the sum of what its ends give to the block diagonal.
    """
    if plan.normalization is not None:
        return 2.0
    return 2 * plan.largest(float(plan.blocks.norms().max()) if plan.num_free else 0.0)


def normalized_matrix(plan: PropagationPlan, width: int) -> Tensor:
    r""":math:`M^{-1/2} L_{UU} M^{-1/2}` written out, ``[n d, n d]``; for small problems."""
    size = plan.num_free * width
    basis = torch.eye(size, dtype=plan.dtype, device=plan.free_index.device)
    basis = basis.view(size, plan.num_free, width).transpose(0, 1)
    image = plan.precondition_sqrt(plan.laplacian(plan.precondition_sqrt(basis)))
    matrix = image.transpose(0, 1).reshape(size, size).T
    return (matrix + matrix.mH) / 2


def spectral_bounds(
    plan: PropagationPlan, width: int, *, num_iterations: int = 100, seed: int = 0
) -> SpectralBounds:
    r"""Smallest nonzero and largest eigenvalue: exact for small problems, else Ritz values.

    The Lanczos process runs in the inner product of :math:`M` on :math:`M^+ L_{UU}` and keeps two
    vectors, whatever the number of steps: without reorthogonalization it finds extreme eigenvalues
    several times, which does no harm here. It starts in the range of :math:`L_{UU}`, so that the
    kernel shows up by rounding only and can be told by its weight. Golub and Van Loan, "Matrix
    Computations", section 10.3.

    Args:
        plan (PropagationPlan): The operator.
        width (int): Stalk dimension :math:`d`.
        num_iterations (int): At most so many operator applications.
        seed (int): Seed of the start vector.
    """
    with torch.no_grad():
        if plan.sheaf.is_constant:
            width = 1  # every coordinate has the same spectrum
        size = plan.num_free * width
        if plan.is_whole and size == 0:
            return SpectralBounds(0.0, 0.0)
        if plan.is_whole and size <= _DENSE_SIZE:
            return _bounds_of_matrix(normalized_matrix(plan, width))
        return _lanczos(plan, width, num_iterations, seed)


def largest_eigenvalue(
    plan: PropagationPlan, width: int, *, num_iterations: int = 300, seed: int = 0
) -> float:
    r"""Largest eigenvalue of :math:`M^{-1/2} L_{UU} M^{-1/2}`; see :func:`spectral_bounds`."""
    return spectral_bounds(plan, width, num_iterations=num_iterations, seed=seed).upper


def reaches_two(plan: PropagationPlan, width: int, *, rtol: float = 1e-4) -> bool:
    r"""Whether 2 is an eigenvalue of the normalized Laplacian, so that steps of 1 never settle.

    Identity maps: exactly where a component without boundary is bipartite. Other maps: where the
    largest Ritz value comes within ``rtol`` of 2; bipartiteness decides nothing there. So also
    where processes share the graph.
    """
    if not plan.sheaf.is_constant or not plan.is_whole:
        return largest_eigenvalue(plan, width) >= 2 * (1 - rtol)
    head, tail, _, weight = (part.cpu() for part in plan.edges)
    # A loop of identity maps adds nothing to D, but counts as two ends in the degree.
    keep = weight > 0 if plan.normalization == "degree" else (weight > 0) & (head != tail)
    head, tail = head[keep], tail[keep]
    n = plan.num_nodes
    # Two copies of every vertex, each edge leads to the other copy: an odd cycle joins them.
    cover = torch.stack([torch.cat([head, head + n]), torch.cat([tail + n, tail])])
    label = connected_components(cover, 2 * n)
    component = torch.minimum(label[:n], label[n:])
    odd = torch.zeros(2 * n, dtype=torch.bool)
    odd[component[label[:n] == label[n:]]] = True
    odd[component[plan.boundary_mask.cpu()]] = True
    return bool((~odd[component[head]]).any())


def _bounds_of_matrix(matrix: Tensor) -> SpectralBounds:
    values = torch.linalg.eigvalsh(matrix)
    top = float(values[-1])
    cut = relative_tolerance(values.dtype, values.numel())
    if top <= cut:
        return SpectralBounds(0.0, 0.0)
    return SpectralBounds(float(values[values > cut * top][0]), top)


def _lanczos(plan: PropagationPlan, width: int, num_iterations: int, seed: int) -> SpectralBounds:
    generator = torch.Generator().manual_seed(seed)
    vector = torch.randn(plan.num_free, 1, width, generator=generator, dtype=plan.dtype)
    residual = plan.laplacian(vector.to(plan.free_index.device))
    image = plan.precondition(residual)
    norm = _norm(plan, residual, image)
    if norm == 0:
        return SpectralBounds(0.0, 0.0)
    eps = torch.finfo(plan.dtype).eps
    previous = torch.zeros_like(residual)
    diagonal: list[float] = []
    off_diagonal: list[float] = []
    bounds = SpectralBounds(math.inf, 0.0)
    while len(diagonal) < num_iterations:
        # residual = M q, image = q for the next Lanczos vector q.
        residual, image = residual / norm, image / norm
        product = plan.laplacian(image)
        diagonal.append(_inner(plan, image, product))
        product = product - diagonal[-1] * residual - norm * previous
        previous, residual = residual, product
        image = plan.precondition(residual)
        norm = _norm(plan, residual, image)
        finished = norm <= 10 * eps * max(diagonal)
        if finished or len(diagonal) % 20 == 0 or len(diagonal) == num_iterations:
            last, bounds = bounds, ritz_bounds(diagonal, off_diagonal, eps)
            settled = all(
                math.isclose(a, b, rel_tol=1e-6) for a, b in zip(last, bounds, strict=True)
            )
            if finished or settled:
                break
        off_diagonal.append(norm)
    return bounds


def ritz_bounds(diagonal: list[float], off_diagonal: list[float], eps: float) -> SpectralBounds:
    """Extreme eigenvalues of a Lanczos matrix from vectors of precision ``eps``.

    A small one of whose vector the start holds less than rounding would is not part of the
    spectrum. Both bounds are 0 for a process that ended before its first step.
    """
    size = len(diagonal)
    if size == 0:
        return SpectralBounds(0.0, 0.0)
    matrix = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    if size > 1:
        side = torch.tensor(off_diagonal[: size - 1], dtype=torch.float64)
        matrix = matrix + torch.diag(side, 1) + torch.diag(side, -1)
    values, vectors = torch.linalg.eigh(matrix)
    certain = (vectors[0].abs() > eps) & (values > 0)
    lower = float(values[certain][0]) if bool(certain.any()) else 0.0
    return SpectralBounds(lower, max(0.0, float(values[-1])))


def _inner(plan: PropagationPlan, a: Tensor, b: Tensor) -> float:
    return float(plan.total(torch.sum(a.conj() * b).real))


def _norm(plan: PropagationPlan, residual: Tensor, image: Tensor) -> float:
    return math.sqrt(max(0.0, _inner(plan, residual, image)))
