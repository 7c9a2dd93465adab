import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from sheafprop.kernels.rows import add_rows
from sheafprop.nn.solvers.column_system import ColumnSystem
from sheafprop.nn.solvers.linear_system import LinearSystem, Solution, norm_of
from sheafprop.sheaf.coboundary import coboundary
from sheafprop.sheaf.diagonal_sheaf import DiagonalSheaf
from sheafprop.sheaf.plan import PropagationPlan
from sheafprop.sheaf.relation_sheaf import RelationSheaf
from sheafprop.sheaf.spectrum import normalized_matrix
from sheafprop.sheaf.vertex_blocks import relative_tolerance

# Dense maps: the eigendecomposition of one matrix of this many rows takes about ten seconds.
_DENSE_ROWS = 4096
# Sparse factors of graphs that are not nearly trees fill up to the square of the vertices.
_SPARSE_ROWS = 20_000
_REFINEMENTS = 10
# A last correction by more than this share of the solution means that its digits are not certain.
_ACCURACY = 3e-7
_EXACT = 1e-15
# What a dropped mode leaves on an edge, in units of the maps' precision, if it is in the kernel.
_ROUNDING = 64


def solve_direct(system: LinearSystem, rhs: Tensor, *, tol: float, max_iterations: int) -> Solution:
    r"""Factorization: sparse where the maps act on every coordinate separately, else dense.

    One sparse factorization of the scalar Laplacian serves all columns of identity maps; diagonal
    maps take one for each coordinate. What is singular is known from the graph: a component whose
    maps agree around every cycle and that nothing ties to the boundary has one kernel vector. One
    vertex of it is held, and the solution is made :math:`M`-orthogonal to the vector, which is the
    projection that the limit asks for. Dense maps take an eigendecomposition of
    :math:`M^{-1/2} A M^{-1/2}` and drop eigenvalues below a relative 1e-10.

    Iterative refinement computes residuals edge by edge at :math:`x_0 - z`, where the large terms
    cancel before they are added: small eigenvalues then cost no digits, and the last correction
    says how many are certain. If fewer than six are, the solution does not count as converged.
    All this is done in double precision on the CPU.

    Args:
        system (LinearSystem): The operator.
        rhs (Tensor): :math:`f`, ``[n, s, d]``, in the range of the operator.
        tol (float): Relative residual that counts as converged.
        max_iterations (int): Not used; every solver is called alike.

    Raises:
        ValueError: If the factors would be too large.
    """
    initial = system.norm(rhs)
    if initial == 0:
        return Solution(torch.zeros_like(rhs), 0, 0.0, True)
    begun = system.applications
    columns = system.plan.sheaf.independent_columns
    z, note = (_solve_columns if columns else _solve_dense)(system, rhs)
    norm = system.norm(rhs - system.apply(z))
    converged = system.meets(norm, initial, tol) and not note
    return Solution(z, system.applications - begun, norm / initial, converged, note)


def is_cheap(plan: PropagationPlan) -> bool:
    """Whether factoring costs less than iterating, for the graph and the sheaf of a ``plan``.

    It does for identity maps on a small or tree-like graph.
    """
    return (
        plan.sheaf.is_constant
        and plan.free_index.device.type == "cpu"
        and (plan.num_free <= 500 or _nearly_tree(plan))
    )


def _nearly_tree(plan: PropagationPlan) -> bool:
    return plan.edges[0].numel() <= 1.1 * plan.num_free


