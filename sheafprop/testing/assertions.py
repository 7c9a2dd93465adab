"""Assertions about linear operators, sheaves and layers."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sheafprop.sheaf.dense_sheaf import DenseSheaf
from sheafprop.sheaf.relation_sheaf import RelationSheaf
from sheafprop.testing.multigraph import Multigraph

Operator = Callable[[Tensor], Tensor]


def operator_matrix(operator: Operator, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A linear operator written out, one column for each coordinate of its argument.

    Args:
        operator (Callable): Takes a tensor of ``shape`` and returns one of any shape.
        shape (tuple): Shape of its argument.
        dtype (torch.dtype): Number type of its argument.

    Returns:
        Tensor: ``[numel of the result, numel of the argument]``.
    """
    size = torch.Size(shape).numel()
    columns = [operator(unit.view(shape)).reshape(-1) for unit in torch.eye(size, dtype=dtype)]
    return torch.stack(columns, dim=1) if columns else torch.zeros(0, 0, dtype=dtype)


def assert_adjoint(
    operator: Operator,
    adjoint: Operator,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    *,
    trials: int = 3,
    seed: int = 0,
    rtol: float = 1e-9,
) -> None:
    r"""Asserts that :math:`\langle y, A x \rangle = \langle A^* y, x \rangle` for random vectors.

    The inner product is conjugated in its first argument, so that an adjoint without the conjugate
    fails for complex operators.

    Args:
        operator, adjoint (Callable): :math:`A` and :math:`A^*`.
        shape (tuple): Shape of :math:`x`.
        dtype (torch.dtype): Number type of :math:`x` and :math:`y`.
        trials (int): Pairs of random vectors.
        seed (int): Seed of the vectors.
        rtol (float): Tolerance relative to :math:`\|y\| \|A x\|`.
    """
    g = torch.Generator().manual_seed(seed)
    for _ in range(trials):
        x = torch.randn(shape, generator=g, dtype=dtype)
        image = operator(x)
        y = torch.randn(image.shape, generator=g, dtype=dtype)
        left, right = _inner(y, image), _inner(adjoint(y), x)
        scale = float(y.norm() * image.norm()) or 1.0
        error = abs(complex(left - right))
        assert error <= rtol * scale, (
            f"not the adjoint: <y, A x> = {complex(left):.6g}, <A* y, x> = {complex(right):.6g}"
        )


