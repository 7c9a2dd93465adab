from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sheafprop.data import Vocabulary, first_occurrences
from sheafprop.data.finite_rows import check_finite_rows
from sheafprop.data.triples import LabelTriples
from sheafprop.kernels.backend import all_finite
from sheafprop.kge import KGEModel
from sheafprop.pretrained.entity_index import EntityIndex
from sheafprop.pretrained.fact_index import FactIndex
from sheafprop.pretrained.row_blocks import RowBlocks
from sheafprop.pretrained.stored_model import StoredModel, with_entities

if TYPE_CHECKING:
    import pandas as pd
from functools import cached_property

from sheafprop.inductive.extension_solver import ExtensionSolver
from sheafprop.sheaf import RelationSheaf


@dataclass(frozen=True, eq=False)
class ModelBase:
    """What a model and its extensions share: the trained model.

    Args:
        stored (StoredModel): The model as it was loaded or trained.
    """

    stored: StoredModel

    @cached_property
    def sheaf(self) -> RelationSheaf:
        """The sheaf of the trained relations."""
        with torch.no_grad():
            return self.stored.model.sheaf()

    @cached_property
    def solver(self) -> ExtensionSolver:
        """The solver of new vectors."""
        stored = self.stored
        return ExtensionSolver(
            stored.model, self.sheaf, stored.prototypes, stored.residual_variance
        )

    @cached_property
    def has_unit_rows(self) -> bool:
        """Whether the model trains with entities of length one."""
        return self.stored.model.has_unit_rows()

    @cached_property
    def num_trained_facts(self) -> int:
        """Facts before the first one that touches an added entity."""
        added = (self.stored.facts[:, [0, 2]] >= self.stored.model.num_nodes).any(1)
        return int(added.to(torch.uint8).argmax()) if bool(added.any()) else len(added)


@dataclass(frozen=True, eq=False)
class ModelState:
    """The labels, vectors and facts of a trained model and what was added to it.

    Args:
        base (ModelBase): The trained model.
        index (EntityIndex): Labels and origins of all entities.
        rows (RowBlocks): Their vectors, ``[n, s, d]`` in blocks.
        facts (FactIndex): The observed triples.
        section_weight (tuple of float): The weight of each section in a score.
    """

    base: ModelBase
    index: EntityIndex
    rows: RowBlocks
    facts: FactIndex
    section_weight: tuple[float, ...]

    @classmethod
    def of(cls, stored: StoredModel) -> "ModelState":
        """The state of a model that was loaded or trained; a repeated fact counts once."""
        first = first_occurrences(stored.facts)
        if not bool(first.all()):  # folders of version 0.1.0 may hold some
            stored = replace(stored, facts=stored.facts[first])
        rows = [stored.model.entity_vectors().detach().unsqueeze(1)]
        if stored.extended is not None and len(stored.extended):
            rows.append(stored.extended)
        return cls(
            ModelBase(stored),
            EntityIndex(stored.entities, stored.origins),
            RowBlocks(rows),
            FactIndex(stored.facts, len(stored.relations)),
            stored.section_weight,
        )

    @property
    def kge(self) -> KGEModel:
        """The trained embedding model."""
        return self.base.stored.model

    @property
    def relations(self) -> Vocabulary:
        """Labels of the relations."""
        return self.base.stored.relations

    @property
    def num_entities(self) -> int:
        """Number of entities with a vector."""
        return len(self.index)

    @property
    def num_trained(self) -> int:
        """Number of entities that the model was trained with."""
        return self.kge.num_nodes

    @property
    def num_sections(self) -> int:
        """Number of vectors of an entity."""
        return len(self.section_weight)

    def vectors(self) -> Tensor:
        """Vectors ``[N, s, d]`` of all entities; a view where they lie in one block."""
        return self.rows.from_row(0).expand(-1, self.num_sections, -1)

    def check_finite(self) -> None:
        """Refuses vectors that are not finite; the first such entity is named."""
        start = 0
        for block in self.rows.blocks:
            if not all_finite(block):
                numbers = torch.arange(start, start + len(block))
                check_finite_rows(block, self.index.vocabulary().labels, "vectors", ids=numbers)
            start += len(block)

    def triple_ids(self, labels: LabelTriples) -> Tensor:
        """Ids ``[m, 3]`` of triples of known labels.

        Raises:
            DataError: If a label is unknown.
        """
        ends = self.index.ids(labels[:, [0, 2]].ravel()).view(-1, 2)
        return torch.stack([ends[:, 0], self.relations.ids(labels[:, 1]), ends[:, 1]], dim=1)

    def frame(self, triples: Tensor) -> "pd.DataFrame":
        """A frame of triples: ``head``, ``relation``, ``tail``."""
        import pandas as pd

        return pd.DataFrame(
            {
                "head": self.index.labels_of(triples[:, 0]),
                "relation": self.relations.labels_of(triples[:, 1]),
                "tail": self.index.labels_of(triples[:, 2]),
            },
            dtype=str,
        )

    def sections(self, entities: Tensor) -> tuple[Iterable[tuple[float, Tensor]], Tensor]:
        """Weight and vectors ``[n, d]`` of each section of entities, and where each entity is."""
        ids, place = torch.unique(entities, return_inverse=True)
        x = self.rows.select(ids)
        weights = self.section_weight if x.shape[1] > 1 else (1.0,)
        return list(zip(weights, x.unbind(1), strict=True)), place

    def stored(self, kept: Tensor | None = None, facts: Tensor | None = None) -> StoredModel:
        """Everything in one place, as a model folder holds it.

        Args:
            kept (Tensor, optional): Entities to keep, bool ``[N]``. (default: all)
            facts (Tensor, optional): The facts to keep, which name no other entity. (default: all)
        """
        stored, model, index = self.base.stored, self.kge, self.index
        labels, origins = index.vocabulary().labels, index.origins()
        facts = self.facts.from_row(0) if facts is None else facts
        extended = None
        if self.num_entities > self.num_trained:
            extended = self.rows.from_row(self.num_trained).expand(-1, self.num_sections, -1)
        if kept is not None:
            ids = kept.nonzero().flatten().tolist()
            labels, origins = tuple(labels[i] for i in ids), tuple(origins[i] for i in ids)
            number = torch.cumsum(kept, 0) - 1
            facts = torch.stack([number[facts[:, 0]], facts[:, 1], number[facts[:, 2]]], dim=1)
            trained, added = kept[: self.num_trained], kept[self.num_trained :]
            extended = None if extended is None else extended[added]
            if not bool(trained.all()):
                model = with_entities(model, trained)
        return replace(
            stored,
            model=model,
            entities=Vocabulary(labels, kind="entities"),
            origins=origins,
            facts=facts,
            extended=extended,
            section_weight=self.section_weight,
        )
