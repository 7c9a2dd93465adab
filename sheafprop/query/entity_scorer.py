import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sheafprop.checks import check_integer
from sheafprop.data.vocabulary import Labels
from sheafprop.query.entity_search import EntitySearch, check_bounded, waiting_tables
from sheafprop.query.link_probabilities import LinkProbabilities
from sheafprop.query.max_product import best_entities
from sheafprop.query.query import Query
from sheafprop.query.query_batch import QueryBatch
from sheafprop.query.query_scorer import AnyQuery, QueryScorer
from sheafprop.query.truth_calibration import TruthCalibration
from sheafprop.ranking.triple_filter import check_ids

# Numbers in all tables of truth of a block of queries (1 GiB of float32).
_BLOCK_TRUTHS = 2**28
# Numbers of single precision that an entity of a beam takes while rows are assigned to it.
_PAIR = 24


@dataclass(frozen=True, eq=False)
class QueryTruth:
    r"""The truth of every entity as the answer to queries, with bounds on the error of the beam.

    With :math:`T` the truth that was found, the truth without a beam is at most
    :math:`\max(T, \text{limit})` and at least :math:`\text{share} \cdot T`.

    Args:
        rows (Tensor): Positions of the queries in their batch, ``[Q]``.
        log_truth (Tensor): :math:`\log T`, ``[Q, N]``.
        log_limit (Tensor): The log of the limit, ``[Q]``; :math:`-\infty` if the beam dropped no
            entity.
        share (Tensor): The share, ``[Q]``; below 1 only if the beam dropped entities in a negation.
    """

    rows: Tensor
    log_truth: Tensor
    log_limit: Tensor
    share: Tensor

    def certain(self, log_truth: Tensor) -> Tensor:
        """Returns the number of first answers whose ranks do not depend on the beam, ``[Q]``.

        Args:
            log_truth (Tensor): The logs of truth of the best answers to each query, descending;
                entities of truth zero do not count.
        """
        following = torch.nn.functional.pad(log_truth[:, 1:], (0, 1), value=-math.inf)
        whole = (self.share == 1).unsqueeze(1)
        # With a share below one, answers may change places with those that follow.
        least = log_truth + self.share.log().unsqueeze(1)
        most = torch.where(whole, self.log_limit.unsqueeze(1), following)
        most = torch.maximum(most, self.log_limit.unsqueeze(1))
        return (least > most).long().cumprod(1).sum(1)


@dataclass(frozen=True)
class EntityAnswer:
    r"""One answer to a query.

    Args:
        label: The label of the entity, or its id as text without labels.
        entity: Its id.
        truth: :math:`T`, the truth of its derivations.
        certain: Whether its rank does not depend on the beam.
        probability: The recalibrated truth, if a calibration is given.
    """

    label: str
    entity: int
    truth: float
    certain: bool
    probability: float | None = None


