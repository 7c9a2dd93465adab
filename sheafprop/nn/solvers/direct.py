import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import torch
from torch import Tensor

from sheafprop.nn.solvers.linear_system import LinearSystem
from sheafprop.nn.solvers.solution import Solution
from sheafprop.sheaf.identity_sheaf import IdentitySheaf
from sheafprop.sheaf.plan import PropagationPlan
from sheafprop.sheaf.spectrum import normalized_matrix
from sheafprop.sheaf.vertex_blocks import relative_tolerance

# Dense maps: the eigendecomposition of one matrix of this many rows takes about ten seconds.
_DENSE_ROWS = 4096
# Sparse factors of graphs that are not nearly trees fill up to the square of the vertices.
_SPARSE_ROWS = 20_000
# The factored matrix is A + shift M; refinement takes the shift out again.
_SHIFT = 1e-6
_REFINEMENTS = 60


def solve_direct(system: LinearSystem, rhs: Tensor, *, tol: float, max_iterations: int) -> Solution:
    r"""Factorisation: sparse where the maps act on every coordinate separately, else dense.

    One sparse factorisation of the scalar Laplacian serves all columns of identity maps; diagonal
    maps take one for each coordinate. :math:`A + \varepsilon M` is factored, which is positive
    definite also where :math:`A` is singular, and the shift is taken out by refinement,
    :math:`z \leftarrow z + (A + \varepsilon M)^{-1} (f - A z)`: the error in a mode shrinks by
    :math:`\varepsilon / (\lambda + \varepsilon)` a time and the iterates stay
    :math:`M`-orthogonal to the kernel, which is the projection that the limit asks for. Dense maps
    take an eigendecomposition of :math:`M^{-1/2} A M^{-1/2}` and drop eigenvalues below a relative
    1e-10. Factors are in double precision on the CPU.

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
    if system.plan.sheaf.independent_columns:
        z = _solve_columns(system, rhs)
    else:
        z = _solve_dense(system, rhs)
    relative = system.norm(rhs - system.apply(z)) / initial
    return Solution(z, system.applications - begun, relative, relative <= tol)


def is_cheap(plan: PropagationPlan) -> bool:
    """Whether factoring costs less than iterating: identity maps on a small or tree-like graph."""
    return (
        isinstance(plan.sheaf, IdentitySheaf)
        and plan.free_index.device.type == "cpu"
        and (plan.num_free <= 500 or _nearly_tree(plan))
    )


def _nearly_tree(plan: PropagationPlan) -> bool:
    return plan.edges[0].numel() <= 1.1 * plan.num_free


def _solve_dense(system: LinearSystem, rhs: Tensor) -> Tensor:
    n, s, d = rhs.shape
    if n * d > _DENSE_ROWS:
        raise ValueError(
            f"solver='direct' would decompose a dense matrix of {n * d} rows (at most "
            f"{_DENSE_ROWS}): take solver='cg'"
        )
    plan = system.plan
    matrix = normalized_matrix(plan, d)
    values, vectors = torch.linalg.eigh(matrix.to(torch.promote_types(rhs.dtype, torch.float64)))
    if system.teleport:
        inverse = 1 / (values.clamp_min(0) + system.teleport)
    else:
        kept = values > relative_tolerance(rhs.dtype, n * d) * values[-1]
        inverse = torch.where(kept, 1 / torch.where(kept, values, 1), 0)
    y = plan.precondition_sqrt(rhs).transpose(0, 1).reshape(s, n * d).T.to(vectors.dtype)
    y = vectors @ (inverse.unsqueeze(1) * (vectors.mH @ y))
    z = y.T.reshape(s, n, d).transpose(0, 1).to(rhs.dtype)
    return plan.precondition_sqrt(z)


def _solve_columns(system: LinearSystem, rhs: Tensor) -> Tensor:
    plan, n = system.plan, rhs.shape[0]
    if n > _SPARSE_ROWS and not _nearly_tree(plan):
        raise ValueError(
            f"solver='direct' would factor a sparse matrix of {n} rows and "
            f"{plan.edges[0].numel()} triples, whose factors may fill memory (at most "
            f"{_SPARSE_ROWS} rows unless the graph is nearly a tree): take solver='cg'"
        )
    one_for_all = isinstance(plan.sheaf, IdentitySheaf)
    width = 1 if one_for_all else rhs.shape[2]
    relations = torch.arange(plan.sheaf.num_relations, device=rhs.device)
    ones = rhs.new_ones(relations.numel(), width)
    head_maps = _numpy(ones if one_for_all else plan.sheaf.restrict(ones, relations, "head"))
    tail_maps = _numpy(ones if one_for_all else plan.sheaf.restrict(ones, relations, "tail"))
    metric = _numpy(plan.apply_metric(rhs.new_ones(n, 1, width)).real)[:, 0]
    in_range = _numpy(plan.precondition(rhs.new_ones(n, 1, width)).real)[:, 0] > 0
    right = _numpy(rhs)
    out = np.zeros_like(right)
    for column in range(width):
        matrix = _laplacian(plan, head_maps[:, column], tail_maps[:, column])
        weight = metric[:, column]
        matrix = matrix + system.teleport * scipy.sparse.diags(weight)
        rows = np.flatnonzero(in_range[:, column])
        if rows.size == 0:
            continue
        columns = slice(None) if one_for_all else slice(column, column + 1)
        part = right[rows][:, :, columns]
        flat = part.reshape(rows.size, -1)
        solved = _refined(matrix[rows][:, rows], weight[rows], flat)
        out[rows, :, columns] = solved.reshape(part.shape)
    return torch.from_numpy(out).to(rhs)


def _refined(matrix: scipy.sparse.csr_array, weight: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solves for columns, complex ones as two real ones where the matrix is real."""
    split = np.iscomplexobj(right) and not np.iscomplexobj(matrix.data)
    if split:
        right = np.concatenate([right.real, right.imag], axis=1)
    right = right.astype(matrix.dtype)
    shifted = (matrix + _SHIFT * scipy.sparse.diags(weight)).tocsc()
    # Positive definite: a symmetric ordering, and no pivoting that would undo it.
    factor = scipy.sparse.linalg.splu(
        shifted,
        permc_spec="MMD_AT_PLUS_A",
        diag_pivot_thresh=0.0,
        options=dict(SymmetricMode=True),
    )
    z = np.zeros_like(right)
    residual, norm = right, np.inf
    for _ in range(_REFINEMENTS):
        fresh = z + factor.solve(residual)
        remaining = right - matrix @ fresh
        smaller = float(np.linalg.norm(remaining / np.sqrt(weight)[:, None]))
        if not smaller < norm:
            break
        gained = smaller < 0.9 * norm
        z, residual, norm = fresh, remaining, smaller
        if not gained:
            break
    if split:
        half = z.shape[1] // 2
        return z[:, :half] + 1j * z[:, half:]
    return z


