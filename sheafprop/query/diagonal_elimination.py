from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sheafprop.kernels.algebra import Algebra
from sheafprop.kernels.rows import real_rows
from sheafprop.query.candidate_scores import BranchEnergy, double, squares
from sheafprop.query.elimination import Edges, Elimination
from sheafprop.query.interior_prior import InteriorPrior
from sheafprop.sheaf import RelationSheaf


@dataclass(frozen=True, eq=False)
class DiagonalEnergy(BranchEnergy):
    """A branch energy whose precision is diagonal, or a multiple of the identity.

    Args:
        middle (Tensor): The centre, ``[Q, s, d]``.
        entries (Tensor): The diagonal, real ``[Q, d]``; ``[Q, 1]`` for multiples of the identity.
    """

    middle: Tensor
    entries: Tensor

    @property
    def centre(self) -> Tensor:
        return self.middle

    def precision(self) -> Tensor:
        diagonal = self.entries.expand(-1, self.middle.shape[-1])
        return torch.diag_embed(diagonal).to(self.middle.dtype)

    def features(self, x: Tensor) -> Tensor:
        lengths = x.square()
        if self.entries.shape[1] == 1:
            lengths = lengths.sum(1, keepdim=True)
        elif self.middle.is_complex():
            lengths = lengths.unflatten(1, (-1, 2)).sum(2)
        return torch.cat([x, lengths, torch.ones_like(x[:, :1])], dim=1).T

    def coefficients(self, section: int) -> Tensor:
        m = self.middle[:, section]
        last = (self.entries * squares(m)).sum(1) + self.constant[:, section]
        return torch.cat([real_rows(-2 * self.entries * m), self.entries, last[:, None]], dim=1)

    def at(self, row: Tensor, x: Tensor, section: int) -> Tensor:
        gap = squares(x - self.middle[row, section])
        return (self.entries[row] * gap).sum(1) + self.constant[row, section]

    def size(self, section: int, longest: Tensor) -> Tensor:
        return self.entries.amax(1) * (longest + squares(self.middle[:, section]).sum(1))


