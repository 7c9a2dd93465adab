"""The map from features of entities to their vectors, fitted in closed form."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sheafprop.checks import count_noun, quote
from sheafprop.data.feature_encoder import FeatureEncoder
from sheafprop.data.features import FEWEST, FeatureTable
from sheafprop.errors import DataError
from sheafprop.inductive.landmark_basis import LandmarkBasis
from sheafprop.sheaf.relation_sheaf import double_precision

#: Fewest training entities with features.
#: Strengths that are compared, as shares of the largest eigenvalue of the features' Gram matrix.
_STRENGTHS = torch.logspace(-8, 2, 61, dtype=torch.float64)
#: What a degree of freedom counts in the choice of the strength.
_CAUTION = 1.4
#: Of so small a share of the variance, predictions are spread no further.
_FAINT = 1 / 16
#: No entity of a vector so long is of use, whose squared length single precision cannot hold.
_LONGEST = 1e18
#: Smallest share of the vectors' variance that counts as left over, so that no weight is infinite.
_LEAST = 1e-6


class Ridge(NamedTuple):
    """A ridge regression; see :func:`fit_ridge`.

    Args:
        weight (Tensor): :math:`W`, ``[p, d]``.
        offset (Tensor): :math:`c`, ``[d]``.
        strength (float): :math:`\\lambda`.
        error (float): The mean squared error on entities left out, over all columns together.
        left_out (Tensor): What is predicted of each entity without itself, ``[n, d]``.
        mean (Tensor): The weighted mean of the vectors, ``[d]``.
        share (Tensor): The weight of each entity in sums, ``[n, 1]``.
    """

    weight: Tensor
    offset: Tensor
    strength: float
    error: float
    left_out: Tensor
    mean: Tensor
    share: Tensor

    def spread(self, x: Tensor, factor: float) -> "Ridge":
        """Puts the predictions so many times further from the mean.

        Args:
            x (Tensor): The vectors that it was fitted to, ``[n, d]``.
            factor (float): The factor.
        """
        left_out = self.mean + factor * (self.left_out - self.mean)
        return self._replace(
            weight=factor * self.weight,
            offset=factor * self.offset + (1 - factor) * self.mean,
            left_out=left_out,
            error=float((self.share * (x - left_out).abs().square()).sum()),
        )


def fit_ridge(
    f: Tensor, x: Tensor, weight: Tensor | None = None, strength: float | None = None
) -> Ridge:
    r"""Minimizes, in closed form and double precision,

    .. math::
        \sum_v \omega_v \| x_v - c - W^\top f_v \|^2 + \lambda \| W \|^2 .

    With the weighted mean taken off and the Gram matrix :math:`F^\top F = V S V^\top` (or, where
    there are more features than entities, :math:`F F^\top = U S U^\top`), it is
    :math:`W = V (S + \lambda)^{-1} V^\top F^\top X`, and the strength :math:`\lambda` that is taken
    has the smallest score of generalized cross-validation (Golub, Heath and Wahba, 1979),
    :math:`n \, \mathrm{RSS} / (n - 1.4 \, \mathrm{df})^2` with
    :math:`\mathrm{df} = 1 + \sum_i S_i / (S_i + \lambda)`, where the factor keeps it from strengths
    that fit every entity exactly (Kim and Gu, 2004). Real features, real or complex vectors.

    Args:
        f (Tensor): Features, real ``[n, p]``.
        x (Tensor): Vectors ``[n, d]``.
        weight (Tensor, optional): :math:`\omega_v > 0`, ``[n]``; scaled to mean one.
        strength (float, optional): :math:`\lambda > 0`. (default: by cross-validation)

    Raises:
        ValueError: If the strength or a weight is not positive and finite.
    """
    if weight is not None and not bool(((weight > 0) & weight.isfinite()).all()):
        raise ValueError("'weight' must be positive and finite for every entity")
    if strength is not None and not 0 < strength < float("inf"):
        raise ValueError(f"'strength' must be positive (got {strength})")
    f, x = double_precision(f), double_precision(x)
    count = len(f)
    omega = f.new_ones(count) if weight is None else double_precision(weight / weight.mean())
    share = (omega / omega.sum()).unsqueeze(1)
    center, middle = (share * f).sum(0), (share * x).sum(0)
    root = omega.sqrt().unsqueeze(1)
    rows, values = root * (f - center), root * (x - middle)
    wide = f.shape[1] > count
    size, basis = torch.linalg.eigh(rows @ rows.T if wide else rows.T @ rows)
    size = size.clamp_min(0)
    largest = float(size.max()) if size.numel() else 0.0
    # The scores of the entities along the directions of the features: U of the singular values.
    keep = size > largest * max(f.shape) * torch.finfo(torch.float64).eps
    size, basis = size[keep], basis[:, keep]
    left = basis if wide else rows @ (basis / size.sqrt())
    seen = left.T.to(x.dtype) @ values
    along = (seen.abs() ** 2).sum(1)
    # What no feature reaches; with as many directions as entities that is nothing.
    outside = float((values.abs() ** 2).sum() - along.sum()) if len(size) < count - 1 else 0.0

    def scores(strengths: Tensor) -> Tensor:
        left_over = strengths.unsqueeze(1) / (size + strengths.unsqueeze(1))
        rss = max(outside, 0.0) + (along * left_over**2).sum(1)
        free = count - _CAUTION * (1 + (1 - left_over).sum(1))
        return torch.where(free > 0, rss / free**2, torch.inf)

    if strength is None:
        tried = _STRENGTHS * (largest or 1.0)
        # Of equal ones the strongest, which is surest.
        found = scores(tried).flip(0)
        strength = float(tried.flip(0)[found.argmin()])
    kept = size / (size + strength)
    shrunk = (kept / size.sqrt()).unsqueeze(1).to(x.dtype) * seen
    right = rows.T @ (basis / size.sqrt()) if wide else basis
    matrix = right.to(x.dtype) @ shrunk
    leverage = share.squeeze(1) + (left.square() * kept).sum(1)
    fitted = middle + (f - center).to(x.dtype) @ matrix
    gap = (x - fitted) / (1 - leverage).clamp_min(1e-9).unsqueeze(1)
    return Ridge(
        matrix,
        middle - center.to(x.dtype) @ matrix,
        strength,
        float((share * gap.abs().square()).sum()),
        x - gap,
        middle,
        share,
    )


def weigh_by_facts(weight: Tensor, count: Tensor) -> Tensor:
    r"""The weights :math:`\gamma_v = 2 \gamma / (1 + n_v)` of features beside :math:`n_v` facts.

    With one fact it is :math:`\gamma`, at which both count by their residuals. It falls with more:
    what features say of an entity, its kind, many facts say too, and what they leave out is what
    tells it from others of its kind. The form was chosen on training graphs (docs/features.md).

    Args:
        weight (Tensor): :math:`\gamma`, ``[m]``.
        count (Tensor): How many facts there are at each entity, ``[m]``.
    """
    return 2 * weight / (1 + count.to(weight))


class Anchors(NamedTuple):
    """Where features draw some entities to.

    Args:
        nodes (Tensor): Their positions among the labels asked for, int64 ``[m]``.
        target (Tensor): :math:`W f_v`, ``[m, d]``.
        weight (Tensor): :math:`\\gamma`, their weights beside one fact, ``[m]``.
    """

    nodes: Tensor
    target: Tensor
    weight: Tensor

    def among(self, entities: Tensor, size: int) -> "Anchors":
        """Those of some ``entities`` ``[n]`` of ``size``, which are numbered anew."""
        number = torch.full((size,), -1)
        number[entities] = torch.arange(len(entities))
        nodes = number[self.nodes]
        kept = nodes >= 0
        return Anchors(nodes[kept], self.target[kept], self.weight[kept])


@dataclass(frozen=True, eq=False)
class FeatureMap:
    r"""Predicts vectors from features: :math:`W f_v`, with how much weight they have.

    An entity whose features are known is drawn to them by :math:`\gamma_v \| x_v - W f_v \|^2` in
    the energy. Beside one fact its weight is :math:`\gamma = s^2 / \hat\sigma^2`, the mean squared
    residual of a training triple over the mean squared error of :math:`W f` on entities left out;
    see :func:`weigh_by_facts` for more.

    The least squared error shrinks predictions towards the mean of all entities, where they rank
    badly. They are put further from it, by the fourth root of one over the share of the variance
    that they explain: half way, in logarithms, to the spread of the trained vectors.

    Args:
        encoder (FeatureEncoder): Turns features into numbers.
        basis (LandmarkBasis): Turns these into :math:`f`; the one of the smallest error.
        weight (Tensor): :math:`W`, ``[p, d]`` in double precision.
        offset (Tensor): What is added, ``[d]``.
        strength (float): The strength of the ridge.
        error (float): :math:`\hat\sigma^2`.
        gamma (float): :math:`\gamma`.
        explained (float): The share of the vectors' variance that is predicted on entities left
            out.
        count (int): Training entities with features.
    """

    encoder: FeatureEncoder
    basis: LandmarkBasis
    weight: Tensor
    offset: Tensor
    strength: float
    error: float
    gamma: float
    explained: float
    count: int

    @classmethod
    def fit(
        cls,
        table: FeatureTable,
        x: Tensor,
        labels: Sequence[str],
        *,
        edge_residual: float,
        count: Tensor | None = None,
    ) -> "FeatureMap":
        """Fits the map on the training entities that have features; arguments and errors are those
        of :meth:`fit_left_out`."""
        return cls.fit_left_out(table, x, labels, edge_residual=edge_residual, count=count)[0]

    @classmethod
    @torch.no_grad()
    def fit_left_out(
        cls,
        table: FeatureTable,
        x: Tensor,
        labels: Sequence[str],
        *,
        edge_residual: float,
        count: Tensor | None = None,
    ) -> tuple["FeatureMap", Anchors]:
        r"""Fits the map, and predicts each training entity by all others, see :func:`fit_ridge`.

        Args:
            table (FeatureTable): Features; those of other entities are not looked at.
            x (Tensor): Trained vectors ``[n, d]``.
            labels (sequence of str): Their labels.
            edge_residual (float): :math:`s^2`.
            count (Tensor, optional): Their numbers of facts, ``[n]``, by whose roots they weigh;
                those without any are left out where others have some. (default: all alike)

        Raises:
            DataError: If fewer than three of the entities have features.
        """
        if count is not None and bool((count > 0).any()):
            seen = (count > 0).cpu()
            rows = seen.nonzero().flatten()
            labels = [labels[row] for row in rows.tolist()]
            x, count = x[seen.to(x.device)], count.cpu()[seen]
        else:
            rows, count = torch.arange(len(labels)), None
        own = table.select(labels)
        encoder = FeatureEncoder.fit(own)
        encoded, known = encoder.encode(own)
        if int(known.sum()) < FEWEST:
            example = f" (a label there is {quote(table.labels[0])})" if len(table) else ""
            raise DataError(
                f"{table.source}: {int(known.sum())} of the training entities have features by "
                f"their labels, and {FEWEST} are needed{example}"
            )
        has_row = torch.from_numpy(table.lookup(labels) >= 0)
        known_tensor = torch.from_numpy(known)
        x = x[has_row.to(x.device)].cpu()[known_tensor]
        weight = None
        if count is not None:
            weight = count[has_row][known_tensor].double().sqrt()
        f = torch.from_numpy(encoded[known])
        fits = (  # one at a time: each holds a prediction of every entity
            (basis, fit_ridge(basis.expand(f), x, weight)) for basis in LandmarkBasis.candidates(f)
        )
        basis, found = min(fits, key=lambda fit: fit[1].error)
        wide = double_precision(x)
        variance = float((found.share * (wide - found.mean).abs().square()).sum())
        explained = 1 - found.error / variance if variance else 0.0
        if explained > 0:
            found = found.spread(wide, max(explained, _FAINT) ** -0.25)
        error = max(found.error, _LEAST * variance) or 1.0
        mapped = cls(
            encoder,
            basis,
            found.weight,
            found.offset,
            found.strength,
            error,
            max(edge_residual, _LEAST * error) / error,
            explained,
            len(x),
        )
        nodes = rows[has_row][known_tensor]
        weights = torch.full((len(nodes),), mapped.gamma, dtype=torch.float64)
        return mapped, Anchors(nodes, found.left_out, weights)

    @torch.no_grad()
    def predict(self, table: FeatureTable) -> tuple[Tensor, Tensor]:
        """:math:`W f` of all entities of a table, ``[n, d]``, and which have a known feature."""
        rows, known = self.encoder.encode(table)
        f = self.basis.expand(torch.from_numpy(rows)).to(self.weight.dtype)
        return self.offset + f @ self.weight, torch.from_numpy(known)

    def anchors(self, table: FeatureTable, labels: Sequence[str]) -> Anchors:
        """Where entities are drawn to, as far as features of them are known.

        Args:
            table (FeatureTable): The features.
            labels (sequence of str): The entities.

        Raises:
            DataError: If features of an entity are so far from those of training that they lead
                nowhere.
        """
        own = table.select(labels)
        target, known = self.predict(own)
        lost = known & ~(target.abs() < _LONGEST).all(1)
        if bool(lost.any()):
            row = int(lost.nonzero()[0, 0])
            raise DataError(
                f"{own.place(row)}: the features of {quote(own.labels[row])} are so far from those "
                f"of training that they predict no vector; {'; '.join(self.encoder.notes(own))}"
            )
        nodes = torch.from_numpy(np.flatnonzero(table.lookup(labels) >= 0))[known]
        return Anchors(
            nodes, target[known], torch.full((len(nodes),), self.gamma, dtype=torch.float64)
        )

    def to_dict(self) -> dict[str, Any]:
        """All but the tensors, as plain values."""
        names = ("strength", "error", "gamma", "explained", "count")
        more = {name: getattr(self, name) for name in names}
        return self.encoder.to_dict() | {"bandwidth": self.basis.bandwidth} | more

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name."""
        return {"weight": self.weight, "offset": self.offset, "landmarks": self.basis.landmarks}

    @classmethod
    def from_dict(
        cls, stored: dict[str, Any], weight: Tensor, offset: Tensor, landmarks: Tensor
    ) -> "FeatureMap":
        """The map of :meth:`to_dict` and :meth:`tensors`.

        Args:
            stored (dict): All but the tensors.
            weight, offset, landmarks (Tensor): The tensors.

        Raises:
            ValueError: If they do not fit each other.
        """
        encoder = FeatureEncoder.from_dict(stored)
        shape = [encoder.width + len(landmarks), len(offset)]
        if list(weight.shape) != shape or landmarks.shape[1] != encoder.width:
            raise ValueError(
                f"the map of the features must be {shape} (got {list(weight.shape)}, with "
                f"landmarks {list(landmarks.shape)})"
            )
        basis = LandmarkBasis(landmarks, float(stored["bandwidth"]))
        rest = {name: stored[name] for name in ("strength", "error", "gamma", "explained", "count")}
        return cls(encoder, basis, weight, offset, **rest)

    def summary(self) -> str:
        """What a user should know, in a sentence."""
        return (
            f"{count_noun(len(self.encoder.columns), 'feature')} of {self.count:,} training "
            f"entities predict {100 * max(0.0, self.explained):.1f} % of the variance of the "
            f"vectors of those left out; relative to one fact, their weight is {self.gamma:.2g}"
        )

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len(self.encoder.columns)} features, {self.count} entities, "
            f"{100 * self.explained:.1f} % of the variance, gamma={self.gamma:.3g})"
        )
