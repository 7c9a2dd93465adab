from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sheafprop.data.answer_sets import AnswerSets
from sheafprop.data.assembly import assemble
from sheafprop.data.inductive_data import InductiveData
from sheafprop.data.vocabulary import Vocabulary
from sheafprop.errors import DataError

QuerySplit = Literal["valid", "test"]

#: The five sets of triples of an inductive query data set.
GRAPHS = ("train_graph", "val_inference", "val_predict", "test_inference", "test_predict")
#: The columns of every type of query: an entity ``e`` or a relation ``r``.
COLUMNS = {
    "1p": "er",
    "2p": "err",
    "3p": "errr",
    "2i": "erer",
    "3i": "ererer",
    "pi": "errer",
    "ip": "ererr",
    "2in": "erer",
    "3in": "ererer",
    "pin": "errer",
    "pni": "errer",
    "inp": "ererr",
    "2u": "erer",
    "up": "ererr",
}


@dataclass(frozen=True, eq=False)
class QueryData:
    r"""Graphs and logical queries for training entities and for entities that are new, after
    `"Inductive Logical Query Answering in Knowledge Graphs" <https://arxiv.org/abs/2210.08008>`_
    (Galkin et al., 2022).

    Entities are numbered: those of training first, then the new ones of validation, then the new
    ones of the test. Relation :math:`r + R` is the inverse of relation :math:`r < R`; triples are
    held in their forward direction only.

    Args:
        name: The name of the data set.
        entities: Labels of all entities.
        relations: Labels of the relations, without inverse ones.
        num_entities: How many entities are of training, new in validation, new in the test.
        graphs: Triples ``(head, relation, tail)``, int64 ``[m, 3]``, by the names of ``GRAPHS``.
        queries: For each split (``"train"``, ``"valid"``, ``"test"``) and type, the queries
            ``[q, columns]``, see ``COLUMNS``.
        answers: For each split and type the easy and the hard answers, where the data set brings
            them.

    Raises:
        DataError: If an id is out of its range.
    """

    name: str
    entities: Vocabulary
    relations: Vocabulary
    num_entities: tuple[int, int, int]
    graphs: Mapping[str, Tensor]
    queries: Mapping[str, Mapping[str, NDArray[np.int64]]]
    answers: Mapping[str, Mapping[str, tuple[AnswerSets, AnswerSets]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        total = sum(self.num_entities)
        if len(self.entities) != total:
            raise DataError(
                f"{self.name}: {total} entities in all need labels (got {len(self.entities)})"
            )
        for name in GRAPHS:
            triples = self.graphs[name].numpy()
            if triples.ndim != 2 or triples.shape[1] != 3:
                raise DataError(f"{self.name}: {name} cannot have shape {list(triples.shape)}")
            self._check(name, triples[:, [0, 2]], total, "entities")
            self._check(name, triples[:, 1], len(self.relations), "relations")
        for split, types in self.queries.items():
            for kind, rows in types.items():
                where = f"{split} queries of type {kind}"
                if kind not in COLUMNS or rows.ndim != 2 or rows.shape[1] != len(COLUMNS[kind]):
                    raise DataError(f"{self.name}: {where} cannot have shape {list(rows.shape)}")
                relation = np.array([letter == "r" for letter in COLUMNS[kind]])
                self._check(where, rows[:, ~relation], total, "entities")
                self._check(where, rows[:, relation], 2 * len(self.relations), "relations")
        for split, kinds in self.answers.items():
            for kind, sets in kinds.items():
                for part in sets:
                    self._check(f"{split} answers of type {kind}", part.values, total, "entities")
                    if len(part) != len(self.queries[split][kind]):
                        raise DataError(
                            f"{self.name}: {len(self.queries[split][kind])} {split} queries of "
                            f"type {kind}, but {len(part)} sets of answers"
                        )

    def observed(self, split: QuerySplit) -> Tensor:
        """The triples known when the queries of a split are asked."""
        return torch.cat([self.graphs["train_graph"], self.graphs[_graph(split, "inference")]])

    def full(self, split: QuerySplit) -> Tensor:
        """The observed triples and those to predict."""
        return torch.cat([self.observed(split), self.graphs[_graph(split, "predict")]])

    def candidates(self, split: QuerySplit) -> Tensor:
        """The entities of the observed graph: those of training, and the new ones of the split."""
        train, valid, test = self.num_entities
        start, count = (train, valid) if split == "valid" else (train + valid, test)
        return torch.cat([torch.arange(train), torch.arange(start, start + count)])

    def completion(
        self, split: QuerySplit = "test", *, inverse_relations: bool = False
    ) -> InductiveData:
        """The data set as a semi-inductive completion task, for training and propagation.

        Args:
            split: Whose inference graph is to be extended to. What is to be predicted there takes
                the place of validation or test triples.
            inverse_relations: Whether to add every triple a second time, backwards, under a
                relation of its own, named by :meth:`inverse_label`.
        """
        labels = {
            name: self._labels(self.graphs[name], inverse_relations)
            for name in ("train_graph", _graph(split, "inference"), _graph(split, "predict"))
        }
        return assemble(
            f"{self.name}-{split}",
            "semi-inductive",
            train=labels["train_graph"],
            observed=labels[_graph(split, "inference")],
            **{split: labels[_graph(split, "predict")]},  # type: ignore[arg-type]
        )

    @staticmethod
    def inverse_label(relation: str) -> str:
        """The label of an inverse relation that is a relation of its own."""
        return f"inverse of {relation}"

    def _labels(self, triples: Tensor, inverse: bool) -> NDArray[np.object_]:
        entities = np.array(self.entities.labels, dtype=object)
        relations = np.array(self.relations.labels, dtype=object)
        h, r, t = triples.numpy().T
        rows = np.stack([entities[h], relations[r], entities[t]], axis=1)
        if not inverse:
            return rows
        named = np.array([self.inverse_label(label) for label in relations], dtype=object)
        return np.concatenate([rows, np.stack([entities[t], named[r], entities[h]], axis=1)])

    def _check(self, where: str, ids: NDArray, bound: int, kind: str) -> None:
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < bound:
            raise DataError(
                f"{self.name}, {where}: ids of {kind} go from 0 to {bound - 1} "
                f"(got {ids.min()} to {ids.max()})"
            )

    def __repr__(self) -> str:
        asked = sum(len(rows) for types in self.queries.values() for rows in types.values())
        return (
            f"{self.__class__.__name__}({self.name}, {len(self.entities)} entities, "
            f"{len(self.relations)} relations, {asked} queries)"
        )


def _graph(split: str, part: str) -> str:
    return f"{'val' if split == 'valid' else split}_{part}"
