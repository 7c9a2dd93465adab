"""Computes vectors of new entities from facts: the unique minimum of the energy, or finite time."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sheafprop.errors import DivergenceError
from sheafprop.inductive.free_system import FreeSystem, components
from sheafprop.inductive.inductive_propagation import InductivePropagation
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.kge import KGEModel
from sheafprop.nn import RelationPrototypes
from sheafprop.nn.solvers import SOLVERS, LinearSystem, is_cheap
from sheafprop.sheaf import RelationSheaf
from sheafprop.sheaf.relation_sheaf import Side, double_precision

# Number of entries of the squared maps of all facts above which a plan is faster.
_MOST_NUMBERS = 2**20
# Bounds of the pivots of a block that is treated as nonsingular without further checks.
_REGULAR = 1e-5


def solve_lone_blocks(system: FreeSystem, sheaf: RelationSheaf) -> Tensor | None:
    r"""Minimizes the energy if no fact connects two free entities.

    .. math::
        x_u = \left( \sum_e R_{u,e}^* R_{u,e} \right)^{-1}
        \sum_e R_{u,e}^* \left( R_{v,e} x_v \pm b_e \right)

    where the sums are over the facts :math:`e` of :math:`u`, weighted if facts have weights,
    :math:`v` is the known entity of :math:`e`, and the sign of :math:`b_e` is positive if :math:`u`
    is the tail.

    Returns:
        Vectors of the free entities ``[n, s, d]`` in double precision, or None if a plan is faster
        or a block is close to singular.
    """
    size = system.x.shape[2]
    if system.edge_type.numel() * size**2 > _MOST_NUMBERS:
        return None
    free = ~system.boundary_mask
    into_tail = system.boundary_mask[system.edge_index[0]]
    known, own = torch.where(into_tail, system.edge_index, system.edge_index.flip(0))
    own = (torch.cumsum(free, 0) - 1)[own]
    sheaf, edge_type = system.own_sheaf(sheaf)
    tail = near = far = sheaf.matrices("tail", edge_type).detach()
    if not sheaf.shares_maps:
        head = sheaf.matrices("head", edge_type).detach()
        side = into_tail.view(-1, 1, 1)
        near, far = torch.where(side, tail, head), torch.where(side, head, tail)
    near, far = double_precision(near), double_precision(far)
    dtype = near.dtype
    target = system.x[known].to(dtype) @ far.mT
    shift = sheaf.translation_of(edge_type)
    if shift is not None:
        shift = shift.detach().to(dtype)
        target = target + torch.where(into_tail.unsqueeze(1), shift, -shift).unsqueeze(1)
    num_free = int(free.sum())
    if system.edge_weight is not None:
        root = system.edge_weight.sqrt().to(dtype).view(-1, 1, 1)
        near, target = near * root, target * root
    blocks = target.new_zeros(num_free, size, size).index_add_(0, own, near.mH @ near)
    constant = target.new_zeros(num_free, target.shape[1], size)
    constant.index_add_(0, own, target @ near.conj())
    factor, failed = torch.linalg.cholesky_ex(blocks)
    pivots = factor.diagonal(dim1=1, dim2=2).real
    if bool(failed.any() | (pivots.amin(1) <= _REGULAR * pivots.amax(1)).any()):
        return None
    return torch.cholesky_solve(constant.mT, factor).mT


# Relative residual of an exact solution. It is computed in double precision, and below the
# resolution of vectors in single precision.
_TOL = 1e-12
_SINGLE_TOL = 1e-9
_GOOD = 1e-8
#: Rows of an exact solution with a smaller norm, relative to that of the training, may be rounding
#: errors, since the residual is of this order.
RESOLVED = _GOOD
_MAX_ITERATIONS = 20_000
# Smaller relative changes by a step are rounding errors, since rows may be in single precision.
_AT_REST = 1e-5
# If the system has a kernel, a random vector keeps at least this fraction of its norm.
_KERNEL = 1e-5


def solve_exactly(system: FreeSystem, sheaf: RelationSheaf) -> tuple[Tensor, float]:
    r"""Returns the minimum ``[n, s, d]`` of a nonsingular system, and its relative residual.

    Raises:
        DivergenceError: If the solver does not converge.
    """
    known = system.boundary_mask
    head, tail = system.edge_index
    alone = bool((known[head] | known[tail]).all())
    if alone and not sheaf.independent_columns:
        vectors = solve_lone_blocks(system, sheaf)
        if vectors is not None:
            return vectors.to(system.x.dtype), 0.0
    plan = system.plan(sheaf)
    constant = plan.constant(system.x.to(plan.dtype))
    if alone:
        # New entities without facts among each other: the system is block diagonal.
        return plan.precondition(constant).to(system.x.dtype), 0.0
    linear = LinearSystem(plan)
    tol = _TOL if system.x.dtype == plan.dtype else _SINGLE_TOL
    solution = SOLVERS["direct" if is_cheap(plan) else "cg"](
        linear, constant, tol=tol, max_iterations=_MAX_ITERATIONS
    )
    if not solution.relative_residual <= _GOOD:
        raise DivergenceError(
            "the exact solution was not reached (relative residual "
            f"{solution.relative_residual:.1g}): give PropagationSettings as 'propagation', which "
            "stop at finite time"
        )
    return solution.correction.to(system.x.dtype), solution.relative_residual


def singular_entities(
    system: FreeSystem, touched: Tensor, component: Tensor, sheaf: RelationSheaf
) -> Tensor:
    """Returns the free entities of ``touched`` components whose system has a kernel, bool ``[N]``.

    The system is solved for a random vector. The remainder lies in the kernel, or cannot be reached
    by the solver, which is treated alike.
    """
    part = system.part(touched)
    plan = part.plan(sheaf)
    generator = torch.Generator().manual_seed(0)
    shape = (plan.num_free, 1, system.x.shape[2])
    probe = torch.randn(shape, generator=generator, dtype=plan.dtype)
    linear = LinearSystem(plan)
    image = linear.apply(probe)
    rest = probe
    if linear.norm(image) > 0:
        solution = SOLVERS["cg"](linear, image, tol=_TOL, max_iterations=_MAX_ITERATIONS)
        rest = probe - solution.correction
    of = component[touched]

    def lengths(values: Tensor) -> Tensor:
        squares = torch.linalg.vector_norm(values.flatten(1), dim=1) ** 2
        return torch.zeros(len(component), dtype=squares.dtype).index_add_(0, of, squares)

    kernel = lengths(rest) > _KERNEL**2 * lengths(probe)
    return kernel[component] & touched


# A map is injective if its smallest singular value is at least this fraction of its largest.
_INJECTIVE = 1e-6

NO_ANCHOR = "no fact connects them to a known entity"
SINGULAR = "their facts leave directions open (the maps have a kernel)"


@dataclass(frozen=True)
class FreeSolution:
    """The vectors of the free entities of a system.

    Args:
        vectors (Tensor): The vectors ``[n, s, d]``.
        exact (Tensor): Entities with an exact solution, bool ``[n]``.
        reasons (dict): Number of the other entities by reason.
        relative_residual (float): Relative residual of the exact solution.
        lengths (Tensor): Norms of the exact vectors that were scaled, before scaling.
    """

    vectors: Tensor
    exact: Tensor
    reasons: dict[str, int]
    relative_residual: float
    lengths: Tensor = field(default_factory=lambda: torch.zeros(0))

    @classmethod
    def join(cls, size: int, parts: Iterable[tuple[Tensor, "FreeSolution"]]) -> "FreeSolution":
        """Joins the solutions of independent parts of ``size`` free entities."""
        vectors, exact = torch.empty(0), torch.zeros(size, dtype=torch.bool)
        reasons: Counter[str] = Counter()
        residual = 0.0
        lengths = [torch.zeros(0)]
        for position, part in parts:
            if not len(vectors):
                vectors = part.vectors.new_empty(size, *part.vectors.shape[1:])
            vectors[position], exact[position] = part.vectors, part.exact
            reasons.update(part.reasons)
            residual = max(residual, part.relative_residual)
            lengths.append(part.lengths)
        return cls(vectors, exact, dict(reasons), residual, torch.cat(lengths))


class ExtensionSolver:
    r"""Solves for the vectors of new entities with the sheaf of a model.

    Connected components of new entities are independent. A component that is connected to a known
    entity and whose system is nonsingular is solved exactly, for the unique minimum of the energy.
    Other components are propagated for a finite time from a random start.

    Args:
        model (KGEModel): The trained model.
        sheaf (RelationSheaf): The sheaf of the model.
        prototypes (RelationPrototypes): Mean trained vectors per relation and side.
        variance (Tensor): Mean squared residuals of the relations in training, ``[R]``.
    """

    def __init__(
        self,
        model: KGEModel,
        sheaf: RelationSheaf,
        prototypes: RelationPrototypes,
        variance: Tensor,
    ):
        self.model, self.sheaf = model, sheaf
        self.prototypes, self.variance = prototypes, variance
        # Whether the maps of each relation are injective, computed on first use.
        unknown = torch.full((sheaf.num_relations,), -1, dtype=torch.int8)
        head = unknown if sheaf.shares_maps else unknown.clone()
        self._injective = {"tail": unknown, "head": head}

    @torch.no_grad()
    def exact(
        self, system: FreeSystem, otherwise: PropagationSettings, *, normalize_output: bool
    ) -> FreeSolution:
        """Returns the exact solution where it is unique, optionally scaled to the norm of the
        training; other entities are solved by ``otherwise``."""
        component, anchored = components(system)
        free = ~system.boundary_mask
        regular, reasons = self._regular(system, component, anchored)
        num_sections = system.x.shape[1]
        out = system.x.new_zeros(int(free.sum()), num_sections, system.x.shape[2])
        exact = regular[free]
        residual, lengths = 0.0, torch.zeros(0)
        if bool(exact.any()):
            part = system if bool(exact.all()) else system.part(regular)
            solution, residual = solve_exactly(part, self.sheaf)
            if normalize_output:
                solution, lengths = self._rescale(solution)
            out[exact] = solution
        if not bool(exact.all()):
            part = system if not bool(exact.any()) else system.part(free & ~regular)
            start = "prototype" if otherwise.start == "mixed" else otherwise.start
            settings = replace(otherwise, start=start, num_random=1)  # one section
            out[~exact] = self._propagate(part, settings)
        return FreeSolution(out, exact, reasons, residual, lengths)

    @torch.no_grad()
    def finite_time(self, system: FreeSystem, settings: PropagationSettings) -> FreeSolution:
        """Computes all vectors by propagation with the given settings."""
        vectors = self._propagate(system, settings)
        return FreeSolution(vectors, torch.zeros(len(vectors), dtype=torch.bool), {}, 0.0)

    @torch.no_grad()
    def pull(self, system: FreeSystem, *, normalize_output: bool) -> float:
        """Returns the largest change of a free entity by a full step from ``x``; zero if it is
        below rounding errors."""
        plan = system.plan(self.sheaf)
        x = system.x.to(plan.dtype)
        old = x[plan.free_index]
        new = old - plan.precondition(plan.gradient(old, plan.constant(x)))
        if normalize_output:
            new, _ = self._rescale(new)
        distance = float(torch.linalg.vector_norm(new - old, dim=-1).max())
        length = float(torch.linalg.vector_norm(x, dim=-1).max())
        return distance if distance > _AT_REST * length else 0.0

    def _rescale(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Scales rows to the norm of the training, and returns their previous norms.

        Rows below the accuracy of the solution have no reliable direction and are not scaled.
        """
        length = torch.linalg.vector_norm(x, dim=-1)
        long = length > RESOLVED * self.model.trained_length()
        out = torch.where(long.unsqueeze(-1), self.model.rescale_entities(x), x)
        return out, length[long].float()

    def _propagate(self, system: FreeSystem, settings: PropagationSettings) -> Tensor:
        propagation = InductivePropagation.from_system(
            self.model,
            system,
            settings,
            sheaf=self.sheaf,
            prototypes=self.prototypes,
            variance=self.variance,
        )
        return propagation.vectors()[~system.boundary_mask]

    def _regular(
        self, system: FreeSystem, component: Tensor, anchored: Tensor
    ) -> tuple[Tensor, dict[str, int]]:
        """Returns the free entities of nonsingular components, bool ``[N]``, and the reasons for
        the others."""
        free = ~system.boundary_mask
        regular = free & anchored
        reasons: Counter[str] = Counter()
        reasons[NO_ANCHOR] = int((free & ~anchored).sum())
        doubtful = self._doubtful(system)
        if bool(doubtful.any()):
            touched = torch.zeros_like(free)
            touched[component[doubtful]] = True
            touched = touched[component] & regular
            if bool(touched.any()):
                singular = singular_entities(system, touched, component, self.sheaf)
                regular = regular & ~singular
                reasons[SINGULAR] = int(singular.sum())
        return regular, {reason: count for reason, count in reasons.items() if count}

    def _doubtful(self, system: FreeSystem) -> Tensor:
        """Returns the free entities of facts with a map that is not injective, bool ``[N]``."""
        out = torch.zeros_like(system.boundary_mask)
        # The maps to the features are injective.
        facts = system.edge_type < self.sheaf.num_relations
        used, position = torch.unique(system.edge_type[facts], return_inverse=True)
        ends: tuple[tuple[int, Side], ...] = ((1, "tail"), (0, "head"))
        for row, side in ends:
            found = self._injective[side]
            new = used[found[used] < 0]
            if new.numel():
                found[new] = self.sheaf.select(new).is_injective(side, _INJECTIVE).to(found.dtype)
            bad = found[used] == 0
            out[system.edge_index[row][facts][bad[position]]] = True
        return out & ~system.boundary_mask
