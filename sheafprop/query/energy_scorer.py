import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sheafprop.data.vocabulary import Labels
from sheafprop.query.candidate_scores import CandidateScores
from sheafprop.query.dense_elimination import DenseElimination
from sheafprop.query.diagonal_elimination import DiagonalElimination
from sheafprop.query.elimination import Elimination
from sheafprop.query.interior_prior import InteriorPrior, prepare_vectors
from sheafprop.query.query import Query, quote
from sheafprop.query.query_batch import QueryBatch
from sheafprop.query.query_scorer import AnyQuery, QueryScorer
from sheafprop.ranking.triple_filter import check_ids
from sheafprop.sheaf import RelationSheaf


@dataclass(frozen=True)
class Answer:
    r"""One answer to a query.

    Args:
        label: The entity.
        entity: Its id.
        score: The score for ranking, the negative sum over sections of :math:`a_i \sqrt{E_i}`.
        energy: The energy :math:`\sum_i a_i E_i` of the query graph with this answer at its target.
        edges: On request, the energy of every edge, as pairs of the relation (in the notation of
            queries) and its energy, in the order of the query. Edges in other branches of an ``or``
            are excluded.
    """

    label: str
    entity: int
    score: float
    energy: float
    edges: tuple[tuple[str, float], ...] | None = None


# Scores in one block (32 MiB of float32), and numbers in the energies of a block of queries.
_BLOCK_SCORES = 2**23
_BLOCK_MATRICES = 2**23


