"""Vectors of new entities from facts: the exact limit where it is unique, else finite time."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from sheafprop.data import connected_components
from sheafprop.errors import DivergenceError
from sheafprop.kge import KGEModel
from sheafprop.nn import RelationPrototypes
from sheafprop.nn.solvers import SOLVERS, LinearSystem, is_cheap
from sheafprop.service.free_propagation import FreePropagation
from sheafprop.service.propagation_settings import PropagationSettings
from sheafprop.sheaf import DenseSheaf, DiagonalSheaf, IdentitySheaf, PropagationPlan, RelationSheaf

# Relative residual of an exact solution, which is found in double precision; beyond what single
# precision can hold, where vectors are stored so.
_TOL = 1e-12
_SINGLE_TOL = 1e-9
_GOOD = 1e-8
_MAX_ITERATIONS = 20_000
# A map is injective if its smallest singular value is not below this share of its largest.
_INJECTIVE = 1e-6
# A random vector keeps more than this share of its length where the system has a kernel.
_KERNEL = 1e-5

NO_ANCHOR = "no fact connects them to a known entity"
SINGULAR = "their facts leave directions open (the maps have a kernel)"


@dataclass(frozen=True)
class FreeSystem:
    """The part of a graph that new vectors depend on, in local numbers.

    Args:
        x (Tensor): Vectors of all local entities ``[N, s, d]``; rows of free ones are not read.
        boundary_mask (Tensor): Known and fixed entities, bool ``[N]``.
        edge_index (Tensor): Heads and tails of the facts that touch a free entity, ``[2, E]``.
        edge_type (Tensor): Their relations, ``[E]``.
        labels (sequence of str): Labels of the free entities, in the order of their numbers.
    """

    x: Tensor
    boundary_mask: Tensor
    edge_index: Tensor
    edge_type: Tensor
    labels: Sequence[str]

    def part(self, free: Tensor) -> "FreeSystem":
        """The system of some free entities ``[N]`` that no fact connects to the others."""
        head, tail = self.edge_index
        edges = free[head] | free[tail]
        kept = free.clone()
        kept[self.edge_index[:, edges].flatten()] = True
        number = torch.cumsum(kept, 0) - 1
        own = free[~self.boundary_mask].tolist()
        return FreeSystem(
            self.x[kept],
            self.boundary_mask[kept],
            number[self.edge_index[:, edges]],
            self.edge_type[edges],
            [label for label, inside in zip(self.labels, own, strict=True) if inside],
        )


@dataclass(frozen=True)
class FreeSolution:
    """Vectors of the free entities of a system, and how they were found.

    Args:
        vectors (Tensor): ``[n, s, d]``.
        exact (Tensor): Entities with the exact solution, bool ``[n]``.
        reasons (dict): Why others have none, with their number.
        relative_residual (float): That of the exact solution.
    """

    vectors: Tensor
    exact: Tensor
    reasons: dict[str, int]
    relative_residual: float


class ExtensionSolver:
    r"""Solves for the vectors of new entities under a model's sheaf.

    A group of new entities that facts connect among each other is solved exactly, for the unique
    minimum of the energy, where it reaches a known entity and its system is nonsingular. The other
    groups are propagated for a finite time from a seeded start. A group does not depend on others.

    Args:
        model (KGEModel): The trained model.
        sheaf (RelationSheaf): Its sheaf.
        prototypes (RelationPrototypes): Mean trained vectors at each (relation, side).
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
        # Whether the maps of each relation are injective: found when a relation is first met.
        unknown = torch.full((sheaf.num_relations,), -1, dtype=torch.int8)
        shared = isinstance(sheaf, DenseSheaf) and sheaf.head is sheaf.tail
        self._injective = {"tail": unknown, "head": unknown if shared else unknown.clone()}

    @torch.no_grad()
    def exact(self, system: FreeSystem, otherwise: PropagationSettings) -> FreeSolution:
        """The exact solution where it is unique; ``otherwise`` says what is done elsewhere."""
        component, anchored = components(system)
        free = ~system.boundary_mask
        regular, reasons = self._regular(system, component, anchored)
        num_sections = system.x.shape[1]
        out = system.x.new_zeros(int(free.sum()), num_sections, system.x.shape[2])
        exact = regular[free]
        residual = 0.0
        if bool(exact.any()):
            part = system if bool(exact.all()) else system.part(regular)
            out[exact], residual = _solve(part, self.sheaf)
        if not bool(exact.all()):
            part = system if not bool(exact.any()) else system.part(free & ~regular)
            out[~exact] = self._propagated(part, _one_section(otherwise))
        return FreeSolution(out, exact, reasons, residual)

    @torch.no_grad()
    def finite_time(self, system: FreeSystem, settings: PropagationSettings) -> FreeSolution:
        """All vectors by propagation with these settings."""
        vectors = self._propagated(system, settings)
        return FreeSolution(vectors, torch.zeros(len(vectors), dtype=torch.bool), {}, 0.0)

    @torch.no_grad()
    def pull(self, system: FreeSystem) -> float:
        """The longest distance that a full step would move a free entity from its row of ``x``."""
        plan, x = _plan(system, self.sheaf)
        step = plan.precondition(plan.gradient(x[plan.free_index], plan.constant(x)))
        return float(torch.linalg.vector_norm(step, dim=-1).max())

    def _propagated(self, system: FreeSystem, settings: PropagationSettings) -> Tensor:
        propagation = FreePropagation(
            self.model,
            settings,
            system.x,
            system.boundary_mask,
            system.edge_index,
            system.edge_type,
            sheaf=self.sheaf,
            free_labels=system.labels,
            prototypes=self.prototypes,
            variance=self.variance,
        )
        return propagation.vectors()[~system.boundary_mask]

    def _regular(
        self, system: FreeSystem, component: Tensor, anchored: Tensor
    ) -> tuple[Tensor, dict[str, int]]:
        """Free entities whose component has a nonsingular system, bool ``[N]``, and why not."""
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
                singular = _singular(system, touched, component, self.sheaf)
                regular = regular & ~singular
                reasons[SINGULAR] = int(singular.sum())
        return regular, {reason: count for reason, count in reasons.items() if count}

    def _doubtful(self, system: FreeSystem) -> Tensor:
        """Free entities at a map that is not injective, bool ``[N]``."""
        out = torch.zeros_like(system.boundary_mask)
        used, position = torch.unique(system.edge_type, return_inverse=True)
        for row, side in ((1, "tail"), (0, "head")):
            found = self._injective[side]
            new = used[found[used] < 0]
            if new.numel():
                found[new] = _injective(self.sheaf, new, side).to(found.dtype)
            bad = found[used] == 0
            out[system.edge_index[row][bad[position]]] = True
        return out & ~system.boundary_mask