class DiagonalElimination(Elimination):
    r"""Elimination for identity and diagonal maps: every coordinate is a resistor network.

    Where all maps have modulus one and no prior tells coordinates apart, the precision is a number
    :math:`p`, and an edge behind it gives :math:`w p / (w + p)`. Maps of quaternions keep the
    precision a number in every quaternion, unless a prior tells its four columns apart.

    Args:
        sheaf (RelationSheaf): Maps that are rows of a table, and translations of the relations.
        x (Tensor): Vectors of the entities, ``[N, s, d]``.
        prior (InteriorPrior, optional): An energy of its own for every vertex between.
    """

    def __init__(self, sheaf: RelationSheaf, x: Tensor, prior: InteriorPrior | None = None) -> None:
        super().__init__(sheaf, x, prior)
        if not self.takes(sheaf, prior):
            raise ValueError(
                "the maps must be diagonal, and so must the prior's energy be under them (got a "
                f"{type(sheaf).__name__})"
            )
        head, tail = sheaf.diagonals("head"), sheaf.diagonals("tail")
        self._algebra = sheaf.algebra
        # Rows of inverse relations follow those of the relations.
        self._source_map = _both(head, tail, sheaf.algebra)
        self._target_map = _both(tail, head, sheaf.algebra)
        self._scalar = all(
            table is None
            or bool(((sheaf.algebra.squares(table).sqrt() - 1).abs() <= _slack(table)).all())
            for table in (head, tail)
        )

    @staticmethod
    def takes(sheaf: RelationSheaf, prior: InteriorPrior | None = None) -> bool:
        """Whether all precisions are diagonal under these maps and such a prior."""
        return sheaf.independent_columns or (sheaf.has_diagonal_blocks and prior is None)

    def leave(self, x: Tensor, edges: Edges) -> DiagonalEnergy:
        return self._arrive(x, torch.zeros_like(x[..., 0].real), edges.weight.unsqueeze(1), edges)

    def through(self, energy: BranchEnergy, edges: Edges) -> DiagonalEnergy:
        p = _entries(energy)
        free, weight = self._source_precision(p, edges), edges.weight.unsqueeze(1)
        # A coordinate that nothing holds moves along freely, unless the edge does not see it.
        stiffness = torch.where(free > 0, weight * p / torch.where(free > 0, free, 1), weight)
        return self._arrive(energy.centre, energy.constant, stiffness, edges)

    def join(self, energies: Sequence[BranchEnergy]) -> DiagonalEnergy:
        parts = [(_entries(energy), energy) for energy in energies]
        total = sum((p for p, _ in parts), torch.zeros_like(parts[0][0]))
        moment = sum(p.unsqueeze(1) * energy.centre for p, energy in parts)
        centre = _reciprocal(total).unsqueeze(1) * moment
        constant = torch.zeros_like(energies[0].constant)
        for p, energy in parts:
            gap = squares(energy.centre - centre)
            constant = constant + energy.constant + (p.unsqueeze(1) * gap).sum(-1)
        return DiagonalEnergy(constant, centre, total)

    def expected(self, prior: InteriorPrior, relation: Tensor) -> DiagonalEnergy:
        centre = prior.centre[relation]
        constant = centre.real.new_zeros(centre.shape[:2])
        return DiagonalEnergy(constant, centre, prior.entries[relation])

    def source(self, energy: BranchEnergy, edges: Edges, target: Tensor) -> Tensor:
        p, m = _entries(energy).unsqueeze(1), energy.centre
        a = self._rows(self._source_map, edges)
        wanted = self.apply("target", edges, target) - self.shift(edges)
        free = self._source_precision(_entries(energy), edges).unsqueeze(1)
        pull = edges.weight.view(-1, 1, 1) * (wanted if a is None else self._pull_back(a, wanted))
        return torch.where(free > 0, (p * m + pull) / torch.where(free > 0, free, 1), m)

    def _arrive(
        self, source: Tensor, constant: Tensor, stiffness: Tensor, edges: Edges
    ) -> DiagonalEnergy:
        wanted = self.apply("source", edges, source) + self.shift(edges)
        b = self._rows(self._target_map, edges)
        if b is None:
            return DiagonalEnergy(constant, wanted, stiffness)
        if self._scalar:
            return DiagonalEnergy(constant, self._pull_back(b, wanted), stiffness)
        entries = stiffness * self._algebra.squares(b.squeeze(1))
        inverse = _reciprocal(entries)
        centre = (inverse * stiffness).unsqueeze(1) * self._pull_back(b, wanted)
        gap = squares(self._algebra.multiply(b, centre) - wanted)
        missed = (stiffness.unsqueeze(1) * gap).sum(-1)
        return DiagonalEnergy(constant + missed, centre, entries)

    def _source_precision(self, p: Tensor, edges: Edges) -> Tensor:
        a = self._rows(self._source_map, edges)
        square = 1.0 if a is None or self._scalar else self._algebra.squares(a.squeeze(1))
        return p + edges.weight.unsqueeze(1) * square

    def _rows(self, table: Tensor | None, edges: Edges) -> Tensor | None:
        return None if table is None else table[edges.relation].unsqueeze(1)

    def apply(self, end: str, edges: Edges, x: Tensor) -> Tensor:
        rows = self._rows(self._source_map if end == "source" else self._target_map, edges)
        return x if rows is None else self._algebra.multiply(rows, x)

    def _pull_back(self, rows: Tensor, y: Tensor) -> Tensor:
        return self._algebra.multiply(self._algebra.conjugate(rows), y)


def _entries(energy: BranchEnergy) -> Tensor:
    assert isinstance(energy, DiagonalEnergy)
    return energy.entries


def _both(first: Tensor | None, second: Tensor | None, algebra: Algebra) -> Tensor | None:
    """The table of a side for relations and then for inverse ones, in double precision."""
    if first is None and second is None:
        return None
    some = second if first is None else first
    assert some is not None
    tables = [algebra.one(some) if t is None else t for t in (first, second)]
    return double(torch.cat(tables).detach())


def _slack(table: Tensor) -> float:
    return 8 * torch.finfo(table.dtype).eps


def _reciprocal(entries: Tensor) -> Tensor:
    # Coordinates do not mix, so that even the smallest entry has its centre.
    return torch.where(entries > 0, 1 / torch.where(entries > 0, entries, 1.0), 0.0)
