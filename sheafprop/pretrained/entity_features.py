"""Features of a model's entities: the map to vectors, and where added entities are drawn to."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sheafprop.data.features import FeatureTable
from sheafprop.inductive.feature_map import Anchors, FeatureMap

#: The first word of the names of tensors in a file.
PREFIX = "features."


@dataclass(frozen=True, eq=False)
class EntityFeatures:
    """The map of a trained model, and the anchors of entities that were added with features.

    Args:
        map (FeatureMap): The map from features to vectors.
        labels (tuple of str): Added entities with features.
        target (Tensor): Where the features draw each of them to, ``[n, d]``.
        weight (Tensor): With which weight, ``[n]``.
    """

    map: FeatureMap
    labels: tuple[str, ...]
    target: Tensor
    weight: Tensor

    @classmethod
    def of_map(cls, map: FeatureMap, like: Tensor) -> "EntityFeatures":
        """The features of a model without added entities, whose vectors are like ``like``."""
        empty = like.new_zeros(0, len(map.offset), dtype=like.dtype)
        return cls(map, (), empty, torch.zeros(0, dtype=torch.float64))

    def add(self, table: FeatureTable, labels: Sequence[str]) -> "EntityFeatures":
        """With the anchors of the ``labels`` that have features in a table, for old ones."""
        found = self.map.anchors(table, labels)
        names = [labels[i] for i in found.nodes.tolist()]
        kept = self.without(names)
        return replace(
            kept,
            labels=(*kept.labels, *names),
            target=torch.cat([kept.target, found.target.to(kept.target)]),
            weight=torch.cat([kept.weight, found.weight.to(kept.weight)]),
        )

    def without(self, labels: Iterable[str]) -> "EntityFeatures":
        """Without the anchors of some entities."""
        gone = set(labels)
        if gone.isdisjoint(self.labels):
            return self
        rows = [row for row, label in enumerate(self.labels) if label not in gone]
        names = tuple(self.labels[row] for row in rows)
        return replace(self, labels=names, target=self.target[rows], weight=self.weight[rows])

    def anchors(self, labels: Sequence[str]) -> Anchors:
        """The anchors of those of some ``labels`` that have one."""
        place = {label: row for row, label in enumerate(self.labels)}
        found = [(i, place[label]) for i, label in enumerate(labels) if label in place]
        nodes, rows = torch.tensor(found, dtype=torch.int64).reshape(-1, 2).unbind(1)
        return Anchors(nodes, self.target[rows], self.weight[rows])

    def to_dict(self) -> dict[str, Any]:
        """All but the tensors, as plain values."""
        return self.map.to_dict() | {"labels": list(self.labels)}

    def tensors(self) -> dict[str, Tensor]:
        """The tensors, real, by name."""
        named = self.map.tensors() | {"target": self.target, "gamma": self.weight}
        return {
            PREFIX + name: torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
            for name, value in named.items()
        }

    @classmethod
    def from_stored(
        cls, stored: dict[str, Any], tensors: dict[str, Tensor], is_complex: bool
    ) -> "EntityFeatures":
        """The features of :meth:`to_dict` and :meth:`tensors`.

        Raises:
            ValueError: If they do not fit each other.
        """
        weight, offset, landmarks, target, gamma = (
            tensors[PREFIX + name] for name in ("weight", "offset", "landmarks", "target", "gamma")
        )
        if is_complex:
            weight, offset, target = map(torch.view_as_complex, (weight, offset, target))
        labels = tuple(stored["labels"])
        if not len(labels) == len(target) == len(gamma) or target.shape[1:] != offset.shape:
            raise ValueError("the anchors of entities do not fit their labels")
        mapped = FeatureMap.from_dict(stored, weight, offset, landmarks)
        return cls(mapped, labels, target, gamma)
