"""The queries of a split: read, scored under propagated vectors, and ranked."""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.query_data import QueryData, QuerySplit
from benchmarks.query_files import read_compact_queries, read_released_queries
from sheafprop.errors import DataError
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.kge import KGEModel
from sheafprop.query import (
    AnswerSets,
    EdgeTypeScorer,
    EnergyScorer,
    GraphExecutor,
    InteriorPrior,
    QueryBatch,
    QueryRanking,
    QueryScorer,
    easy_and_hard,
    evaluate_queries,
)


def check_queries(folder: Path, ratio: str) -> None:
    """Raises a DataError where a folder does not hold a split."""
    released, compact = folder / ratio, folder / f"{ratio}.npz"
    if not compact.exists() and not released.exists():
        raise DataError(
            f"there is neither a folder {released}, as the split is released, nor {compact}: name "
            "the folder that holds it with --data"
        )


def read_queries(folder: Path, ratio: str) -> QueryData:
    """Reads one split, as its authors released it or in the compact form.

    Raises:
        DataError: If the folder has neither, or it cannot be read.
    """
    check_queries(folder, ratio)
    compact = folder / f"{ratio}.npz"
    return (
        read_compact_queries(compact) if compact.exists() else read_released_queries(folder / ratio)
    )


class QueryTask:
    """The queries of one split over the vectors that a model and a propagation give.

    Args:
        data (QueryData): Graphs and queries.
        split: ``"valid"`` or ``"test"``.
        inverse_relations (bool): Whether the model has inverse relations of their own.
    """

    def __init__(self, data: QueryData, split: QuerySplit, inverse_relations: bool) -> None:
        self.data, self.split = data, split
        with warnings.catch_warnings():
            # Triples to predict that are known backwards are part of the benchmark.
            warnings.simplefilter("ignore", UserWarning)
            self.completion = data.completion(split, inverse_relations=inverse_relations)
        known = self.completion.train.relations
        assert known is not None
        forward = known.lookup(data.relations.labels)
        backward = forward + len(known)
        if inverse_relations:
            backward = known.lookup(map(data.inverse_label, data.relations.labels))
        #: The model's id of every relation and inverse relation.
        self.relations = torch.cat([forward, backward])
        self._queries: dict[Any, tuple[QueryBatch, AnswerSets, AnswerSets]] = {}
        self.executors = [
            GraphExecutor(triples, len(data.entities), len(data.relations), data.candidates(split))
            for triples in (data.observed(split), data.full(split))
        ]

    def scorer(
        self,
        model: KGEModel,
        x: Tensor,
        settings: PropagationSettings,
        interior_prior: bool = False,
    ) -> EnergyScorer:
        """Scores queries under vectors of the inference graph, in the ids of the data set.

        A prior of the interior is that of the observed facts, over the entities of the
        split alone, as :meth:`SheafModel.answer <sheafprop.pretrained.SheafModel.answer>` takes it.
        """
        entities = self.completion.inference.entities
        assert entities is not None
        rows = entities.lookup(self.data.entities.labels)
        # Entities of the other split have no vector; they are neither asked about nor ranked.
        vectors = x.new_zeros(len(rows), *x.shape[1:])
        vectors[rows >= 0] = x[rows[rows >= 0]]
        sheaf, prior = model.sheaf(), None
        if interior_prior:
            head, relation, tail = self.data.observed(self.split).T
            facts = torch.stack([rows[head], self.relations[relation], rows[tail]], dim=1)
            prior = InteriorPrior.of_facts(sheaf, x, facts)
        return EnergyScorer(
            sheaf, vectors, section_weight=settings.section_weight, interior_prior=prior
        )

    def heuristic(self) -> EdgeTypeScorer:
        """The edge-type heuristic of the observed graph."""
        data = self.data
        return EdgeTypeScorer(data.observed(self.split), len(data.entities), len(data.relations))

    def queries(self, kind: str, limit: int | None) -> tuple[QueryBatch, AnswerSets, AnswerSets]:
        """Queries of a type, or a seeded choice of them, with easy and hard answers."""
        if (kind, limit) not in self._queries:
            rows = torch.from_numpy(self.data.queries[self.split][kind])
            if limit is not None and limit < len(rows):
                generator = torch.Generator().manual_seed(0)
                rows = rows[torch.randperm(len(rows), generator=generator)[:limit]]
            batch = QueryBatch.of(kind, rows)
            easy, hard = easy_and_hard(self.executors[0], self.executors[1], batch)
            self._queries[kind, limit] = batch, easy, hard
        return self._queries[kind, limit]

    def rank(
        self,
        scorer: QueryScorer,
        kind: str,
        limit: int | None = None,
        rows: Tensor | None = None,
    ) -> QueryRanking:
        """Ranks the hard answers of the queries of a type, or of a seeded choice of them.

        Args:
            rows (Tensor, optional): The places of some of these queries, which alone are ranked.
        """
        batch, easy, hard = self.queries(kind, limit)
        if rows is not None:
            batch, easy, hard = batch[rows], easy.select(rows.numpy()), hard.select(rows.numpy())
        if isinstance(scorer, EnergyScorer):
            slots, columns = batch.slots.clone(), list(batch.shape.relation_slots)
            slots[:, columns] = self.relations[slots[:, columns]]
            batch = QueryBatch(batch.shape, slots)
        candidates = self.data.candidates(self.split)
        return evaluate_queries(scorer, batch, easy, hard, candidates, progress=True)
