from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.linalg import matrix_norm

from sheafprop.kernels.rows import real_rows
from sheafprop.kernels.threads import run_chunks
from sheafprop.query.candidate_scores import BranchEnergy, squares
from sheafprop.query.elimination import RELATIVE_TOLERANCE, Edges, Elimination
from sheafprop.query.interior_prior import InteriorPrior
from sheafprop.sheaf import RelationSheaf
from sheafprop.sheaf.relation_sheaf import Side


@dataclass(frozen=True, eq=False)
class DenseEnergy(BranchEnergy):
    r"""A branch energy with any precision, held as :math:`\|K x - y\|^2 + c`.

    Args:
        factor (Tensor): :math:`K`, ``[U, d, d]``; equal ones are held once.
        pull (Tensor): :math:`y`, ``[Q, s, d]``.
        inverse (callable): Gives :math:`K^{-1}` of some of them, where they are regular.
        regular (Tensor): Whether :math:`K` is invertible and well conditioned, ``[U]``.
        index (Tensor): Which factor each query has, ``[Q]``.
    """

    degree: ClassVar[int] = 2

    factor: Tensor
    pull: Tensor
    inverse: Callable[[Tensor], Tensor]
    regular: Tensor
    index: Tensor

    @property
    def centre(self) -> Tensor:
        return (_pseudo_inverse(self.factor)[self.index] @ self.pull.mT).mT

    def precision(self) -> Tensor:
        return (self.factor.mH @ self.factor)[self.index]

    def features(self, x: Tensor) -> Tensor:
        columns = x.T.contiguous()
        row, column = _triangle(x)
        products = columns[row].mul_(columns[column])
        return torch.cat([products, columns, torch.ones_like(columns[:1])])

    def shared(self) -> tuple[Tensor, Tensor]:
        factor = self.real_factor()
        precision = factor.mT @ factor
        row, column = _triangle(factor)
        return precision[:, row, column] * torch.where(row == column, 1.0, 2.0), self.index

    def coefficients(self, section: int) -> Tensor:
        y = real_rows(self.pull[:, section])
        linear = (y.unsqueeze(1) @ self.real_factor()[self.index]).squeeze(1)
        last = y.square().sum(1) + self.constant[:, section]
        return torch.cat([-2 * linear, last[:, None]], dim=1)

    def at(self, row: Tensor, x: Tensor, section: int) -> Tensor:
        mapped = (self.factor[self.index[row]] @ x.unsqueeze(2)).squeeze(2)
        return squares(mapped - self.pull[row, section]).sum(1) + self.constant[row, section]

    def size(self, section: int, longest: Tensor) -> Tensor:
        norms = matrix_norm(self.factor.mH @ self.factor)[self.index]
        return norms * longest + squares(self.pull[:, section]).sum(1)

    def real_factor(self) -> Tensor:
        """The factors as real matrices, acting on :func:`real_rows`."""
        if not self.factor.is_complex():
            return self.factor
        re, im = self.factor.real, self.factor.imag
        top = torch.stack([re, -im], dim=-1).flatten(-2)
        bottom = torch.stack([im, re], dim=-1).flatten(-2)
        return torch.stack([top, bottom], dim=-2).flatten(-3, -2)


def _triangle(x: Tensor) -> tuple[Tensor, Tensor]:
    width = x.shape[-1]
    row, column = torch.triu_indices(width, width, device=x.device)
    return row, column


# Maps of a larger condition number take singular values instead of a Cholesky factor.
_REGULAR_CONDITION = 1e3
# The same for the share of a branch in what an edge feels, w |A K^-1|^2.
_REGULAR_SHARE = 1e6
# Bytes of matrices that one thread works on.
_CHUNK_BYTES = 2**20


