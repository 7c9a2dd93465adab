"""Maps features of entities to vectors by ridge regression."""

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
#: Candidates of the strength, relative to the largest eigenvalue of the Gram matrix.
_STRENGTHS = torch.logspace(-8, 2, 61, dtype=torch.float64)
#: Weight of a degree of freedom in the selection of the strength.
_CAUTION = 1.4
#: Minimum explained fraction of the variance in the factor that spreads predictions.
_FAINT = 1 / 16
#: Bound of the norms of predictions; squares of larger norms overflow in single precision.
_LONGEST = 1e18
#: Minimum unexplained fraction of the variance, so that weights are finite.
_LEAST = 1e-6


class Ridge(NamedTuple):
    """A ridge regression; see :func:`fit_ridge`.

    Args:
        weight (Tensor): :math:`W`, ``[p, d]``.
        offset (Tensor): :math:`c`, ``[d]``.
        strength (float): :math:`\\lambda`.
        error (float): Leave-one-out mean squared error, over all columns.
        left_out (Tensor): Leave-one-out predictions, ``[n, d]``.
        mean (Tensor): The weighted mean of the vectors, ``[d]``.
        share (Tensor): The normalized weights of the entities, ``[n, 1]``.
    """

    weight: Tensor
    offset: Tensor
    strength: float
    error: float
    left_out: Tensor
    mean: Tensor
    share: Tensor

    def spread(self, x: Tensor, factor: float) -> "Ridge":
        """Scales the deviation of predictions from the mean.

        Args:
            x (Tensor): The vectors of the fit, ``[n, d]``.
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
    r"""Fits a ridge regression in closed form and in double precision.

    .. math::
        \min_{W, c} \sum_v \omega_v \| x_v - c - W^\top f_v \|^2 + \lambda \| W \|^2

    For centered data with the Gram matrix :math:`F^\top F = V S V^\top` (or, if there are more
    features than entities, :math:`F F^\top = U S U^\top`), the solution is
    :math:`W = V (S + \lambda)^{-1} V^\top F^\top X`. The strength :math:`\lambda` minimizes the
    score of generalized cross-validation (Golub, Heath and Wahba, 1979),
    :math:`n \, \mathrm{RSS} / (n - 1.4 \, \mathrm{df})^2` with
    :math:`\mathrm{df} = 1 + \sum_i S_i / (S_i + \lambda)`. The factor 1.4 avoids strengths that
    interpolate the data (Kim and Gu, 2004).

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
    # The left singular vectors of the features.
    keep = size > largest * max(f.shape) * torch.finfo(torch.float64).eps
    size, basis = size[keep], basis[:, keep]
    left = basis if wide else rows @ (basis / size.sqrt())
    seen = left.T.to(x.dtype) @ values
    along = (seen.abs() ** 2).sum(1)
    # The part orthogonal to the features; zero with as many directions as entities.
    outside = float((values.abs() ** 2).sum() - along.sum()) if len(size) < count - 1 else 0.0

    def scores(strengths: Tensor) -> Tensor:
        left_over = strengths.unsqueeze(1) / (size + strengths.unsqueeze(1))
        rss = max(outside, 0.0) + (along * left_over**2).sum(1)
        free = count - _CAUTION * (1 + (1 - left_over).sum(1))
        return torch.where(free > 0, rss / free**2, torch.inf)

    if strength is None:
        tried = _STRENGTHS * (largest or 1.0)
        # Ties are broken towards the strongest regularization.
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
    r"""Returns the weights :math:`\gamma_v = 2 \gamma / (1 + n_v)` of features of entities with
    :math:`n_v` facts.

    With one fact, the weight is :math:`\gamma`, which weighs features and facts by their residuals.
    It decreases with the number of facts, since many facts contain the information in the features
    and distinguish similar entities better. The form was selected on training graphs
    (docs/features.md).

    Args:
        weight (Tensor): :math:`\gamma`, ``[m]``.
        count (Tensor): Number of facts of each entity, ``[m]``.
    """
    return 2 * weight / (1 + count.to(weight))


class Anchors(NamedTuple):
    """Vectors predicted from features, and their weights.

    Args:
        nodes (Tensor): Positions of the entities among the given labels, int64 ``[m]``.
        target (Tensor): :math:`W f_v`, ``[m, d]``.
        weight (Tensor): Weights :math:`\\gamma` for entities with one fact, ``[m]``.
    """

    nodes: Tensor
    target: Tensor
    weight: Tensor

    def among(self, entities: Tensor, size: int) -> "Anchors":
        """Selects the anchors of ``entities`` ``[n]`` out of ``size``, and renumbers them."""
        number = torch.full((size,), -1)
        number[entities] = torch.arange(len(entities))
        nodes = number[self.nodes]
        kept = nodes >= 0
        return Anchors(nodes[kept], self.target[kept], self.weight[kept])


