from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from sheafprop.query.candidate_scores import BranchEnergy, double, squares
from sheafprop.query.interior_prior import InteriorPrior
from sheafprop.query.query import QueryShape
from sheafprop.query.query_batch import QueryBatch
from sheafprop.sheaf import RelationSheaf


@dataclass(frozen=True, eq=False)
class Edges:
    """One edge of every query of a batch, walked from its source to its target.

    Args:
        relation (Tensor): Ids ``[Q]`` below :math:`2R`; from :math:`R` on inverse.
        weight (Tensor): Weights ``[Q]``, float64.
    """

    relation: Tensor
    weight: Tensor


@dataclass(frozen=True, eq=False)
class Branch:
    """A node of an eliminated query: an entity's vector, or the energy at the vertex it ends at."""

    shape: QueryShape
    known: Tensor | None
    energy: BranchEnergy | None
    edges: Edges | None
    inner: tuple[Branch, ...]


# Eigenvalues of a precision below this share of its largest count as zero, where no unit of a
# coordinate tells them apart.
RELATIVE_TOLERANCE = 1e-10


class Elimination(ABC):
    r"""Minimizes the energy of query graphs over their interior, from the sources to the target.

    A branch of a query hands on the quadratic :class:`BranchEnergy` of the vertex it ends at. An
    edge of weight :math:`w` from there, with maps :math:`A` at its source and :math:`B` at its
    target and translation :math:`\beta`, turns :math:`(P, m, c)` into

    .. math::
        P' = B^* S B, \qquad S = \left( w^{-1} I + A P^+ A^* \right)^{-1}, \qquad
        m' = P'^+ B^* S (A m + \beta)

    where :math:`P` is nonsingular; directions of its kernel that :math:`A` sees cost nothing and
    are projected away. An entity has infinite precision, so that its edges have :math:`S = w I`.
    Branches that meet add up. Walking from tail to head exchanges :math:`R_h` and :math:`R_t` and
    takes :math:`-b`.

    This is the Schur complement of the query graph's sheaf Laplacian (Kron reduction), see
    Gebhart, Hansen and Schrater, "Knowledge Sheaves" (2023).

    Args:
        sheaf (RelationSheaf): Maps and translations of the relations.
        x (Tensor): Vectors of the entities, ``[N, s, d]``.
        prior (InteriorPrior, optional): An energy of its own for every vertex between.
    """

    #: That of the energies, see :class:`BranchEnergy`.
    degree: ClassVar[int] = 1

    def __init__(self, sheaf: RelationSheaf, x: Tensor, prior: InteriorPrior | None = None) -> None:
        self.sheaf = sheaf
        self.x = x
        self.prior = prior
        b = sheaf.translation_of(torch.arange(sheaf.num_relations, device=x.device))
        # Rows of inverse relations follow those of the relations.
        self._translation = None if b is None else double(torch.cat([b, -b]).detach())

    @abstractmethod
    def leave(self, x: Tensor, edges: Edges) -> BranchEnergy:
        """The energy at the targets of edges whose sources are known vectors ``[Q, s, d]``."""

    @abstractmethod
    def through(self, energy: BranchEnergy, edges: Edges) -> BranchEnergy:
        """The energy at the targets of edges that start where ``energy`` applies."""

    @abstractmethod
    def join(self, energies: Sequence[BranchEnergy]) -> BranchEnergy:
        """The sum of energies at one vertex."""

    @abstractmethod
    def expected(self, prior: InteriorPrior, relation: Tensor) -> BranchEnergy:
        """The energy of the prior at vertices that relations ``[Q]`` leave."""

    @abstractmethod
    def source(self, energy: BranchEnergy, edges: Edges, target: Tensor) -> Tensor:
        """The sources ``[Q, s, d]`` that minimize ``energy`` and edge together, targets given."""

    @abstractmethod
    def apply(self, end: str, edges: Edges, x: Tensor) -> Tensor:
        """Maps vectors ``[Q, s, d]`` at the ``"source"`` or ``"target"`` of edges."""

    def shift(self, edges: Edges) -> Tensor | float:
        """The translations of edges, ``[Q, 1, k]``."""
        return 0.0 if self._translation is None else self._translation[edges.relation].unsqueeze(1)

    def residual(self, source: Tensor, edges: Edges, target: Tensor) -> Tensor:
        r"""What the edges miss, :math:`B x_t - A x_s - \beta`, ``[Q, s, k]``."""
        reached = self.apply("source", edges, source) + self.shift(edges)
        return self.apply("target", edges, target) - reached

    def run(self, batch: QueryBatch) -> Branch:
        """Eliminates a batch without unions; the result keeps the energy at every vertex."""
        columns = {slot: i for i, slot in enumerate(batch.shape.relation_slots)}
        weight = batch.edge_weight
        if weight is None:
            weight = torch.ones(len(batch), len(columns), device=batch.device)

        def visit(shape: QueryShape, start: int) -> Branch:
            inner = tuple(
                visit(branch, start + slots.start)
                for branch, slots in zip(shape.branches, shape.branch_slots, strict=True)
            )
            if shape.operator == "anchor":
                known = self.x[batch.slots[:, start]]
                return Branch(shape, double(known), None, None, inner)
            if shape.operator == "and":
                energies = [branch.energy for branch in inner if branch.energy is not None]
                return Branch(shape, None, self.join(energies), None, inner)
            slot = start + shape.num_slots - 1
            edges = Edges(batch.slots[:, slot], weight[:, columns[slot]].double())
            if inner[0].known is not None:
                energy = self.leave(inner[0].known, edges)
            else:
                before = inner[0].energy
                assert before is not None
                if self.prior is not None:
                    before = self.join([before, self.expected(self.prior, edges.relation)])
                    inner = (replace(inner[0], energy=before),)
                energy = self.through(before, edges)
            return Branch(shape, None, energy, edges, inner)

        return visit(batch.shape, 0)

    def edge_energies(self, branch: Branch, target: Tensor) -> Tensor:
        """The energy of every edge at the minimizer, ``[Q, relations, s]`` in order of the slots.

        That of the prior at a vertex counts with the edge that leaves it.

        Args:
            branch: What :meth:`run` returned.
            target: The vectors at the targets, ``[Q, s, d]``.
        """
        target = double(target)
        if branch.edges is None:
            parts = [self.edge_energies(inner, target) for inner in branch.inner]
            return torch.cat(parts, dim=1)
        (inner,) = branch.inner
        if inner.known is not None:
            source = inner.known
        else:
            assert inner.energy is not None
            source = self.source(inner.energy, branch.edges, target)
        gap = self.residual(source, branch.edges, target)
        own = (branch.edges.weight.unsqueeze(1) * squares(gap).sum(2)).unsqueeze(1)
        if inner.known is not None:
            return own
        if self.prior is not None:
            relation = branch.edges.relation
            gap = squares(source - self.prior.centre[relation])
            own = own + (self.prior.entries[relation].unsqueeze(1) * gap).sum(2).unsqueeze(1)
        return torch.cat([self.edge_energies(inner, source), own], dim=1)