class DenseElimination(Elimination):
    r"""Elimination for dense maps, ``d x d`` blocks in batches.

    Queries that walk the same relations share everything but their vectors, so each matrix is made
    once. A branch is held as :math:`\|K x - y\|^2 + c`, which needs no pseudo-inverse. With
    :math:`J = A K^{-1}`, an edge needs the Cholesky factor of :math:`w^{-1} I + J J^* = L L^*`
    only: then :math:`K' = L^{-1} B`, :math:`K'^{-1} = B^{-1} L` and
    :math:`y' = L^{-1} (J y + \beta)`. Singular, rectangular and badly conditioned maps take the
    singular value decomposition of :math:`[K; \sqrt w A]` instead, whose left kernel is what the
    target feels.

    Args:
        sheaf (RelationSheaf): Maps and translations of the relations.
        x (Tensor): Vectors of the entities, ``[N, s, d]``.
        prior (InteriorPrior, optional): An energy of its own for every vertex between.
    """

    degree = DenseEnergy.degree

    def __init__(self, sheaf: RelationSheaf, x: Tensor, prior: InteriorPrior | None = None) -> None:
        super().__init__(sheaf, x, prior)
        # Row r of the tables is what relation r has at its source, and what the inverse of
        # relation r - R has: the maps at the target are half a table away.
        sides: tuple[Side, ...] = ("head",) if sheaf.shares_maps else ("head", "tail")
        table = torch.cat([sheaf.matrices(side, width=x.shape[2]) for side in sides]).detach()
        self._double = torch.complex128 if table.is_complex() else torch.float64
        self._table = table.to(self._double)
        self._inverse, self._regular = _inverses(self._table)
        if self._translation is not None:
            self._translation = self._translation.to(self._double)

    def leave(self, x: Tensor, edges: Edges) -> DenseEnergy:
        index, first = _distinct(self._edge_key(edges))
        relation, weight = edges.relation[first], edges.weight[first]
        target_row = self._rows("target", relation)
        root = weight.sqrt().view(-1, 1, 1)
        factor = root * self._table[target_row]
        wanted = self.apply("source", edges, x.to(self._double)) + self.shift(edges)
        pull = edges.weight.sqrt().view(-1, 1, 1) * wanted
        constant = torch.zeros(x.shape[:2], dtype=torch.float64, device=x.device)
        missing = self._table.shape[2] - self._table.shape[1]
        if missing >= 0:
            factor = torch.nn.functional.pad(factor, (0, 0, 0, missing))
            pull = torch.nn.functional.pad(pull, (0, missing))
        else:
            left, factor = _compress(factor)
            pull, constant = _within(left, index, pull)

        def inverse(rows: Tensor) -> Tensor:
            return self._inverse[target_row[rows]] / root[rows]

        regular = self._regular[target_row] & (weight > 0)
        return DenseEnergy(constant, factor, pull, inverse, regular, index)

    def through(self, energy: BranchEnergy, edges: Edges) -> DenseEnergy:
        assert isinstance(energy, DenseEnergy)
        key = torch.unique(self._edge_key(edges), return_inverse=True)[1]
        index, first = _distinct(key * energy.factor.shape[0] + energy.index)
        relation, weight, before = edges.relation[first], edges.weight[first], energy.index[first]
        source_row, target_row = (self._rows(end, relation) for end in ("source", "target"))
        n, (k, d) = first.numel(), self._table.shape[1:]
        factor, lower, carry = (self._table.new_empty(n, d, d) for _ in range(3))
        shift = self._table.new_zeros(n, d)
        regular = self._regular[target_row] & (weight > 0) & energy.regular[before]
        # What badly conditioned branches cannot meet, as a map of what came before, and a constant.
        missed: list[tuple[Tensor, Tensor, Tensor]] = []

        def make(rows: slice) -> None:
            source, target = self._table[source_row[rows]], self._table[target_row[rows]]
            w, good = weight[rows], regular[rows]
            b = None if self._translation is None else self._translation[relation[rows]]
            if bool(good.any()):
                j = source @ energy.inverse(before[rows])
                lower[rows], fine = _cholesky(j, w)
                good &= fine
                right = [target, j] if b is None else [target, j, b.unsqueeze(2)]
                made = torch.linalg.solve_triangular(
                    lower[rows], torch.cat(right, dim=2), upper=False
                )
                factor[rows], carry[rows] = made[:, :, :d], made[:, :, d : 2 * d]
                if b is not None:
                    shift[rows] = made[:, :, -1]
            rest = (~good).nonzero().flatten()
            if rest.numel() == 0:
                return
            root = w[rest].sqrt().view(-1, 1, 1)
            own, felt = _left_kernel(energy.factor[before[rows]][rest], source[rest], root)
            left, compressed = _compress(felt @ target[rest])
            offset = own.new_zeros(own.shape[:2])
            if b is not None:
                offset = (felt @ b[rest].unsqueeze(2)).squeeze(2)
            own_carry = left.mH @ own
            own_shift = (left.mH @ offset.unsqueeze(2)).squeeze(2)
            place = rows.start + rest
            factor[place], carry[place], shift[place] = compressed, own_carry, own_shift
            lost_shift = offset - (left @ own_shift.unsqueeze(2)).squeeze(2)
            missed.append((place, own - left @ own_carry, lost_shift))

        _in_chunks(make, n, (k + 3 * d) * d)
        pull = _matvec(carry, index, energy.pull) + shift[index].unsqueeze(1)
        constant = energy.constant
        if missed:
            place, matrices, vectors = (torch.cat(part) for part in zip(*missed, strict=True))
            number = torch.full((n,), -1, device=index.device)
            number[place] = torch.arange(place.numel(), device=index.device)
            rows = (number[index] >= 0).nonzero().flatten()
            own = number[index[rows]]
            gap = _matvec(matrices, own, energy.pull[rows]) + vectors[own].unsqueeze(1)
            constant = constant.index_add(0, rows, squares(gap).sum(2))

        def inverse(rows: Tensor) -> Tensor:
            return self._inverse[target_row[rows]] @ lower[rows]

        return DenseEnergy(constant, factor, pull, inverse, regular, index)

    def join(self, energies: Sequence[BranchEnergy]) -> DenseEnergy:
        parts = [energy for energy in energies if isinstance(energy, DenseEnergy)]
        key = parts[0].index
        for part in parts[1:]:
            key = torch.unique(key, return_inverse=True)[1] * part.factor.shape[0] + part.index
        index, first = _distinct(key)
        stacked = torch.cat([part.factor[part.index[first]] for part in parts], dim=1)
        regular = torch.stack([part.regular[part.index[first]] for part in parts]).all(0)
        d = stacked.shape[-1]
        factor, inverse = stacked.new_empty(2, first.numel(), d, d)
        left = torch.empty_like(stacked)

        def make(rows: slice) -> None:
            left[rows], factor[rows], inverse[rows], fine = _join_by_cholesky(stacked[rows])
            rest = (~(fine & regular[rows])).nonzero().flatten()
            regular[rows] &= fine
            if rest.numel():
                place = rows.start + rest
                left[place], factor[place] = _compress(stacked[place])

        _in_chunks(make, first.numel(), stacked.shape[1] * d)
        pull, constant = _within(left, index, torch.cat([part.pull for part in parts], dim=2))
        for part in parts:
            constant = constant + part.constant
        return DenseEnergy(constant, factor, pull, inverse.__getitem__, regular, index)

    def expected(self, prior: InteriorPrior, relation: Tensor) -> DenseEnergy:
        relation, index = torch.unique(relation, return_inverse=True)
        root = prior.entries[relation].sqrt()
        pull = (root.unsqueeze(1) * prior.centre[relation]).to(self._double)[index]

        def inverse(rows: Tensor) -> Tensor:
            return torch.diag_embed(1 / root[rows]).to(self._double)

        return DenseEnergy(
            pull.real.new_zeros(pull.shape[:2]),
            torch.diag_embed(root).to(self._double),
            pull,
            inverse,
            (root > 0).all(1),
            index,
        )

    def source(self, energy: BranchEnergy, edges: Edges, target: Tensor) -> Tensor:
        assert isinstance(energy, DenseEnergy)
        root = edges.weight.sqrt().view(-1, 1, 1)
        wanted = self.apply("target", edges, target) - self.shift(edges)
        maps = self._table[self._rows("source", edges.relation)]
        matrix = torch.cat([energy.factor[energy.index], root * maps], dim=1)
        pull = torch.cat([energy.pull, root * wanted], dim=-1)
        return (_pseudo_inverse(matrix) @ pull.mT).mT

    def _edge_key(self, edges: Edges) -> Tensor:
        weights, number = torch.unique(edges.weight, return_inverse=True)
        return edges.relation * weights.numel() + number

    def _rows(self, end: str, relation: Tensor) -> Tensor:
        """Rows of the table for the maps at the source or the target of relations."""
        half = self.sheaf.num_relations
        if self._table.shape[0] == half:
            return relation % half
        return relation if end == "source" else (relation + half) % (2 * half)

    def apply(self, end: str, edges: Edges, x: Tensor) -> Tensor:
        rows, index = torch.unique(self._rows(end, edges.relation), return_inverse=True)
        return _matvec(self._table[rows], index, x)


