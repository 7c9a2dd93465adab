from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sheafprop.kernels.backend import run_chunks
from sheafprop.query.branch_energy import BranchEnergy
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

# Factor, inverse, centre map, and whether the branch is regular.
Made = tuple[Tensor, Tensor, Tensor, Tensor]


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
        head, tail = (m.detach().to(self._double) for m in (sheaf.head, sheaf.tail))
        self._head, self._tail = head, tail
        self._inverse_head, self._regular_head = _inverses(head)
        shared = sheaf.head is sheaf.tail
        self._inverse_tail, self._regular_tail = (
            (self._inverse_head, self._regular_head) if shared else _inverses(tail)
        )
        b = sheaf.translation
        self._translation = None if b is None else b.detach().to(self._double)

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
        out = _Blocks(first.numel(), stacked.shape[1], stacked)

        def make(rows: slice) -> None:
            made = _joined(stacked[rows])
            out.put(rows, made)
            rest = (~(made[3] & regular[rows])).nonzero().flatten()
            if rest.numel():
                part = stacked[rows][rest]
                again, miss = _least_squares(part, _eye(part.shape[1], part), part)
                out.put_irregular(rows, rest, again, miss)

        _in_chunks(make, first.numel(), stacked[0].numel())
        # K_i m_i of all branches, and the centre nearest to them.
        pulls = torch.cat([_matvec(p.factor, p.index, p.centre) for p in parts], dim=-1)
        centre = _matvec(out.centre_map, index, pulls)
        missed = _matvec(stacked, index, centre) - pulls
        constant = torch.linalg.vector_norm(missed, dim=-1) ** 2
        for part in parts:
            constant = constant + part.constant
        return DenseEnergy(centre, constant, out.factor, out.inverse, out.regular, index)

    def source(self, energy: BranchEnergy, edges: Edges, target: Tensor) -> Tensor:
        assert isinstance(energy, DenseEnergy)
        root = edges.weight.sqrt().view(-1, 1, 1)
        factor = energy.factor[energy.index]
        held = (factor @ energy.centre.mT).mT
        wanted = self._apply("target", edges, target) - self._shift(edges)
        matrix = torch.cat([factor, root * self._maps("source", edges.relation)], dim=1)
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
        k, d = self._head.shape[1:]
        out = _Blocks(first.numel(), k, self._head)
        before = None if behind is None else behind.index[first]

        def make(rows: slice) -> None:
            w, target = weight[rows], self._maps("target", relation[rows])
            root = w.sqrt().view(-1, 1, 1)
            inverse, regular = self._inverse_targets(relation[rows])
            regular = regular & (w > 0)
            if behind is None or before is None:
                own = source_map = target
            else:
                own, source_map = behind.factor[before[rows]], self._maps("source", relation[rows])
                regular &= behind.regular[before[rows]]
            if bool(regular.any()):
                if behind is None or before is None:
                    made = _left(target, inverse, root)
                else:
                    own_inverse = behind.inverse[before[rows]]
                    made = _carried(own_inverse, source_map, target, inverse, w)
                regular &= made[3]
                out.put(rows, (*made[:3], regular))
            rest = (~regular).nonzero().flatten()
            if rest.numel() == 0:
                return
            if behind is None:
                again, miss = _left_irregular(target[rest], root[rest])
            else:
                again, miss = _carried_irregular(
                    own[rest], source_map[rest], target[rest], root[rest]
                )
            out.put_irregular(rows, rest, (*again[:3], torch.zeros_like(again[3])), miss)

        _in_chunks(make, first.numel(), (k + d) * d)
        centre = _matvec(out.centre_map, index, wanted)
        # What regular maps ask for can be had exactly.
        if out.miss:
            irregular = torch.tensor(sorted(out.miss), device=index.device)
            number = torch.full((first.numel(),), -1, device=index.device)
            number[irregular] = torch.arange(irregular.numel(), device=index.device)
            rows = (number[index] >= 0).nonzero().flatten()
            miss = torch.stack([out.miss[i] for i in irregular.tolist()])
            missed = _matvec(miss, number[index[rows]], wanted[rows])
            extra = torch.linalg.vector_norm(missed, dim=-1) ** 2
            constant = constant.index_add(0, rows, extra)
        return DenseEnergy(centre, constant, out.factor, out.inverse, out.regular, index)

    def _maps(self, end: str, relation: Tensor) -> Tensor:
        first, second = (self._head, self._tail) if end == "source" else (self._tail, self._head)
        return _by_direction(first, second, relation)

    def _inverse_targets(self, relation: Tensor) -> tuple[Tensor, Tensor]:
        return (
            _by_direction(self._inverse_tail, self._inverse_head, relation),
            _by_direction(self._regular_tail, self._regular_head, relation),
        )

    def _apply(self, end: str, edges: Edges, x: Tensor) -> Tensor:
        relations, index = torch.unique(edges.relation, return_inverse=True)
        return _matvec(self._maps(end, relations), index, x)

    def _shift(self, edges: Edges) -> Tensor | float:
        if self._translation is None:
            return 0.0
        return _by_direction(self._translation, -self._translation, edges.relation).unsqueeze(1)


