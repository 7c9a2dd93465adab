"""Whole benchmark graphs, split into training, validation and test triples of known entities."""

import os
import tarfile
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.presets import VERSIONS
from sheafprop.data.datasets.grail import ENVIRONMENT
from sheafprop.data.inductive_data import InductiveData
from sheafprop.data.knowledge_graph import KnowledgeGraph
from sheafprop.data.triples import LabelTriples, read_triples
from sheafprop.errors import DataError
from sheafprop.ranking import TripleFilter

#: The archive of a data set under the folder of the data, and the folder inside the archive.
ARCHIVES = {
    "codex-s": ("codex/codex-s.tar.gz", "codex-s/"),
    "FB15k-237": ("full/FB15k-237.tar.gz", ""),
} | {f"fb237_{version}": ("grail/fb237.tar.gz", f"fb237_{version}/") for version in VERSIONS}


def read_parts(name: str) -> list[LabelTriples]:
    """The label triples of one of :obj:`ARCHIVES`: of training, validation and test.

    Raises:
        DataError: If the archive is not at hand.
    """
    archive, folder, parts = TransductiveData.check(name), ARCHIVES[name][1], []
    with tempfile.TemporaryDirectory() as scratch, tarfile.open(archive) as members:
        for part in ("train", "valid", "test"):
            members.extract(f"{folder}{part}.txt", scratch, filter="data")
            parts.append(read_triples(Path(scratch, f"{folder}{part}.txt"), header=False))
    return parts


@dataclass(frozen=True)
class TransductiveData:
    """Triples to train on, to validate on and to test, over the entities of the first.

    Args:
        name (str): The name of the data set.
        train (KnowledgeGraph): The training graph.
        valid (Tensor): Validation triples ``[m, 3]``.
        test (Tensor): Test triples ``[m, 3]``.
    """

    name: str
    train: KnowledgeGraph
    valid: Tensor
    test: Tensor

    @classmethod
    def load(cls, name: str) -> "TransductiveData":
        """Reads one of :obj:`ARCHIVES`; triples of entities without training triples are excluded.

        Raises:
            DataError: If the archive is not at hand.
        """
        parts = read_parts(name)
        train = KnowledgeGraph.from_labels(parts[0])
        entities, relations = train.entities, train.relations
        assert entities is not None
        assert relations is not None
        found = []
        for labels in parts[1:]:
            head, tail = (entities.lookup(labels[:, column]) for column in (0, 2))
            ids = torch.stack([head, relations.lookup(labels[:, 1]), tail], dim=1)
            found.append(ids[(ids >= 0).all(1)])
        return cls(name, train, *found)

    @staticmethod
    def check(name: str) -> Path:
        """The archive of a data set.

        Raises:
            DataError: If it is not at hand.
        """
        place = ARCHIVES[name][0]
        archive = Path(os.environ.get(ENVIRONMENT, ""), place)
        if ENVIRONMENT not in os.environ or not archive.is_file():
            raise DataError(f"{name} is not at hand: {ENVIRONMENT} must name a folder with {place}")
        return archive

    @property
    def num_relations(self) -> int:
        """The number of relations."""
        assert self.train.relations is not None
        return len(self.train.relations)

    @property
    def num_nodes(self) -> int:
        """The number of entities."""
        assert self.train.entities is not None
        return len(self.train.entities)

    def shorten(self, num_train: int, num_test: int) -> "TransductiveData":
        """The same entities and relations, with a seeded choice of triples to train and to test."""
        generator = torch.Generator().manual_seed(0)
        triples = self.train.triples
        chosen = triples[torch.randperm(len(triples), generator=generator)[:num_train]]
        tested = self.test[torch.randperm(len(self.test), generator=generator)[:num_test]]
        train = KnowledgeGraph.from_triples(
            chosen,
            num_nodes=self.num_nodes,
            entities=self.train.entities,
            relations=self.train.relations,
        )
        return replace(self, train=train, test=tested)

    def known(self) -> TripleFilter:
        """The triples that do not count as mistakes."""
        parts: dict[str, Any] = {
            "train": self.train.triples,
            "valid": self.valid,
            "test": self.test,
        }
        return TripleFilter(parts, self.num_nodes, self.num_relations)

    def as_inductive(self) -> InductiveData:
        """What our data module takes; the inference graph, the same triples, is not looked at."""
        size = self.num_nodes
        return InductiveData(
            name=self.name,
            mode="fully-inductive",
            train=self.train,
            train_valid=None,
            inference=self.train,
            boundary_mask=torch.zeros(size, dtype=torch.bool),
            boundary_source=torch.full((size,), -1),
            valid=None,
            test=None,
        )
