"""Vectors of new entities from facts: the exact limit where it is unique, else finite time."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sheafprop.kge import KGEModel
from sheafprop.nn import RelationPrototypes
from sheafprop.service.exact_solution import RESOLVED, singular_entities, solve_exactly
from sheafprop.service.free_propagation import FreePropagation
from sheafprop.service.free_system import FreeSystem, components
from sheafprop.service.propagation_settings import PropagationSettings
from sheafprop.sheaf import DiagonalSheaf, IdentitySheaf, RelationSheaf

# A map is injective if its smallest singular value is not below this share of its largest.
_INJECTIVE = 1e-6

NO_ANCHOR = "no fact connects them to a known entity"
SINGULAR = "their facts leave directions open (the maps have a kernel)"


@dataclass(frozen=True)
class FreeSolution:
    """Vectors of the free entities of a system, and how they were found.

    Args:
        vectors (Tensor): ``[n, s, d]``.
        exact (Tensor): Entities with the exact solution, bool ``[n]``.
        reasons (dict): Why others have none, with their number.
        relative_residual (float): That of the exact solution.
        lengths (Tensor): Lengths, before they were scaled, of the exact vectors that were.
    """

    vectors: Tensor
    exact: Tensor
    reasons: dict[str, int]
    relative_residual: float
    lengths: Tensor = field(default_factory=lambda: torch.zeros(0))

    @classmethod
    def joined(cls, size: int, parts: Iterable[tuple[Tensor, "FreeSolution"]]) -> "FreeSolution":
        """The solution of ``size`` free entities from those of independent parts of them."""
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
        shared = getattr(sheaf, "head", None) is getattr(sheaf, "tail", None)
        self._injective = {"tail": unknown, "head": unknown if shared else unknown.clone()}

    @torch.no_grad()
    def exact(
        self, system: FreeSystem, otherwise: PropagationSettings, *, normalize_output: bool
    ) -> FreeSolution:
        """The exact solution where it is unique, scaled to the length that the model trains with
        where asked; ``otherwise`` says what is done elsewhere."""
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
                solution, lengths = self._rescaled(solution)
            out[exact] = solution
        if not bool(exact.all()):
            part = system if not bool(exact.any()) else system.part(free & ~regular)
            out[~exact] = self._propagated(part, _one_section(otherwise))
        return FreeSolution(out, exact, reasons, residual, lengths)

    @torch.no_grad()
    def finite_time(self, system: FreeSystem, settings: PropagationSettings) -> FreeSolution:
        """All vectors by propagation with these settings."""
        vectors = self._propagated(system, settings)
        return FreeSolution(vectors, torch.zeros(len(vectors), dtype=torch.bool), {}, 0.0)

    @torch.no_grad()
    def pull(self, system: FreeSystem, *, normalize_output: bool) -> float:
        """The longest distance that a full step would move a free entity from its row of ``x``."""
        plan = system.plan(self.sheaf)
        x = system.x.to(plan.dtype)
        old = x[plan.free_index]
        new = old - plan.precondition(plan.gradient(old, plan.constant(x)))
        if normalize_output:
            new, _ = self._rescaled(new)
        return float(torch.linalg.vector_norm(new - old, dim=-1).max())

    def _rescaled(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Rows at the length the model trains with, and their lengths before.

        Rows below what the solution is accurate to have no direction, and stay as they are.
        """
        length = torch.linalg.vector_norm(x, dim=-1)
        long = length > RESOLVED
        out = torch.where(long.unsqueeze(-1), self.model.rescale_entities(x), x)
        return out, length[long].float()

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
                singular = singular_entities(system, touched, component, self.sheaf)
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


def _one_section(settings: PropagationSettings) -> PropagationSettings:
    start = "prototype" if settings.start == "mixed" else settings.start
    return replace(settings, start=start, num_random=1)