class _Blocks:
    """The matrices of distinct branches: factor, inverse, and the maps that give centre and miss.

    The centre is ``centre_map`` times what is wanted, and the constant grows by the square of
    ``miss`` times it; only irregular branches have one.
    """

    def __init__(self, n: int, rows: int, like: Tensor) -> None:
        d = like.shape[-1]
        self.factor, self.inverse = like.new_zeros(n, d, d), like.new_zeros(n, d, d)
        self.centre_map = like.new_zeros(n, d, rows)
        self.regular = torch.zeros(n, dtype=torch.bool, device=like.device)
        self.miss: dict[int, Tensor] = {}

    def put(self, rows: slice, made: Made) -> None:
        self.factor[rows], self.inverse[rows], self.centre_map[rows] = made[:3]
        self.regular[rows] = made[3]

    def put_irregular(self, rows: slice, some: Tensor, made: Made, miss: Tensor) -> None:
        index = torch.arange(rows.start, rows.stop, device=some.device)[some]
        self.factor[index], self.inverse[index], self.centre_map[index], self.regular[index] = made
        for i, matrix in zip(index.tolist(), miss, strict=True):
            self.miss[i] = matrix


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


def _left(target: Tensor, inverse: Tensor, root: Tensor) -> Made:
    """Regular edges that leave an entity."""
    good = (root > 0).flatten()
    scaled = inverse / torch.where(root > 0, root, 1.0)
    return root * target, scaled, inverse, good


def _left_irregular(target: Tensor, root: Tensor) -> tuple[Made, Tensor]:
    return _least_squares(root * target, root * _eye(target.shape[1], target), root * target)


def _carried(
    factor_inverse: Tensor, source: Tensor, target: Tensor, inverse: Tensor, weight: Tensor
) -> Made:
    """Regular edges behind a regular branch; see :class:`DenseElimination`."""
    j = source @ factor_inverse
    weight = torch.where(weight > 0, weight, 1.0).view(-1, 1, 1)
    system = _eye(j.shape[1], j) / weight + j @ j.mH
    lower, info = torch.linalg.cholesky_ex(system)
    share = _frobenius(j) ** 2 * weight.flatten()
    good = (info == 0) & (share < _REGULAR_SHARE)
    lower = torch.where(good.view(-1, 1, 1), lower, _eye(j.shape[1], j))
    factor = torch.linalg.solve_triangular(lower, target, upper=False)
    return factor, inverse @ lower, inverse, good


def _carried_irregular(
    factor: Tensor, source: Tensor, target: Tensor, root: Tensor
) -> tuple[Made, Tensor]:
    stacked = torch.cat([factor, root * source], dim=1)
    left, values, _ = torch.linalg.svd(stacked, full_matrices=True)
    seen = values > RELATIVE_TOLERANCE**0.5 * values[:, :1]
    kernel = left.clone()
    kernel[:, :, : values.shape[1]] *= ~seen.unsqueeze(1)
    felt = root * kernel[:, factor.shape[1] :].mH
    return _least_squares(felt @ target, felt, root * target)


def _joined(stacked: Tensor) -> Made:
    """Regular branches that meet."""
    d = stacked.shape[-1]
    lower, info = torch.linalg.cholesky_ex(stacked.mH @ stacked)
    lower = torch.where((info == 0).view(-1, 1, 1), lower, _eye(d, lower))
    factor = lower.mH
    inverse = torch.linalg.solve_triangular(factor, _eye(d, lower).expand_as(lower), upper=True)
    condition = _frobenius(factor) * _frobenius(inverse) / d
    good = (info == 0) & (condition < _REGULAR_CONDITION**0.5)
    return factor, inverse, inverse @ (inverse.mH @ stacked.mH), good


def _least_squares(matrix: Tensor, wanted: Tensor, scale: Tensor) -> tuple[Made, Tensor]:
    """Factor, centre map and miss of ``|matrix x - wanted u|^2`` as a function of ``x``.

    ``scale`` is of the size that ``matrix`` would have without cancellation.
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
    return (factor, inverse, centre_map, good), miss


def _eye(size: int, like: Tensor) -> Tensor:
    return torch.eye(size, dtype=like.dtype, device=like.device)


def _frobenius(matrices: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(matrices)


def _by_direction(first: Tensor, second: Tensor, relation: Tensor) -> Tensor:
    """Rows of one table for relations, of the other for inverse ones."""
    inverse = relation >= first.shape[0]
    rows = first[relation % first.shape[0]]
    if bool(inverse.any()):
        rows[inverse] = second[relation[inverse] - first.shape[0]]
    return rows


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
