"""Solvers of the limit: each applies the same pseudo-inverse, in its own way."""

from sheafprop.nn.solvers.direct import is_cheap, solve_direct
from sheafprop.nn.solvers.iterative import solve_cg, solve_chebyshev, solve_euler
from sheafprop.nn.solvers.linear_system import LinearSystem, Solution, inner, norm_of

#: Solvers by name; all take ``(system, rhs, *, tol, max_iterations)``.
SOLVERS = {
    "cg": solve_cg,
    "chebyshev": solve_chebyshev,
    "direct": solve_direct,
    "euler": solve_euler,
}

__all__ = ["SOLVERS", "LinearSystem", "Solution", "inner", "is_cheap", "norm_of"]
