from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sheafprop.kernels.backend import run_chunks
from sheafprop.query.branch_energy import BranchEnergy, squares
from sheafprop.query.dense_energy import DenseEnergy
from sheafprop.query.edges import Edges
from sheafprop.query.elimination import RELATIVE_TOLERANCE, Elimination
from sheafprop.sheaf import DenseSheaf, RelationSheaf

# Maps of a larger condition number take singular values instead of a Cholesky factor.
_REGULAR_CONDITION = 1e4
# The same for the share of a branch in what an edge feels, w |A K^-1|^2.
_REGULAR_SHARE = 1e6
# Bytes of matrices that one thread works on.
_CHUNK_BYTES = 2**20


class DenseElimination(Elimination):
    r"""Elimination for dense maps, ``d x d`` blocks in batches.

    Queries that walk the same relations share everything but their vectors, so each matrix is made
    once. With :math:`P = K^* K` and :math:`J = A K^{-1}`, an edge needs the Cholesky factor of
    :math:`w^{-1} I + J J^* = L L^*` only: then :math:`K' = L^{-1} B` and
    :math:`K'^{-1} = B^{-1} L`. Singular, rectangular and badly conditioned maps take the singular
    value decomposition of :math:`[K; \sqrt w A]` instead, whose left kernel is what the target
    feels.

    Args:
        sheaf (DenseSheaf): Maps and translations of the relations.
        x (Tensor): Vectors of the entities, ``[N, s, d]``.
    """

    def __init__(self, sheaf: RelationSheaf, x: Tensor) -> None:
        super().__init__(sheaf, x)
        if not isinstance(sheaf, DenseSheaf):
            raise ValueError(f"the maps must be matrices (got a {type(sheaf).__name__})")
        self._double = torch.complex128 if sheaf.head.is_complex() else torch.float64
        # Row r of the tables is what relation r has at its source, and what the inverse of
        # relation r - R has: the maps at the target are half a table away.
        shared = sheaf.head is sheaf.tail
        sides = [sheaf.head] if shared else [sheaf.head, sheaf.tail]
        self._table = torch.cat(sides).detach().to(self._double)
        self._inverse, self._regular = _inverses(self._table)
        b = sheaf.translation
        self._translation = None if b is None else torch.cat([b, -b]).detach().to(self._double)

    def leave(self, x: Tensor, edges: Edges) -> DenseEnergy:
        zero = torch.zeros(x.shape[:2], dtype=torch.float64, device=x.device)
        return self._arrive(x.to(self._double), zero, None, edges)

    def through(self, energy: BranchEnergy, edges: Edges) -> DenseEnergy:
        assert isinstance(energy, DenseEnergy)
        return self._arrive(energy.centre, energy.constant, energy, edges)

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
        centre_map = stacked.new_empty(first.numel(), d, stacked.shape[1])

        def make(rows: slice) -> None:
            made = _joined(stacked[rows])
            good = made[3] & regular[rows]
            rest = (~good).nonzero().flatten()
            if rest.numel():
                part = stacked[rows][rest]
                again, good[rest], _ = _least_squares(part, _eye(part.shape[1], part), part)
                for whole, some in zip(made, again, strict=False):
                    whole[rest] = some
            factor[rows], inverse[rows], centre_map[rows] = made[:3]
            regular[rows] = good

        _in_chunks(make, first.numel(), stacked[0].numel())
        # K_i m_i of all branches, and the centre nearest to them.
        pulls = torch.cat([_matvec(p.factor, p.index, p.centre) for p in parts], dim=-1)
        centre = _matvec(centre_map, index, pulls)
        missed = _matvec(stacked, index, centre) - pulls
        constant = torch.linalg.vector_norm(missed, dim=-1) ** 2
        for part in parts:
            constant = constant + part.constant
        return DenseEnergy(centre, constant, factor, inverse.__getitem__, regular, index)

    def source(self, energy: BranchEnergy, edges: Edges, target: Tensor) -> Tensor:
        assert isinstance(energy, DenseEnergy)
        root = edges.weight.sqrt().view(-1, 1, 1)
        factor = energy.factor[energy.index]
        held = (factor @ energy.centre.mT).mT
        wanted = self._apply("target", edges, target) - self._shift(edges)
        matrix = torch.cat(
            [factor, root * self._table[self._rows("source", edges.relation)]], dim=1
        )
        inverse = torch.linalg.pinv(matrix, rtol=RELATIVE_TOLERANCE**0.5)
        return (inverse @ torch.cat([held, root * wanted], dim=-1).mT).mT

    def _arrive(
        self, source: Tensor, constant: Tensor, behind: DenseEnergy | None, edges: Edges
    ) -> DenseEnergy:
        wanted = self._apply("source", edges, source) + self._shift(edges)
        weights, weight_index = torch.unique(edges.weight, return_inverse=True)
        key = edges.relation * weights.numel() + weight_index
        if behind is not None:
            key = torch.unique(key, return_inverse=True)[1] * behind.factor.shape[0] + behind.index
        index, first = _distinct(key)
        relation, weight = edges.relation[first], edges.weight[first]
        target_row = self._rows("target", relation)
        k, d = self._table.shape[1:]
        factor = self._table.new_empty(first.numel(), d, d)
        # What turns the inverse of the target's map into that of the factor, if it is regular.
        lower = self._table.new_empty(first.numel() if k == d else 0, d, d)
        regular = self._regular[target_row] & (weight > 0)
        before = None if behind is None else behind.index[first]
        if behind is not None:
            regular &= behind.regular[before]
        maps: dict[int, tuple[Tensor, Tensor]] = {}

        def make(rows: slice) -> None:
            w, good, target = weight[rows], regular[rows], self._table[target_row[rows]]
            root = w.sqrt().view(-1, 1, 1)
            source, own = target, target
            if behind is not None and before is not None:
                own = behind.factor[before[rows]]
                source = self._table[self._rows("source", relation[rows])]
            if bool(good.any()):
                if behind is None or before is None:
                    factor[rows] = root * target
                    lower[rows] = _eye(d, target) / torch.where(root > 0, root, 1.0)
                else:
                    factor[rows], lower[rows], fine = _carried(
                        behind.inverse(before[rows]), source, target, w
                    )
                    good &= fine
            rest = (~good).nonzero().flatten()
            if rest.numel() == 0:
                return
            if behind is None:
                felt = root[rest] * _eye(k, target)
            else:
                felt = _felt(own[rest], source[rest], root[rest])
            again, _, miss = _least_squares(felt @ target[rest], felt, root[rest] * target[rest])
            factor[rows.start + rest] = again[0]
            for i, centre_map, own_miss in zip(rest.tolist(), again[2], miss, strict=True):
                maps[rows.start + i] = centre_map, own_miss

        _in_chunks(make, first.numel(), (k + d) * d)
        if k == d:
            rows, number = torch.unique(self._rows("target", edges.relation), return_inverse=True)
            centre = _matvec(self._inverse[rows], number, wanted)
        else:
            centre = wanted.new_empty(*wanted.shape[:-1], d)
        if maps:
            # Regular maps reach what they are asked for; these may miss it.
            irregular = torch.tensor(sorted(maps), device=index.device)
            number = torch.full((first.numel(),), -1, device=index.device)
            number[irregular] = torch.arange(irregular.numel(), device=index.device)
            rows = (number[index] >= 0).nonzero().flatten()
            centre_map, miss = (
                torch.stack(column)
                for column in zip(*(maps[i] for i in irregular.tolist()), strict=True)
            )
            centre[rows] = _matvec(centre_map, number[index[rows]], wanted[rows])
            missed = _matvec(miss, number[index[rows]], wanted[rows])
            extra = torch.linalg.vector_norm(missed, dim=-1) ** 2
            constant = constant.index_add(0, rows, extra)

        def inverse(rows: Tensor) -> Tensor:
            return self._inverse[target_row[rows]] @ lower[rows] if k == d else factor[rows].mH

        return DenseEnergy(centre, constant, factor, inverse, regular, index)

    def _rows(self, end: str, relation: Tensor) -> Tensor:
        """Rows of the table for the maps at the source or the target of relations."""
        half = self.sheaf.num_relations
        if self._table.shape[0] == half:
            return relation % half
        return relation if end == "source" else (relation + half) % (2 * half)

    def _apply(self, end: str, edges: Edges, x: Tensor) -> Tensor:
        rows, index = torch.unique(self._rows(end, edges.relation), return_inverse=True)
        return _matvec(self._table[rows], index, x)

    def _shift(self, edges: Edges) -> Tensor | float:
        return 0.0 if self._translation is None else self._translation[edges.relation].unsqueeze(1)