@dataclass(frozen=True, eq=False)
class FeatureMap:
    r"""Predicts vectors :math:`W f_v` from features, with weights for the energy.

    Features add the term :math:`\gamma_v \| x_v - W f_v \|^2` to the energy. For an entity with one
    fact, the weight is :math:`\gamma = s^2 / \hat\sigma^2`, the mean squared residual of training
    triples divided by the leave-one-out mean squared error of :math:`W f`; see
    :func:`weigh_by_facts` for other entities.

    Least squares shrinks predictions towards the mean of all entities, which harms rankings. Their
    deviation from the mean is therefore multiplied by the fourth root of the inverse of the
    explained fraction of the variance. On a logarithmic scale, this restores half of the spread of
    the trained vectors.

    Args:
        encoder (FeatureEncoder): Encodes features as numbers.
        basis (LandmarkBasis): Expands these to :math:`f`; selected by the error.
        weight (Tensor): :math:`W`, ``[p, d]`` in double precision.
        offset (Tensor): The constant term, ``[d]``.
        strength (float): The strength of the ridge regression.
        error (float): :math:`\hat\sigma^2`.
        gamma (float): :math:`\gamma`.
        explained (float): Fraction of the variance explained by leave-one-out predictions.
        count (int): Number of training entities with features.
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
        """Fits the map on the training entities with features, see :meth:`fit_left_out`."""
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
        r"""Fits the map and returns leave-one-out predictions, see :func:`fit_ridge`.

        Args:
            table (FeatureTable): Features. Those of other entities are ignored.
            x (Tensor): Trained vectors ``[n, d]``.
            labels (sequence of str): Labels of the training entities.
            edge_residual (float): :math:`s^2`.
            count (Tensor, optional): Numbers of facts, ``[n]``. Entities are weighted by their
                square roots; those without facts are excluded if others have some. (default: equal
                weights)

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
            example = f"; a label there: {quote(table.labels[0])}" if len(table) else ""
            raise DataError(
                f"{table.source}: at least {FEWEST} training entities must have features (got "
                f"{int(known.sum())}{example})"
            )
        has_row = torch.from_numpy(table.lookup(labels) >= 0)
        known_tensor = torch.from_numpy(known)
        x = x[has_row.to(x.device)].cpu()[known_tensor]
        weight = None
        if count is not None:
            weight = count[has_row][known_tensor].double().sqrt()
        f = torch.from_numpy(encoded[known])
        fits = (  # one at a time, since each holds predictions of all entities
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
        """Returns :math:`W f` of a table, ``[n, d]``, and a mask of entities with features."""
        rows, known = self.encoder.encode(table)
        f = self.basis.expand(torch.from_numpy(rows)).to(self.weight.dtype)
        return self.offset + f @ self.weight, torch.from_numpy(known)

    def anchors(self, table: FeatureTable, labels: Sequence[str]) -> Anchors:
        """Predicts the vectors of entities with known features.

        Args:
            table (FeatureTable): The features.
            labels (sequence of str): The entities.

        Raises:
            DataError: If features differ so much from those in training that predictions overflow.
        """
        own = table.select(labels)
        target, known = self.predict(own)
        lost = known & ~(target.abs() < _LONGEST).all(1)
        if bool(lost.any()):
            row = int(lost.nonzero()[0, 0])
            raise DataError(
                f"{own.place(row)}: the features of {quote(own.labels[row])} are too far from "
                f"those in training to predict a vector; {'; '.join(self.encoder.notes(own))}"
            )
        nodes = torch.from_numpy(np.flatnonzero(table.lookup(labels) >= 0))[known]
        return Anchors(
            nodes, target[known], torch.full((len(nodes),), self.gamma, dtype=torch.float64)
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns everything except the tensors as plain values."""
        names = ("strength", "error", "gamma", "explained", "count")
        more = {name: getattr(self, name) for name in names}
        return self.encoder.to_dict() | {"bandwidth": self.basis.bandwidth} | more

    def tensors(self) -> dict[str, Tensor]:
        """Returns the tensors by name."""
        return {"weight": self.weight, "offset": self.offset, "landmarks": self.basis.landmarks}

    @classmethod
    def from_dict(
        cls, stored: dict[str, Any], weight: Tensor, offset: Tensor, landmarks: Tensor
    ) -> "FeatureMap":
        """Creates a map from the results of :meth:`to_dict` and :meth:`tensors`.

        Args:
            stored (dict): Plain values.
            weight, offset, landmarks (Tensor): The tensors.

        Raises:
            ValueError: If shapes do not match.
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
        """Returns a sentence on the fit."""
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