def _solve_dense(system: LinearSystem, rhs: Tensor) -> tuple[Tensor, str]:
    n, s, d = rhs.shape
    if n * d > _DENSE_ROWS:
        raise ValueError(
            f"solver='direct' would decompose a dense matrix of {n * d} rows (at most "
            f"{_DENSE_ROWS}): take solver='cg'"
        )
    plan = _in_double(system.plan)
    values, vectors = torch.linalg.eigh(normalized_matrix(plan, d))
    note = ""
    if system.teleport:
        inverse = 1 / (values.clamp_min(0) + system.teleport)
    else:
        kept = values > relative_tolerance(values.dtype, n * d) * values[-1]
        inverse = torch.where(kept, 1 / torch.where(kept, values, 1), 0)
        kernel = _polish_kernel(plan, vectors, inverse, kept)
        vectors = vectors - kernel @ (kernel.mH @ vectors)
        vectors[:, ~kept] = kernel
        edges = _edge_values(plan, kernel).flatten(1)
        largest = float(torch.linalg.matrix_norm(edges, 2)) ** 2 if edges.numel() else 0.0
        largest /= float(values[-1])
        precision = torch.finfo(plan.sheaf.dtype or plan.dtype).eps
        if largest > (_ROUNDING * precision) ** 2:
            note = (
                f"took an eigenvalue of {largest:.1g} of the largest for zero, and its mode keeps "
                "the start: raise the smallest edge weights, or take solver='cg'"
            )
    double = LinearSystem(plan, system.teleport, system.sections)
    right = rhs.to(plan.dtype)

    def solve(f: Tensor) -> Tensor:
        y = plan.precondition_sqrt(f).transpose(0, 1).reshape(s, n * d).T
        y = vectors @ (inverse.unsqueeze(1) * (vectors.mH @ y))
        return plan.precondition_sqrt(y.T.reshape(s, n, d).transpose(0, 1))

    def size_of(z: Tensor) -> float:
        return norm_of(plan.apply_metric(z), z)

    def residual_of(z: Tensor) -> tuple[Tensor, Tensor | None]:
        if system.sections is None:
            return right - double.apply(z), None
        residual, bulk = _edge_residual(double, z, plan.sheaf)
        return residual - system.teleport * plan.apply_metric(z), bulk

    start = None if system.sections is None else system.sections[plan.free_index].to(plan.dtype)
    z, error = _refine(solve, residual_of, right, size_of, start)
    return z.to(rhs.dtype), note or _note(error)


def _polish_kernel(plan: PropagationPlan, vectors: Tensor, inverse: Tensor, kept: Tensor) -> Tensor:
    r"""The dropped eigenvectors without what they hold of the kept ones, ``[n d, k]``.

    An eigensolver leaves a part of size :math:`\epsilon / \lambda` of each kept mode in them,
    whose energy :math:`\epsilon^2 / \lambda` looks like that of a small eigenvalue and whose
    adjoint moves the solution along the kernel. The edges see it with a relative error of
    :math:`\epsilon`, so that one correction leaves :math:`\epsilon / \sqrt{\lambda}`, of energy
    :math:`\epsilon^2` whatever the gap; a second one mends what the first got from inexact modes.
    """
    kernel = vectors[:, ~kept]
    modes, weight = vectors[:, kept], inverse[kept].unsqueeze(1)
    for _ in range(2):
        root = plan.edges[3].sqrt().to(kernel.dtype).unsqueeze(-1)
        y = root * _edge_values(plan, kernel)
        image = plan.precondition_sqrt(_sums_of_messages(plan, plan.sheaf, y)[0])
        inexact = weight * (modes.mH @ image.transpose(0, 1).flatten(1).T)
        kernel = torch.linalg.qr(kernel - modes @ inexact).Q
    return kernel


def _edge_values(plan: PropagationPlan, vectors: Tensor) -> Tensor:
    r"""What vectors of the normalized coordinates, ``[n d, k]``, leave on the edges:
    :math:`W^{1/2} \delta M^{-1/2} v` as ``[k, m, d]``, computed edge by edge."""
    columns = vectors.T.reshape(
        vectors.shape[1], plan.num_free, vectors.shape[0] // plan.num_free
    ).transpose(0, 1)
    free = plan.precondition_sqrt(columns)
    x = free.new_zeros(plan.num_nodes, *free.shape[1:]).index_copy(0, plan.free_index, free)
    head, tail, edge_type, weight = plan.edges
    sheaf = plan.sheaf.promote(free.dtype)
    y = coboundary(x.transpose(0, 1), torch.stack([head, tail]), edge_type, sheaf)
    return y * weight.sqrt().to(y.real.dtype).unsqueeze(-1)


def _note(error: float) -> str:
    if error <= _ACCURACY:
        return ""
    return (
        "met eigenvalues too small for double precision, and the solution may be wrong by a share "
        f"of {error:.1g}: raise the smallest edge weights, or take solver='cg'"
    )


