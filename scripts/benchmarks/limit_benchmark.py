"""How many operator applications the limit takes, by solver."""

import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import torch

from benchmarks.benchmark_cases import BenchmarkGraph, benchmark_case
from sheafprop.nn.solvers import SOLVERS, LinearSystem
from sheafprop.sheaf import DenseSheaf, DiagonalSheaf, IdentitySheaf, PropagationPlan, RelationSheaf

#: Relative residual to reach, and when Euler's scheme is given up.
TOLERANCE = 1e-5
MOST_APPLICATIONS = 20_000
KNOWN = (0.0, 0.05, 0.25)
_WIDTH = 4


def limit_cases(
    graph: BenchmarkGraph,
    shares: tuple[float, ...] = KNOWN,
    *,
    dense: bool = True,
    width: int = _WIDTH,
) -> Iterator[dict[str, Any]]:
    """CG and Chebyshev against Euler (h = 0.9) for each map kind and share of known entities.

    Every case carries ``applications`` and ``applications_euler``; for identity maps also the
    applications and seconds of scipy's ``cg`` and the seconds of its ``spsolve``, where L_UU is
    nonsingular.
    """
    for maps in ("identity", "diagonal", "dense")[: 3 if dense else 2]:
        for known in shares:
            plan, x = _problem(graph, maps, known, width)
            rhs = -plan.gradient(x[plan.free_index], plan.constant(x))
            counts, seconds = {}, {}
            for name in ("cg", "chebyshev", "euler"):
                system = LinearSystem(plan)
                start = time.perf_counter()
                solution = SOLVERS[name](
                    system, rhs, tol=TOLERANCE, max_iterations=MOST_APPLICATIONS
                )
                seconds[name] = time.perf_counter() - start
                counts[name] = solution.iterations
                if not solution.converged and name != "euler":
                    raise AssertionError(f"{name} stopped at {solution.relative_residual:.2g}")
            reference = _scipy(plan, rhs) if maps == "identity" and known else {}
            for name in ("cg", "chebyshev"):
                case = benchmark_case(
                    graph,
                    maps,
                    width,
                    seconds[name],
                    name=f"limit, {graph.name}, {maps}, {known:.0%} known, {name}",
                    solver=name,
                    known=known,
                    applications=counts[name],
                    applications_euler=counts["euler"],
                    seconds_euler=seconds["euler"],
                )
                yield case | reference


def _problem(
    graph: BenchmarkGraph, maps: str, known: float, width: int
) -> tuple[PropagationPlan, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    size = (graph.num_relations, width)
    sheaf: RelationSheaf
    if maps == "identity":
        sheaf = IdentitySheaf(torch.randn(size, generator=g, dtype=torch.float64))
    elif maps == "diagonal":
        phase = torch.randn(size, generator=g, dtype=torch.float64) * math.pi
        sheaf = DiagonalSheaf(head=torch.polar(torch.ones_like(phase), phase))
    else:
        pair = torch.randn(2, *size, width, generator=g, dtype=torch.float64)
        sheaf = DenseSheaf(*pair)
    mask = torch.rand(graph.num_nodes, generator=g) < known
    dtype = torch.complex128 if maps == "diagonal" else torch.float64
    x = torch.randn(graph.num_nodes, 1, width, generator=g, dtype=dtype)
    plan = PropagationPlan(
        graph.edge_index,
        graph.edge_type,
        sheaf,
        graph.num_nodes,
        boundary_mask=mask,
        dtype=dtype,
    )
    return plan, x


def _scipy(plan: PropagationPlan, rhs: torch.Tensor) -> dict[str, Any]:
    """scipy's Jacobi-preconditioned ``cg``, column by column, and ``spsolve``."""
    if plan.components_without_boundary:
        return {}
    number = torch.full((plan.num_nodes,), -1)
    number[plan.free_index] = torch.arange(plan.num_free)
    head, tail, _, weight = plan.edges
    both = (number[head] >= 0) & (number[tail] >= 0)
    ends = (number[head][both].numpy(), number[tail][both].numpy())
    shape = (plan.num_free, plan.num_free)
    one_way = scipy.sparse.csr_array((weight[both].numpy(), ends), shape=shape)
    adjacency = one_way + one_way.T
    diagonal = plan.blocks.entries[:, 0].numpy()  # type: ignore[attr-defined]
    matrix = (scipy.sparse.diags_array(diagonal) - adjacency).tocsc()
    inverse = scipy.sparse.diags_array(1 / diagonal)
    columns = rhs[:, 0].numpy()
    most, start = 0, time.perf_counter()
    for column in columns.T:
        count = [0]
        scipy.sparse.linalg.cg(
            matrix,
            column,
            rtol=TOLERANCE,
            M=inverse,
            callback=lambda _, count=count: count.__setitem__(0, count[0] + 1),
        )
        most = max(most, count[0])
    middle = time.perf_counter()
    solved = scipy.sparse.linalg.spsolve(matrix, columns)
    end = time.perf_counter()
    assert np.isfinite(solved).all()
    return {
        "applications_scipy_cg": most,
        "seconds_scipy_cg": middle - start,
        "seconds_scipy_spsolve": end - middle,
    }
