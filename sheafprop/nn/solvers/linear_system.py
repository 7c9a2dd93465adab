import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sheafprop.errors import DivergenceError
from sheafprop.sheaf.plan import PropagationPlan
from sheafprop.sheaf.spectrum import upper_bound


@dataclass(frozen=True)
class Solution:
    r"""What a solver found for :math:`A z = f`.

    Args:
        correction (Tensor): :math:`z = A^\# f`, ``[n, s, d]``.
        iterations (int): Applications of the operator.
        relative_residual (float): :math:`\|M^{-1/2} (f - A z)\| / \|M^{-1/2} f\|`, from the
            returned :math:`z`; 0 for :math:`f = 0`.
        converged (bool): Whether the tolerance was met, or the residual is no larger than the
            rounding in :math:`f`.
        note (str): What else keeps the result from being exact; empty if nothing does.
    """

    correction: Tensor
    iterations: int
    relative_residual: float
    converged: bool
    note: str = ""


class LinearSystem:
    r"""The operator :math:`A = L_{UU} + a M` of a limit, as the solvers see it.

    A solver returns :math:`A^\# f = M^{-1/2} (M^{-1/2} A M^{-1/2})^+ M^{-1/2} f` for a right-hand
    side :math:`f` in the range of :math:`A`, and the limit is :math:`x_0 - A^\# g_0`. Krylov and
    fixed-point methods get it by starting from zero: their iterates stay in the range of
    :math:`M^+ A`, on which :math:`A^\#` inverts :math:`A`.

    Args:
        plan (PropagationPlan): The operators.
        teleport (float): :math:`a \ge 0`.
        sections (Tensor, optional): All vertices ``[N, s, d]`` with the start :math:`x_0`, for a
            right-hand side :math:`g_0`; residuals can then be computed edge by edge.
        rounding (float): Norm of what rounding leaves in the right-hand side, from
            :func:`rounding_of`. No residual gets below it where :math:`A` is singular.
    """

    def __init__(
        self,
        plan: PropagationPlan,
        teleport: float = 0.0,
        sections: Tensor | None = None,
        rounding: float = 0.0,
    ):
        self.plan, self.teleport, self.sections = plan, teleport, sections
        self.rounding = rounding
        #: How many times the operator was applied.
        self.applications = 0

    @property
    def separate(self) -> tuple[int, ...]:
        """Dimensions of ``[n, s, d]`` that a scalar product sums over, one product per rest."""
        return (0,) if self.plan.sheaf.independent_columns else (0, 2)

    @property
    def upper(self) -> float:
        r"""A bound on the spectrum of :math:`M^{-1/2} A M^{-1/2}`; below it lies :math:`a`."""
        return upper_bound(self.plan) + self.teleport

    def apply(self, v: Tensor) -> Tensor:
        r"""Multiplies ``v`` ``[n, s, d]`` by the operator, :math:`A v`, and counts it."""
        self.applications += 1
        return self.add_metric(self.plan.laplacian(v), v)

    def apply_preconditioned(self, image: Tensor, residual: Tensor) -> Tensor:
        r"""Multiplies :math:`M^+ r` by the operator, for :math:`r` in the range of :math:`M`.

        With dense blocks :math:`D D^+ r = r` costs no product.

        Args:
            image (Tensor): :math:`M^+ r`.
            residual (Tensor): :math:`r`.
        """
        if self.plan.normalization != "block" or self.plan.sheaf.independent_columns:
            return self.apply(image)
        self.applications += 1
        kept = self.plan.project(residual)
        return (1 + self.teleport) * kept - self.plan.couple(image)

    def add_metric(self, image: Tensor, v: Tensor) -> Tensor:
        r"""Adds :math:`a M v` to ``image``, :math:`L_{UU} v`; both ``[n, s, d]``."""
        return image + self.teleport * self.plan.apply_metric(v) if self.teleport else image

    def precondition(self, residual: Tensor) -> Tensor:
        r"""Applies :math:`M^+` to a ``residual`` ``[n, s, d]``."""
        return self.plan.precondition(residual)

    def goal(self, initial: float, tol: float) -> float:
        """Returns the residual norm at which a solver is done: the share ``tol`` of the ``initial``
        one, or what rounding leaves."""
        return max(tol * initial, self.rounding)

    def meets(self, norm: float, initial: float, tol: float) -> bool:
        """Returns whether a residual of this ``norm`` counts as converged from the ``initial`` one.

        Rounding excuses it only where the number type could meet the tolerance ``tol`` at all.
        """
        possible = tol >= torch.finfo(self.plan.dtype).eps
        return norm <= (self.goal(initial, tol) if possible else tol * initial)

    def resolves(self, curvature: Tensor, squared: Tensor) -> Tensor:
        r"""Whether the operator sees more of a residual than its kernel.

        A Rayleigh quotient :math:`\langle M^+ r, A M^+ r \rangle / \langle r, M^+ r \rangle` at
        rounding level says that what is left of :math:`r` lies in the kernel; a step towards it
        would have the length of one number over another that are both rounding.

        Args:
            curvature (Tensor): :math:`\langle M^+ r, A M^+ r \rangle`.
            squared (Tensor): :math:`\langle r, M^+ r \rangle`.
        """
        return curvature > self._smallest_quotient * squared

    @cached_property
    def _smallest_quotient(self) -> float:
        return _sum_error(self.plan) * self.upper

    def norm(self, residual: Tensor) -> float:
        r""":math:`\|M^{-1/2} r\|` of a ``residual`` :math:`r`, over all columns."""
        return self.norm_of(residual, self.precondition(residual))

    def norm_of(self, residual: Tensor, image: Tensor) -> float:
        r"""The same of a ``residual`` :math:`r` whose ``image`` :math:`M^+ r` is known."""
        return norm_of(residual, image, self.plan)

    def inner(self, *pairs: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        """Real parts of scalar products along :attr:`separate`, over all free vertices, of each
        pair; processes that share the graph add up all of them at once."""
        products = torch.stack([inner(a, b, self.separate) for a, b in pairs])
        return self.plan.total(products).unbind()


def norm_of(residual: Tensor, image: Tensor, plan: PropagationPlan | None = None) -> float:
    r""":math:`\langle r, M^+ r \rangle^{1/2}`, added up in double precision.

    Args:
        residual (Tensor): :math:`r`, ``[n, s, d]``.
        image (Tensor): :math:`M^+ r`.
        plan (PropagationPlan, optional): Whose free vertices these are, which processes may share.

    Raises:
        DivergenceError: If it is not finite.
    """
    squared = inner(residual, image, (0,)).sum(dtype=torch.float64)
    squared = squared if plan is None else plan.total(squared)
    if not math.isfinite(float(squared)):
        raise DivergenceError(
            f"a residual is not finite in {residual.dtype}: scale features, maps, translations or "
            "weights down, or take double precision"
        )
    return math.sqrt(max(0.0, float(squared)))


def rounding_of(plan: PropagationPlan, *terms: Tensor) -> float:
    r"""A bound on the :math:`M^{-1/2}`-norm of the rounding in a sum of ``terms`` ``[n, s, d]``,
    which are sums over the triples at a vertex themselves."""
    return _sum_error(plan) * sum(norm_of(term, plan.precondition(term), plan) for term in terms)


def _sum_error(plan: PropagationPlan) -> float:
    """Relative error of a sum over the triples at a vertex: a few roundings for products and
    stored blocks, and at most one in double precision for each term."""
    head, tail = plan.edges[:2]
    most = int(torch.bincount(torch.cat([head, tail])).max()) if head.numel() else 0
    most = int(plan.largest(most))
    return 4 * torch.finfo(plan.dtype).eps + most * torch.finfo(torch.float64).eps


def inner(a: Tensor, b: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Real parts of scalar products of ``a`` and ``b`` along ``dims``, which stay as ones."""
    product = (a.conj() * b).real if a.is_complex() else a * b
    return product.sum(dim=dims, keepdim=True)