def _inverses(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Inverses of square, well-conditioned maps; zeros for others, and which are which."""
    count, k, d = maps.shape
    out = maps.new_zeros(count, d, k)
    regular = torch.zeros(count, dtype=torch.bool, device=maps.device)
    if k != d:
        return out, regular

    def invert(rows: slice) -> None:
        inverse, info = torch.linalg.inv_ex(maps[rows])
        condition = matrix_norm(maps[rows]) * matrix_norm(inverse) / d
        good = (info == 0) & (condition < _REGULAR_CONDITION)  # False for NaN
        out[rows], regular[rows] = torch.where(good.view(-1, 1, 1), inverse, 0), good

    _in_chunks(invert, count, k * d)
    return out, regular


def _cholesky(j: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The Cholesky factor of ``I / w + J J*``, and where it can be relied on."""
    eye = torch.eye(j.shape[1], dtype=j.dtype, device=j.device)
    weight = torch.where(weight > 0, weight, 1.0)
    lower, info = torch.linalg.cholesky_ex(eye / weight.view(-1, 1, 1) + j @ j.mH)
    share = squares(j).sum((1, 2)) * weight
    good = (info == 0) & (share < _REGULAR_SHARE)
    return torch.where(good.view(-1, 1, 1), lower, eye), good


def _left_kernel(factor: Tensor, source: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
    """The left kernel of ``[K; sqrt(w) A]``: what it makes of ``y``, and of the edge."""
    stacked = torch.cat([factor, root * source], dim=1)
    # Their columns span the same space in any unit.
    left, values, _ = torch.linalg.svd(stacked / _column_units(stacked))
    seen = values > RELATIVE_TOLERANCE**0.5 * values[:, :1]
    left[:, :, : values.shape[1]] *= ~seen.unsqueeze(1)
    kernel = left.mH
    d = factor.shape[1]
    return -kernel[:, :, :d], root * kernel[:, :, d:]


def _pseudo_inverse(matrices: Tensor) -> Tensor:
    """Pseudo-inverses ``[n, d, rows]``, of columns that are measured in units of their own.

    A direction is among the singular ones by its share of these, so that no coordinate loses to a
    larger one.
    """
    units = _column_units(matrices)
    return torch.linalg.pinv(matrices / units, rtol=RELATIVE_TOLERANCE**0.5) / units.mT


def _column_units(matrices: Tensor) -> Tensor:
    """The lengths of columns, ``[n, 1, d]``; the largest one for those that rounding may leave."""
    lengths = torch.linalg.vector_norm(matrices, dim=1, keepdim=True)
    largest = lengths.amax(2, keepdim=True)
    units = torch.where(lengths > RELATIVE_TOLERANCE * largest, lengths, largest)
    return torch.where(units > 0, units, 1.0)


def _compress(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Orthonormal columns and a square factor whose product is each matrix, ``[n, rows, d]``."""
    left, values, right = torch.linalg.svd(matrices, full_matrices=False)
    return left, values.unsqueeze(2) * right


def _within(left: Tensor, index: Tensor, pull: Tensor) -> tuple[Tensor, Tensor]:
    """Coordinates of ``pull`` in the columns of ``left``, and the square of what is outside."""
    own = _matvec(left.mH, index, pull)
    return own, squares(pull - _matvec(left, index, own)).sum(2)


def _join_by_cholesky(stacked: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As :func:`_compress` by Cholesky, the inverse factor, and where that is good enough."""
    d = stacked.shape[-1]
    eye = torch.eye(d, dtype=stacked.dtype, device=stacked.device)
    lower, info = torch.linalg.cholesky_ex(stacked.mH @ stacked)
    lower = torch.where((info == 0).view(-1, 1, 1), lower, eye)
    factor = lower.mH
    inverse = torch.linalg.solve_triangular(factor, eye.expand_as(lower), upper=True)
    condition = matrix_norm(factor) * matrix_norm(inverse) / d
    return stacked @ inverse, factor, inverse, (info == 0) & (condition < _REGULAR_CONDITION**0.5)


def _distinct(key: Tensor) -> tuple[Tensor, Tensor]:
    """For each key the number of its distinct value, and the first position of every value."""
    values, index = torch.unique(key, return_inverse=True)
    position = torch.arange(key.numel(), device=key.device)
    first = position.new_full((values.numel(),), key.numel())
    return index, first.scatter_reduce(0, index, position, "amin")


def _matvec(matrices: Tensor, index: Tensor, x: Tensor) -> Tensor:
    """The matrix of each query applied to its rows ``[Q, s, d]``."""
    return (matrices[index] @ x.mT).mT


def _in_chunks(work: Callable[[slice], None], count: int, elements: int) -> None:
    step = max(1, _CHUNK_BYTES // (8 * elements))
    run_chunks(work, [slice(i, min(i + step, count)) for i in range(0, count, step)])