def _inverses(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Inverses of square, well-conditioned maps; zeros for others, and which are which."""
    count, k, d = maps.shape
    out = maps.new_zeros(count, d, k)
    regular = torch.zeros(count, dtype=torch.bool, device=maps.device)
    if k != d:
        return out, regular

    def invert(rows: slice) -> None:
        inverse, info = torch.linalg.inv_ex(maps[rows])
        condition = _frobenius(maps[rows]) * _frobenius(inverse) / d
        good = (info == 0) & (condition < _REGULAR_CONDITION)  # False for NaN
        out[rows], regular[rows] = torch.where(good.view(-1, 1, 1), inverse, 0), good

    _in_chunks(invert, count, k * d)
    return out, regular


def _carried(
    factor_inverse: Tensor, source: Tensor, target: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Factor and Cholesky factor of edges behind a branch, and which of them are regular."""
    j = source @ factor_inverse
    eye = _eye(j.shape[1], j)
    weight = torch.where(weight > 0, weight, 1.0).view(-1, 1, 1)
    lower, info = torch.linalg.cholesky_ex(eye / weight + j @ j.mH)
    share = squares(j).sum((1, 2)) * weight.flatten()
    good = (info == 0) & (share < _REGULAR_SHARE)
    lower = torch.where(good.view(-1, 1, 1), lower, eye)
    return torch.linalg.solve_triangular(lower, target, upper=False), lower, good


def _felt(factor: Tensor, source: Tensor, root: Tensor) -> Tensor:
    """The left kernel of [K; sqrt(w) A], as what it sees of the edge."""
    left, values, _ = torch.linalg.svd(torch.cat([factor, root * source], dim=1))
    seen = values > RELATIVE_TOLERANCE**0.5 * values[:, :1]
    left[:, :, : values.shape[1]] *= ~seen.unsqueeze(1)
    return root * left[:, factor.shape[1] :].mH


def _joined(stacked: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Factor, inverse and centre map of branches that meet, and which of them are regular."""
    d = stacked.shape[-1]
    lower, info = torch.linalg.cholesky_ex(stacked.mH @ stacked)
    lower = torch.where((info == 0).view(-1, 1, 1), lower, _eye(d, lower))
    factor = lower.mH
    inverse = torch.linalg.solve_triangular(factor, _eye(d, lower).expand_as(lower), upper=True)
    condition = _frobenius(factor) * _frobenius(inverse) / d
    good = (info == 0) & (condition < _REGULAR_CONDITION**0.5)
    factor = factor.clone(memory_format=torch.contiguous_format)
    return factor, inverse, inverse @ (inverse.mH @ stacked.mH), good


def _least_squares(
    matrix: Tensor, wanted: Tensor, scale: Tensor
) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor, Tensor]:
    """Factor, inverse and centre map of ``|matrix x - wanted u|^2`` as a function of ``x``.

    Also whether the factor is regular, and the miss: what ``u`` times it cannot reach. ``scale`` is
    of the size that ``matrix`` would have without cancellation.
    """
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    floor = 1e-13 * _frobenius(scale).unsqueeze(1)
    keep = (values > RELATIVE_TOLERANCE**0.5 * values[:, :1]) & (values > floor)
    kept = torch.where(keep, values, 0.0)
    reciprocal = torch.where(keep, 1 / torch.where(keep, values, 1.0), 0.0)
    centre_map = (right.mH * reciprocal.unsqueeze(1)) @ (left.mH @ wanted)
    miss = matrix @ centre_map - wanted
    factor = kept.unsqueeze(2) * right
    d = matrix.shape[-1]
    padding = (0, 0, 0, d - factor.shape[1])
    factor = torch.nn.functional.pad(factor, padding)
    inverse = torch.nn.functional.pad(right.mH * reciprocal.unsqueeze(1), (0, d - kept.shape[1]))
    good = keep.sum(1) == d
    good &= values[:, 0] < _REGULAR_CONDITION * values[:, -1]
    return (factor, inverse, centre_map), good, miss


def _eye(size: int, like: Tensor) -> Tensor:
    return torch.eye(size, dtype=like.dtype, device=like.device)


def _frobenius(matrices: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(matrices)


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