def _laplacian(plan: PropagationPlan, head_map: np.ndarray, tail_map: np.ndarray):
    """The free block of the Laplacian of one coordinate, from its definition."""
    head, tail, relation, weight = (_numpy(part) for part in plan.edges)
    number = np.full(plan.num_nodes, -1)
    number[_numpy(plan.free_index)] = np.arange(plan.num_free)
    head, tail = number[head], number[tail]
    a, c, w = head_map[relation], tail_map[relation], weight.astype(np.float64)
    parts = [
        (tail, tail, w * np.abs(c) ** 2),
        (head, head, w * np.abs(a) ** 2),
        (tail, head, -w * c.conj() * a),
        (head, tail, -w * a.conj() * c),
    ]
    row, column, value = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    # A loop's four terms meet on the diagonal and give |c - a|^2.
    keep = (row >= 0) & (column >= 0)
    shape = (plan.num_free, plan.num_free)
    entries = (value[keep], (row[keep], column[keep]))
    return scipy.sparse.coo_array(entries, shape=shape).tocsr()


def _numpy(tensor: Tensor) -> np.ndarray:
    array = tensor.detach().resolve_conj().cpu().numpy()
    if array.dtype == np.float32:
        return array.astype(np.float64)
    return array.astype(np.complex128) if array.dtype == np.complex64 else array