def _refine(
    solve: Callable[[Tensor], Tensor],
    residual_of: Callable[[Tensor], tuple[Tensor, Tensor | None]],
    right: Tensor,
    size_of: Callable[[Tensor], float],
    start: Tensor | None,
) -> tuple[Tensor, float]:
    """The solution, and how uncertain it is as a share of the start and the solution."""
    z, residual, bulk, error = torch.zeros_like(right), right, None, math.inf
    start_size = 0.0
    if start is not None:
        # Without the rounding that the right-hand side has in single precision.
        start_size, (residual, bulk) = size_of(start), residual_of(z)
    for _ in range(_REFINEMENTS):
        step = solve(residual)
        size = size_of(z + step) + start_size
        moved = size_of(step) / size if size else 0.0
        if not moved < 0.5 * error:
            break
        z, error = z + step, moved
        residual, bulk = residual_of(z)
        if error < _EXACT:
            break
    if bulk is not None and error < math.inf:
        # What rounding in the sums of the messages does to the solution.
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(bulk.shape, generator=generator, dtype=bulk.dtype).to(bulk.device)
        eps = torch.finfo(bulk.dtype).eps
        size = size_of(z) + start_size
        error = max(error, size_of(solve((eps * bulk * noise).to(z.dtype))) / size if size else 0)
    return z, error


def _edge_residual(
    system: LinearSystem, z: Tensor, sheaf: RelationSheaf, columns: slice = slice(None)
) -> tuple[Tensor, Tensor]:
    r"""Half the gradient at :math:`x_0 - z` for some columns, and the sum of its terms' sizes."""
    plan = system.plan
    assert system.sections is not None
    sheaf = sheaf.promote(z.dtype)
    x = system.sections[..., columns].to(z.dtype)
    x = x.index_copy(0, plan.free_index, x[plan.free_index] - z).transpose(0, 1)
    head, tail, edge_type, weight = plan.edges
    y = coboundary(x, torch.stack([head, tail]), edge_type, sheaf)
    translation = sheaf.translation_of(edge_type)
    if translation is not None:
        y = y - translation
    y = y * weight.to(y.real.dtype).unsqueeze(-1)
    return _sums_of_messages(plan, sheaf, y)


def _sums_of_messages(
    plan: PropagationPlan, sheaf: RelationSheaf, y: Tensor
) -> tuple[Tensor, Tensor]:
    r"""What values on the edges ``[s, m, k]`` send to the free vertices, :math:`\delta^* y` as
    ``[n, s, d]``, and the sum of the sizes of these terms."""
    sheaf = sheaf.promote(y.dtype)
    head, tail, edge_type, _ = plan.edges
    into_tail = sheaf.restrict_adjoint(y, edge_type, "tail")
    into_head = -sheaf.restrict_adjoint(y, edge_type, "head")
    gradient = y.new_zeros(y.shape[0], plan.num_nodes, into_tail.shape[-1])
    bulk = gradient.real.clone()
    gradient = add_rows(gradient, 1, tail, into_tail)
    gradient = add_rows(gradient, 1, head, into_head)
    bulk = bulk.index_add(1, tail, into_tail.abs()).index_add(1, head, into_head.abs())
    free = plan.free_index
    return gradient[:, free].transpose(0, 1), bulk[:, free].transpose(0, 1)


def _in_double(plan: PropagationPlan) -> PropagationPlan:
    dtype = torch.promote_types(plan.dtype, torch.float64)
    if dtype == plan.dtype:
        return plan
    head, tail, edge_type, weight = plan.edges
    return PropagationPlan(
        torch.stack([head, tail]),
        edge_type,
        plan.sheaf,
        plan.num_nodes,
        edge_weight=weight,
        boundary_mask=plan.boundary_mask,
        normalization=plan.normalization,
        dtype=dtype,
    )