class EntityScorer(QueryScorer):
    r"""Scores every entity as the answer to logical queries, from facts and predicted links.

    Interior variables are entities, and the truth of a query is that of their best assignment
    (max-product). With :math:`T` the truth of an entity :math:`u` at some vertex and
    :math:`p_q(v \mid u)` the probability of a link,

    .. math::
        T_{\text{via}}(v) = \max_u T(u) \, p_q(v \mid u), \qquad
        T_{\text{and}} = \prod_i T_i, \qquad
        T_{\text{or}} = 1 - \prod_i (1 - T_i), \qquad
        T_{\text{not}} = 1 - T

    with the maximum over the :obj:`k` entities of largest truth (the beam). Unions are not
    rewritten, and the maximum within a negated query is taken first. Based on "Answering Complex
    Logical Queries on Knowledge Graphs via Query Computation Tree Optimization" (Bai et al., 2023).
    Scores are logs of truth, so that small values keep their order.

    Args:
        links (LinkProbabilities): The probability of every link.
        k (int or str, optional): Number of entities kept per interior variable, or ``"all"``, which
            is exact. The weights of a :class:`QueryBatch` are ignored.
        entities (Vocabulary, optional): The labels of the entities; required for queries over
            labels.
        relations (Vocabulary, optional): The labels of the relations; required for queries over
            labels.

    Raises:
        ValueError: If :obj:`k` is not positive, or the numbers of labels do not match.
    """

    def __init__(
        self,
        links: LinkProbabilities,
        k: int | Literal["all"] = 64,
        *,
        entities: Labels | None = None,
        relations: Labels | None = None,
    ) -> None:
        if k != "all":
            check_integer("k", k, 1)
        super().__init__(links.num_entities, links.num_relations, entities, relations)
        self.links, self.k = links, k
        self.search = EntitySearch(links, links.num_entities if k == "all" else int(k))

    def blocks(
        self, batch: QueryBatch, candidates: Tensor | None = None, *, batch_size: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """As :meth:`QueryScorer.blocks`; queries with the same relations are grouped.

        Args:
            batch, candidates, batch_size: See :meth:`QueryScorer.blocks`.
        """
        for truth in self.truths(batch, batch_size=batch_size):
            scores = truth.log_truth
            if candidates is not None:
                scores = scores[:, candidates.to(scores.device)]
            yield truth.rows, scores

    @torch.no_grad()
    def truths(self, batch: QueryBatch, *, batch_size: int | None = None) -> Iterator[QueryTruth]:
        """Yields the truths of all entities for blocks of queries, with their bounds.

        Args:
            batch (QueryBatch): The queries.
            batch_size (int, optional): Queries per block. (default: by the available memory)

        Raises:
            ValueError: If an id is out of range, ``batch_size`` is not positive, or the answers of
                a query are the complement of a set.
        """
        check_bounded(batch.shape)
        batch.check_ids(self.links.num_entities, self.links.num_relations)
        if batch_size is None:
            numbers = (
                waiting_tables(batch.shape) * self.links.num_entities + _PAIR * self.search.width
            )
            batch_size = max(1, _BLOCK_TRUTHS // max(1, numbers))
        check_integer("batch_size", batch_size, 1)
        slots = batch.slots.to(self.links.device)
        self.links.make_room()
        for rows in batch.order_by_relation().to(slots.device).split(batch_size):
            yield QueryTruth(rows, *self.search.truth(batch.shape, slots[rows]))

    @torch.no_grad()
    def answer(
        self,
        queries: QueryBatch | Sequence[AnyQuery] | AnyQuery,
        k: int = 10,
        *,
        candidates: Tensor | None = None,
        calibration: TruthCalibration | None = None,
        min_probability: float = 0.0,
    ) -> list[list[EntityAnswer]]:
        r"""Returns the :obj:`k` best answers to every query, in descending order.

        Entities of truth zero are not answers, so there may be fewer than :obj:`k`. Answers of
        equal truth are ordered by id.

        Args:
            queries (QueryBatch, sequence of Query or str, Query or str): The queries.
            k (int, optional): The number of answers.
            candidates (Tensor, optional): Ids of the entities to choose from, instead of all.
            calibration (TruthCalibration, optional): Maps truths to probabilities.
            min_probability (float, optional): Answers of smaller probability are omitted.

        Raises:
            DataError: If a text is not a query or a label is unknown.
            ValueError: If an id is out of range, the answers of a query are the complement of a
                set, or ``min_probability`` is not between 0 and 1 or has no calibration.
        """
        check_integer("k", k, 1)
        if not 0 <= min_probability <= 1:
            raise ValueError(f"'min_probability' must be between 0 and 1 (got {min_probability})")
        if min_probability and calibration is None:
            raise ValueError("'min_probability' needs a calibration: truths are not probabilities")
        if isinstance(queries, Query | str):
            queries = [queries]
        outside = torch.zeros(self.links.num_entities, dtype=torch.bool, device=self.links.device)
        if candidates is not None:
            check_ids(candidates, self.links.num_entities, "candidate")
            outside[:] = True
            outside[candidates.to(outside.device)] = False
        out: list[list[EntityAnswer]] = [[] for _ in range(len(queries))]
        for batch, positions in self.group(queries):
            for truth in self.truths(batch):
                values = truth.log_truth.masked_fill(outside, -math.inf)
                entity, value, following = best_entities(values, k)
                entity, order = entity.sort(1)
                value, order = value.gather(1, order).sort(dim=1, descending=True, stable=True)
                entity = entity.gather(1, order)
                # The first of the answers that are not given bounds the last that is.
                certain = truth.certain(torch.cat([value, following.unsqueeze(1)], 1))
                rows = positions[truth.rows.cpu()].tolist()
                probability: list[list[float | None]] = [[None] * entity.shape[1]] * len(rows)
                if calibration is not None:
                    probability = calibration.probability(value, batch.shape).tolist()
                columns = (entity.tolist(), value.tolist(), probability, certain.tolist())
                for row, ids, logs, shares, first in zip(rows, *columns, strict=True):
                    out[row] = [
                        EntityAnswer(self.label(u), u, math.exp(t), place < first, p)
                        for place, (u, t, p) in enumerate(zip(ids, logs, shares, strict=True))
                        if t > -math.inf and (p is None or p >= min_probability)
                    ]
        return out

    def __repr__(self) -> str:
        return f"{self.__class__.__name__}({self.links!r}, k={self.k})"