def components(system: FreeSystem, anchors: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The component of each entity among free ones, and whether it reaches one of the anchors.

    Args:
        system (FreeSystem): The system.
        anchors (Tensor, optional): Bool ``[N]``; all known entities without it.
    """
    head, tail = system.edge_index
    known = system.boundary_mask
    anchors = known if anchors is None else anchors
    inner = ~known[head] & ~known[tail]
    component = connected_components(system.edge_index[:, inner], len(known))
    reaches = torch.zeros_like(known)
    reaches[component[tail[anchors[head] & ~known[tail]]]] = True
    reaches[component[head[anchors[tail] & ~known[head]]]] = True
    return component, reaches[component] & ~known


def _injective(sheaf: RelationSheaf, relations: Tensor, side: str) -> Tensor:
    if isinstance(sheaf, IdentitySheaf):
        return torch.ones(len(relations), dtype=torch.bool)
    table = getattr(sheaf, side)
    if table is None:
        return torch.ones(len(relations), dtype=torch.bool)
    maps = table[relations]
    if isinstance(sheaf, DiagonalSheaf):
        size = maps.abs()
        return size.amin(1) > _INJECTIVE * size.amax(1)
    if maps.shape[1] < maps.shape[2]:
        return torch.zeros(len(relations), dtype=torch.bool)
    values = torch.linalg.svdvals(maps)
    return values[:, -1] > _INJECTIVE * values[:, 0]


def _plan(system: FreeSystem, sheaf: RelationSheaf) -> tuple[PropagationPlan, Tensor]:
    """The operators in double precision, over the relations that occur."""
    used, edge_type = torch.unique(system.edge_type, return_inverse=True)
    wide = torch.complex128 if system.x.is_complex() else torch.float64
    plan = PropagationPlan(
        system.edge_index,
        edge_type,
        _narrowed(sheaf, used),
        len(system.x),
        boundary_mask=system.boundary_mask,
        normalization="block",
        dtype=wide,
    )
    return plan, system.x.to(wide)


def _narrowed(sheaf: RelationSheaf, used: Tensor) -> RelationSheaf:
    if isinstance(sheaf, IdentitySheaf) and sheaf.translation is None:
        return IdentitySheaf(None, relations=len(used))

    def rows(table: Tensor) -> Tensor:
        part = table.detach()[used]
        return part.to(torch.complex128 if part.is_complex() else torch.float64)

    if isinstance(sheaf, DenseSheaf) and sheaf.head is sheaf.tail:
        shared = rows(sheaf.head)
        shift = None if sheaf.translation is None else rows(sheaf.translation)
        return DenseSheaf(shared, shared, shift)
    return tree_map(lambda leaf: rows(leaf) if isinstance(leaf, Tensor) else leaf, sheaf)


def _solve(system: FreeSystem, sheaf: RelationSheaf) -> tuple[Tensor, float]:
    plan, x = _plan(system, sheaf)
    constant = plan.constant(x)
    known = system.boundary_mask
    head, tail = system.edge_index
    if bool((known[head] | known[tail]).all()):
        # New entities that meet known ones only: every block stands alone.
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


def _singular(
    system: FreeSystem, touched: Tensor, component: Tensor, sheaf: RelationSheaf
) -> Tensor:
    """Free entities of ``touched`` components whose system has a kernel, bool ``[N]``.

    A random vector is solved for: what is left of it lies in the kernel, or is out of the solver's
    reach, which is as bad.
    """
    part = system.part(touched)
    plan, _ = _plan(part, sheaf)
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


def _one_section(settings: PropagationSettings) -> PropagationSettings:
    start = "prototype" if settings.start == "mixed" else settings.start
    return replace(settings, start=start, num_random=1)