def _solve_columns(system: LinearSystem, rhs: Tensor) -> tuple[Tensor, str]:
    plan, n = system.plan, rhs.shape[0]
    if n > _SPARSE_ROWS and not _nearly_tree(plan):
        raise ValueError(
            f"solver='direct' would factor a sparse matrix of {n} rows and "
            f"{plan.edges[0].numel()} triples, whose factors may fill memory (at most "
            f"{_SPARSE_ROWS} rows unless the graph is nearly a tree): take solver='cg'"
        )
    one_for_all = plan.sheaf.is_constant
    width = 1 if one_for_all else rhs.shape[2]
    metric = _numpy(plan.apply_metric(rhs.new_ones(n, 1, width)).real)[:, 0]
    in_range = _numpy(plan.precondition(rhs.new_ones(n, 1, width)).real)[:, 0] > 0
    relations = torch.arange(plan.sheaf.num_relations, device=rhs.device)
    ones = rhs.new_ones(relations.numel(), width)
    heads = plan.sheaf.restrict(ones, relations, "head").detach()
    tails = plan.sheaf.restrict(ones, relations, "tail").detach()
    translation = plan.sheaf.translation_of(relations)
    head_maps, tail_maps = _numpy(heads), _numpy(tails)
    head, tail, relation, weight = (_numpy(part) for part in plan.edges)
    number = np.full(plan.num_nodes, -1)
    number[_numpy(plan.free_index)] = np.arange(n)
    right = rhs.to(torch.promote_types(rhs.dtype, torch.float64))
    out = torch.zeros_like(right)
    worst = 0.0
    for column in range(width):
        rows = np.flatnonzero(in_range[:, column])
        if rows.size == 0:
            continue
        within = np.full(n + 1, -1)
        within[rows] = np.arange(rows.size)
        matrix = ColumnSystem(
            within[number[head]],
            within[number[tail]],
            head_maps[relation, column],
            tail_maps[relation, column],
            weight,
            metric[rows, column],
            teleport=system.teleport,
            eps=torch.finfo(plan.sheaf.dtype or torch.float64).eps,
        )
        columns, sheaf = slice(None), plan.sheaf
        if not one_for_all:
            columns = slice(column, column + 1)
            shift = None if translation is None else translation.detach()[:, columns]
            sheaf = DiagonalSheaf(heads[:, columns], tails[:, columns], shift)
        solved, error = _solve_column(
            system, sheaf, matrix, torch.from_numpy(rows), right[..., columns], columns
        )
        worst = max(worst, error)
        out[..., columns] = solved
    return out.to(rhs.dtype), _note(worst)


def _solve_column(
    system: LinearSystem,
    sheaf: RelationSheaf,
    matrix: ColumnSystem,
    rows: Tensor,
    right: Tensor,
    columns: slice,
) -> tuple[Tensor, float]:
    factor = matrix.factor()
    if factor is None:
        return torch.zeros_like(right), math.inf
    rows = rows.to(right.device)

    def on_rows(function: Callable[[np.ndarray], np.ndarray], f: Tensor) -> Tensor:
        part = f[rows].flatten(1)
        split = part.is_complex() and not matrix.is_complex
        flat = _numpy(part)
        if split:
            # Complex columns are two real ones where the matrix is real.
            flat = np.concatenate([flat.real, flat.imag], axis=1)
        image = function(flat.astype(matrix.dtype))
        if split:
            half = image.shape[1] // 2
            image = image[:, :half] + 1j * image[:, half:]
        on_the_rows = torch.from_numpy(image).to(f).view(rows.numel(), *f.shape[1:])
        return torch.zeros_like(f).index_copy(0, rows, on_the_rows)

    def residual_of(z: Tensor) -> tuple[Tensor, Tensor | None]:
        if system.sections is None:
            return right - on_rows(matrix.apply, z), None
        residual, bulk = _edge_residual(system, z, sheaf, columns)
        return residual - system.teleport * on_rows(matrix.scale, z), bulk

    def size_of(z: Tensor) -> float:
        return norm_of(on_rows(matrix.scale, z), z)

    start = None
    if system.sections is not None:
        start = system.sections[system.plan.free_index][..., columns].to(right)
    return _refine(
        lambda f: on_rows(lambda part: matrix.solve(factor, part), f),
        residual_of,
        right,
        size_of,
        start,
    )


def _numpy(tensor: Tensor) -> np.ndarray:
    array = tensor.detach().resolve_conj().cpu().numpy()
    if array.dtype == np.float32:
        return array.astype(np.float64)
    return array.astype(np.complex128) if array.dtype == np.complex64 else array