def assert_psd(operator: Operator | Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Asserts that an operator is Hermitian with no negative eigenvalue.

    Args:
        operator (Callable or Tensor): The operator, or its matrix.
        shape (tuple): Shape of its argument.
        dtype (torch.dtype): Number type of its argument.
    """
    matrix = _to_matrix(operator, shape, dtype)
    _assert_hermitian(matrix)
    values = torch.linalg.eigvalsh(matrix)
    if values.numel():
        low = float(values[0])
        assert low >= -_slack(matrix), f"not positive semidefinite: eigenvalue {low:.6g}"


def assert_spectrum_within(
    operator: Operator | Tensor,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    low: float = 0.0,
    high: float = 2.0,
) -> None:
    r"""Asserts that an operator is Hermitian and its eigenvalues lie in ``[low, high]``.

    The default is what a normalized sheaf Laplacian fulfils. ``operator``, ``shape`` and ``dtype``
    are those of :func:`assert_psd`.
    """
    matrix = _to_matrix(operator, shape, dtype)
    _assert_hermitian(matrix)
    values = torch.linalg.eigvalsh(matrix)
    if values.numel():
        slack = _slack(matrix)
        bottom, top = float(values[0]), float(values[-1])
        assert bottom >= low - slack, f"eigenvalue {bottom:.6g} below {low}"
        assert top <= high + slack, f"eigenvalue {top:.6g} above {high}"


def assert_equals_dense(
    operator: Operator, matrix: Tensor, shape: tuple[int, ...], *, rtol: float = 1e-9
) -> None:
    """Asserts that an operator is multiplication by a matrix.

    Args:
        operator (Callable): The operator.
        matrix (Tensor): What it should be, as :func:`operator_matrix` writes it out.
        shape (tuple): Shape of its argument.
        rtol (float): Tolerance relative to the largest entry of the matrix.
    """
    ours = operator_matrix(operator, shape, matrix.dtype)
    assert ours.shape == matrix.shape, (
        f"the operator is {list(ours.shape)}, the matrix {list(matrix.shape)}"
    )
    if matrix.numel():
        error = (ours - matrix).abs()
        scale = float(matrix.abs().max()) or 1.0
        worst = int(error.argmax())
        assert float(error.max()) <= rtol * scale, (
            f"differs from the matrix by {float(error.max()):.3g} at row "
            f"{worst // matrix.shape[1]}, column {worst % matrix.shape[1]}"
        )


def assert_permutation_equivariant(
    layer: Any,
    graph: Multigraph,
    sheaf: RelationSheaf,
    x: Tensor,
    *,
    seed: int = 0,
    atol: float = 1e-12,
) -> None:
    """Asserts that a layer does not depend on the order of vertices and edges.

    Args:
        layer (Callable): Called as the layers of :mod:`sheafprop.nn` are.
        graph (Multigraph): The graph.
        sheaf (RelationSheaf): The sheaf.
        x (Tensor): Features ``[N, d]``.
        seed (int): Seed of the other order.
        atol (float): Tolerance.
    """
    other, node = graph.permute(seed)
    expected = graph.call(layer, x, sheaf)[node]
    error = float((other.call(layer, x[node], sheaf) - expected).abs().max())
    assert error <= atol, f"another order of vertices and edges changes the result by {error:.3g}"


def assert_gauge_equivariant(
    layer: Any,
    graph: Multigraph,
    sheaf: RelationSheaf,
    x: Tensor,
    *,
    seed: int = 0,
    atol: float = 1e-8,
) -> None:
    r"""Asserts that a layer does not depend on the bases of the stalks.

    Every vertex :math:`v` gets a random unitary (orthogonal, if real) :math:`U_v` and every edge
    :math:`e` a :math:`V_e`; the maps become :math:`V_e R_h U_h^*` and :math:`V_e R_t U_t^*`, the
    translation :math:`V_e b`. A step, many steps and the limit then turn :math:`x_v` into
    :math:`U_v x_v` and nothing else. The turned sheaf is a :class:`~sheafprop.sheaf.DenseSheaf`
    with one relation for each edge, written from ``restriction_map`` alone, so that this also
    compares the sheaf's own operators with those of dense maps.

    Args:
        layer (Callable): Called as the layers of :mod:`sheafprop.nn` are.
        graph (Multigraph): The graph.
        sheaf (RelationSheaf): The sheaf.
        x (Tensor): Features ``[N, d]``, double precision.
        seed (int): Seed of the bases.
        atol (float): Tolerance.
    """
    g = torch.Generator().manual_seed(seed)
    width, num_edges = x.shape[1], graph.edge_type.numel()
    head, tail = graph.edge_index
    heads, tails = (
        torch.stack(
            [sheaf.restriction_map(r, side, width).to(x.dtype) for r in graph.edge_type.tolist()]
        )
        for side in ("head", "tail")
    )
    u = _unitary(graph.num_nodes, width, x.dtype, g)
    v = _unitary(num_edges, heads.shape[1], x.dtype, g)
    b = sheaf.translation_of(graph.edge_type)
    turned = DenseSheaf(
        v @ heads @ u[head].mH,
        v @ tails @ u[tail].mH,
        None if b is None else (v @ b.to(x.dtype).unsqueeze(-1)).squeeze(-1),
    )
    own = Multigraph(
        graph.edge_index, torch.arange(num_edges), graph.edge_weight, graph.boundary_mask
    )
    expected = _turn(u, graph.call(layer, x, sheaf))
    error = float((own.call(layer, _turn(u, x), turned) - expected).abs().max())
    assert error <= atol, f"other bases of the stalks change the result by {error:.3g}"


def _turn(u: Tensor, x: Tensor) -> Tensor:
    return (u @ x.unsqueeze(-1)).squeeze(-1)


def _unitary(count: int, width: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    q, _ = torch.linalg.qr(torch.randn(count, width, width, generator=generator, dtype=dtype))
    return q


def _inner(a: Tensor, b: Tensor) -> Tensor:
    return torch.sum(a.conj() * b)


def _to_matrix(operator: Operator | Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return operator if isinstance(operator, Tensor) else operator_matrix(operator, shape, dtype)


def _slack(matrix: Tensor) -> float:
    return 1e-9 * max(1.0, float(matrix.abs().max()))


def _assert_hermitian(matrix: Tensor) -> None:
    assert matrix.dim() == 2 and matrix.shape[0] == matrix.shape[1], (  # noqa: PT018
        f"the operator is not square (got {list(matrix.shape)})"
    )
    if matrix.numel():
        error = float((matrix - matrix.mH).abs().max())
        assert error <= _slack(matrix), f"not Hermitian: A and A* differ by {error:.3g}"