class EnergyScorer(QueryScorer):
    r"""Scores every entity as the answer to logical queries, by the energy of the query graph.

    The score of an entity is the negative square root of the minimum energy of the query graph with
    that entity at its target, over all vectors of the interior vertices (Kron reduction),

    .. math::
        f(q, t) = - \sum_{i=1}^{s} a_i \sqrt{\min_{z} E_q \left( x_{\text{sources}}^{(i)}, z,
        x_t^{(i)} \right)}

    summed over sections. A query with unions takes the best score of the conjunctions in its
    disjunctive normal form. No training is required: the scorer uses only the maps of the relations
    and the vectors, including propagated vectors of new entities. See Cobb and Gebhart, "Feature
    Propagation on Knowledge Graphs Using Cellular Sheaves".

    Args:
        sheaf (RelationSheaf): The maps of the relations, as :meth:`KGEModel.sheaf` returns them.
        x (Tensor): The vectors of all entities, ``[N, d]`` or ``[N, s, d]``.
        entities (Vocabulary, optional): The labels of the entities; required for queries over
            labels.
        relations (Vocabulary, optional): The labels of the relations; required for queries over
            labels.
        section_weight (sequence of float, optional): :math:`a_i \ge 0`, one for each section.
            (default: all one)
        interior_prior (InteriorPrior, optional): A prior on the interior vertices, added to the
            energy. (default: none, as in the paper)

    Raises:
        ValueError: If sizes do not match, or a number is not finite.
    """

    def __init__(
        self,
        sheaf: RelationSheaf,
        x: Tensor,
        *,
        entities: Labels | None = None,
        relations: Labels | None = None,
        section_weight: Sequence[float] | None = None,
        interior_prior: InteriorPrior | None = None,
    ) -> None:
        x = prepare_vectors(sheaf, x)
        if sheaf.dtype is not None and sheaf.dtype.is_complex:
            x = x.to(torch.complex128 if x.real.dtype == torch.float64 else torch.complex64)
        super().__init__(len(x), sheaf.num_relations, entities, relations)
        weights = (
            [1.0] * x.shape[1] if section_weight is None else [float(a) for a in section_weight]
        )
        if len(weights) != x.shape[1] or not all(0 <= a < math.inf for a in weights):
            raise ValueError(
                f"'section_weight' must hold {x.shape[1]} numbers from 0 on (got {weights})"
            )
        self.sheaf, self.x, self.section_weight = sheaf, x, tuple(weights)
        takes = DiagonalElimination.takes(sheaf, interior_prior)
        kind = DiagonalElimination if takes else DenseElimination
        if interior_prior is not None:
            _check_prior(interior_prior, x, 2 * sheaf.num_relations)
        self.elimination: Elimination = kind(sheaf, x, interior_prior)
        self._scores = CandidateScores(x, self.section_weight)

    def blocks(
        self, batch: QueryBatch, candidates: Tensor | None = None, *, batch_size: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """As :meth:`QueryScorer.blocks`; queries with the same relations are grouped.

        Without a ``batch_size``, intermediate results take at most a few hundred megabytes.

        Args:
            batch, candidates, batch_size: See :meth:`QueryScorer.blocks`.

        Raises:
            ValueError: If ``batch_size`` is not positive, or a query holds a negation.
        """
        batch = self._check_batch(batch)
        candidates = None if candidates is None else candidates.to(self.x.device)
        count = self.x.shape[0] if candidates is None else candidates.numel()
        limit = min(
            _BLOCK_SCORES // max(1, count),
            _BLOCK_MATRICES // self.x.shape[-1] ** self.elimination.degree,
        )
        size = max(1, limit) if batch_size is None else batch_size
        if size < 1:
            raise ValueError(f"'batch_size' must be positive (got {batch_size})")
        conjunctions = batch.conjunctions()
        for rows in conjunctions[0].order_by_relation().split(size):
            best: Tensor | None = None
            for conjunction in conjunctions:
                energy = self.elimination.run(conjunction[rows]).energy
                assert energy is not None
                scores = self._scores(energy, candidates)
                best = scores if best is None else torch.maximum(best, scores, out=best)
            assert best is not None
            yield rows, best

    @torch.no_grad()
    def answer(
        self,
        queries: QueryBatch | Sequence[AnyQuery] | AnyQuery,
        k: int = 10,
        *,
        candidates: Tensor | None = None,
        explain: bool = False,
    ) -> list[list[Answer]]:
        r"""Returns the :obj:`k` best answers to every query, in descending order.

        Answers with equal scores are in the order of the candidates.

        Args:
            queries (QueryBatch, sequence of Query or str, Query or str): The queries.
            k (int, optional): The number of answers.
            candidates (Tensor, optional): Ids of the entities to choose from, instead of all.
            explain (bool, optional): Whether to split each energy by edge.

        Raises:
            DataError: If a text is not a query or a label is unknown.
            ValueError: If an id is out of range, or a query holds a negation.
        """
        if k < 1:
            raise ValueError(f"'k' must be positive (got {k})")
        if candidates is not None:
            check_ids(candidates, self.x.shape[0], "candidate")
        if isinstance(queries, Query | str):
            queries = [queries]
        out: list[list[Answer]] = [[] for _ in range(len(queries))]
        for batch, positions in self.group(queries):
            checked = self._check_batch(batch)
            for rows, scores in self.blocks(batch, candidates):
                # Stable, so that equal scores keep the order of the candidates.
                order = scores.argsort(dim=1, descending=True, stable=True)[:, :k]
                entity = order if candidates is None else candidates.to(order.device)[order]
                count = entity.shape[1]
                pairs = checked[rows.repeat_interleave(count)]
                columns = (entity.flatten().tolist(), scores.gather(1, order).flatten().tolist())
                found = [
                    Answer(self.label(id_), id_, *more)
                    for id_, *more in zip(
                        *columns, *self._split(pairs, entity.flatten(), explain), strict=True
                    )
                ]
                for i, row in enumerate(positions[rows.cpu()].tolist()):
                    out[row] = found[i * count : (i + 1) * count]
        return out

    def _split(
        self, pairs: QueryBatch, entity: Tensor, explain: bool
    ) -> tuple[list[float], list[tuple[tuple[str, float], ...] | None]]:
        """The energy of queries with given answers, and on request its parts by edge, in the
        conjunction that fits best."""
        target = self.x[entity]
        weight = torch.tensor(self.section_weight, dtype=torch.float64, device=target.device)
        best = [math.inf] * len(pairs)
        total = [0.0] * len(pairs)
        split: list[tuple[tuple[str, float], ...] | None] = [() if explain else None] * len(pairs)
        for conjunction in pairs.conjunctions(ordered=False):
            parts = self.elimination.edge_energies(self.elimination.run(conjunction), target)
            distance = (parts.sum(1).sqrt() * weight).sum(1).tolist()
            values = (parts * weight).sum(2).tolist()
            relations = conjunction.slots[:, list(conjunction.shape.relation_slots)].tolist()
            for n, own in enumerate(distance):
                if own < best[n]:
                    best[n], total[n] = own, sum(values[n])
                    if explain:
                        names = map(self._relation_text, relations[n])
                        split[n] = tuple(zip(names, values[n], strict=True))
        return total, split

    def _relation_text(self, relation: int) -> str:
        inverse, relation = divmod(relation, self.sheaf.num_relations)
        labels = self.relations
        name = str(relation) if labels is None else quote(labels.labels_of([relation])[0])
        return f"inverse({name})" if inverse else name

    def _check_batch(self, batch: QueryBatch) -> QueryBatch:
        """The batch on the right device, with ids that exist."""
        batch.check_ids(self.x.shape[0], self.sheaf.num_relations)
        slots, weight = batch.slots.to(self.x.device), batch.edge_weight
        return QueryBatch(batch.shape, slots, None if weight is None else weight.to(slots.device))

    def __repr__(self) -> str:
        n, s, d = self.x.shape
        return f"{self.__class__.__name__}({type(self.sheaf).__name__}, {n} x {s} x {d})"


def _check_prior(prior: InteriorPrior, x: Tensor, rows: int) -> None:
    for what, values, wanted in (
        ("centres", prior.centre, [rows, *x.shape[1:]]),
        ("entries", prior.entries, [rows, x.shape[2]]),
    ):
        if list(values.shape) != wanted:
            raise ValueError(
                f"'interior_prior' must be one of these vectors and relations, with {what} "
                f"{wanted} (got {list(values.shape)})"
            )
        if not bool(values.isfinite().all()):
            raise ValueError(f"'interior_prior' must have finite {what} (got NaN or infinity)")
    if prior.centre.is_complex() and not x.is_complex():
        raise ValueError(
            f"'interior_prior' must have real centres, as the vectors are real "
            f"(got {prior.centre.dtype})"
        )
    if prior.entries.is_complex() or bool((prior.entries < 0).any()):
        found = prior.entries.dtype if prior.entries.is_complex() else float(prior.entries.min())
        raise ValueError(f"'interior_prior' must have real entries from 0 on (got {found})")
