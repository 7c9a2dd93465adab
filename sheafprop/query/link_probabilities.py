import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sheafprop.errors import DivergenceError
from sheafprop.kernels.backend import backend_of
from sheafprop.kernels.threads import run_rows
from sheafprop.ranking.triple_filter import TripleFilter, check_ids

# A predicted link is never as certain as a fact.
_MOST = 0.999
# Numbers that torch's own operations treat at once, and multiplications for each of them.
_NUMBERS = 2**20
_PASSES = 16


class LinkScorer(Protocol):
    """Protocol of objects that score entities at the other end of a link."""

    def score_links(self, entities: Tensor, relation: int, inverse: bool) -> Tensor:
        r"""Returns the scores ``[n, N]`` of all entities as tails of ``(entity, relation, ?)``, or
        with ``inverse`` as heads of ``(?, relation, entity)``; higher is better.

        Excluded entities have the score :math:`-\infty`. The caller may overwrite the tensor.

        Args:
            entities (Tensor): Distinct ids, int64 ``[n]``.
            relation (int): The relation, below :math:`R`.
            inverse (bool): Whether to follow it from tail to head.
        """


class RowPart(NamedTuple):
    """Rows of some entities, which stand at places of a table."""

    where: Tensor
    place: Tensor
    table: Tensor


class FactSource(Protocol):
    """Facts by entity and relation, wherever they are kept.

    Both look up one relation for each entity and return the distinct pairs of a position and an
    entity, by position, as :class:`~sheafprop.ranking.TripleFilter` does.
    """

    def tails(self, head_index: Tensor, rel_type: Tensor) -> tuple[Tensor, Tensor]:
        """The tails of facts."""

    def heads(self, rel_type: Tensor, tail_index: Tensor) -> tuple[Tensor, Tensor]:
        """The heads of facts."""


class LinkProbabilities:
    r"""Probabilities of links: one for facts, predicted from scores for other links.

    With :math:`f(u, q, v)` the score of the link from :math:`u` to :math:`v` by relation :math:`q`,
    and :math:`n_{u,q}` the number of facts from :math:`u` along :math:`q`,

    .. math::
        p_q(v \mid u) = \begin{cases}
            1 & \text{for a fact} \\
            \min \left( .999, \max(a_q, n_{u,q}) \,
            \mathrm{softmax}_v \left( \beta_q f(u, q, v) + \lambda g(u, v) \right) \right)
            & \text{else}
        \end{cases}

    where :math:`g` is the log of a proximity in the graph. With ``exclude_facts``, the softmax is
    taken over the entities that are not facts, and :math:`a_q` alone is the number of answers among
    these, as calibrations on held-out answers fit it. This is the model of "Answering Complex
    Logical Queries on Knowledge Graphs via Query Computation Tree Optimization" (Bai et al., 2023),
    for arbitrary scores.

    Args:
        facts (Tensor or FactSource): The observed triples ``(head, relation, tail)``, int64
            ``[m, 3]``, or an object that looks them up.
        num_entities (int): The number of entities :math:`N`.
        num_relations (int): The number of relations :math:`R`; the inverse of :math:`r` is
            :math:`r + R`.
        scorer (LinkScorer, optional): The scores :math:`f`. (default: none; all other links have
            probability 0)
        temperature (float or Tensor, optional): The inverse temperature :math:`\beta_q > 0`, one
            for all or ``[2R]``.
        num_answers (float or Tensor, optional): The expected number of answers :math:`a_q > 0` of
            an entity without facts, one for all or ``[2R]``.
        log_proximity (callable, optional): Returns :math:`g`, ``[n, N]``, for ids ``[n]``.
        proximity_weight (float, optional): :math:`\lambda`.
        exclude_facts (bool, optional): Whether :math:`a_q` answers are expected beyond the facts.
        domain (Tensor, optional): Ids of the entities of the graph; predicted links lead only to
            these. (default: all)
        dtype (torch.dtype, optional): The type of the rows.
        device (torch.device, optional): The device of the scores.
        cache_bytes (int, optional): The maximum size of the cache of rows.

    Raises:
        ValueError: If an id or an argument is out of range.
    """

    def __init__(
        self,
        facts: Tensor | FactSource,
        num_entities: int,
        num_relations: int,
        scorer: LinkScorer | None = None,
        *,
        temperature: float | Tensor = 1.0,
        num_answers: float | Tensor = 1.0,
        log_proximity: Callable[[Tensor], Tensor] | None = None,
        proximity_weight: float = 1.0,
        exclude_facts: bool = False,
        domain: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        cache_bytes: int = 2**28,
    ) -> None:
        if isinstance(facts, Tensor):
            facts = TripleFilter(facts, num_entities, num_relations)
        self.facts: FactSource = facts
        self.num_entities, self.num_relations = num_entities, num_relations
        self.scorer, self.log_proximity = scorer, log_proximity
        self.temperature = _by_relation("temperature", temperature, 2 * num_relations)
        self.num_answers = _by_relation("num_answers", num_answers, 2 * num_relations)
        if not math.isfinite(proximity_weight):
            raise ValueError(f"'proximity_weight' must be finite (got {proximity_weight})")
        self.proximity_weight, self.exclude_facts = float(proximity_weight), exclude_facts
        self.dtype, self.device = dtype, torch.device(device)
        #: The entities outside the domain.
        self.outside: Tensor | None = None
        if domain is not None:
            check_ids(domain, num_entities, "domain")
            outside = torch.ones(num_entities, dtype=torch.bool)
            outside[domain.cpu()] = False
            if bool(outside.any()):
                self.outside = outside.to(self.device)
        #: How many rows have been computed since the beginning.
        self.rows_computed = 0
        self._cache = _RowCache(num_entities, dtype, self.device, cache_bytes)

    def log_rows(self, entities: Tensor, relation: int) -> Tensor:
        r"""Returns the logs ``[n, N]`` of :math:`p_q(v \mid u)` for distinct entities :math:`u`.

        Args:
            entities (Tensor): The ids of the entities :math:`u`, int64 ``[n]``.
            relation (int): :math:`q`, below :math:`2R`.

        Raises:
            DivergenceError: If a score is NaN or :math:`+\infty`.
        """
        parts = self.row_parts(entities, relation)
        if len(parts) == 1 and parts[0].table is not self._cache.rows:
            return parts[0].table
        out = torch.empty(len(entities), self.num_entities, dtype=self.dtype, device=self.device)
        for part in parts:
            out[part.where] = part.table[part.place]
        return out

    @torch.no_grad()
    def row_parts(self, entities: Tensor, relation: int, *, of: int = 0) -> list[RowPart]:
        """Returns the same rows in one or two parts: cached ones, and others.

        ``entities`` and ``relation`` are those of :meth:`log_rows`. ``of`` is how many rows a
        caller needs in all: if the cache cannot hold so many, it keeps none of them, since they
        would take the place of those that are asked for again.
        """
        ids = entities.cpu().numpy()
        slots = self._cache.find(ids, relation)
        kept, missing = np.flatnonzero(slots >= 0), np.flatnonzero(slots < 0)
        parts = []
        if len(kept):
            places = self._tensor(slots[kept])
            parts.append(RowPart(self._tensor(kept), places, self._cache.rows))
        if len(missing):
            rows = self._compute(ids[missing], relation)
            if of <= self._cache.capacity:
                self._cache.add(ids[missing], relation, rows)
            places = torch.arange(len(missing), device=self.device)
            parts.append(RowPart(self._tensor(missing), places, rows))
        return parts

    def is_fact(self, entity: int, relation: int, target: int) -> bool:
        """Returns whether a relation, below :math:`2R`, connects an entity with a target by a
        fact."""
        return target in self._known(torch.tensor([entity]), relation)[1]

    def make_room(self) -> None:
        """Empties the cache of rows if it is full."""
        self._cache.make_room()

    def _tensor(self, index: NDArray) -> Tensor:
        return torch.from_numpy(index.astype(np.int64)).to(self.device)

    def _compute(self, ids: NDArray[np.int64], relation: int) -> Tensor:
        self.rows_computed += len(ids)
        row, known = self._known(torch.from_numpy(ids), relation)
        if self.scorer is None:
            shape = (len(ids), self.num_entities)
            rows = torch.full(shape, -math.inf, dtype=self.dtype, device=self.device)
        else:
            rows = self._predict(ids, relation, row, known)
        rows[row.to(self.device), known.to(self.device)] = 0
        return rows

    def _known(self, entities: Tensor, relation: int) -> tuple[Tensor, Tensor]:
        """What a relation leads to from each entity by a fact, as pairs of position and entity."""
        inverse, plain = divmod(relation, self.num_relations)
        kinds = torch.full_like(entities, plain)
        return self.facts.heads(kinds, entities) if inverse else self.facts.tails(entities, kinds)

    def _predict(self, ids: NDArray[np.int64], relation: int, row: Tensor, known: Tensor) -> Tensor:
        """The logs of the probabilities of links, as if none of them was a fact.

        ``row`` and ``known`` are the positions and targets of facts.
        """
        assert self.scorer is not None
        entities = self._tensor(ids)
        inverse, plain = divmod(relation, self.num_relations)
        scores = self.scorer.score_links(entities, plain, bool(inverse))
        if scores.shape != (len(ids), self.num_entities):
            raise ValueError(
                f"'scorer' must give scores [{len(ids)}, {self.num_entities}] "
                f"(got {list(scores.shape)})"
            )
        rows = scores.to(self.dtype).contiguous()
        near = None
        if self.log_proximity is not None and self.proximity_weight:
            near = self.log_proximity(entities)
        expected = np.full(len(ids), self.num_answers[relation])
        if self.exclude_facts:
            rows[row.to(rows.device), known.to(rows.device)] = -math.inf
        else:
            expected = np.maximum(torch.bincount(row, minlength=len(ids)).numpy(), expected)
        shares = _Shares(
            float(self.temperature[relation]), self.proximity_weight, self.outside, np.log(expected)
        )
        bad = shares.replace(rows, near)
        if len(bad):
            raise DivergenceError(
                f"a score of relation {plain}{' (inverse)' if inverse else ''} from entity "
                f"{int(ids[bad[0]])} is NaN or infinite"
            )
        return rows

    def __repr__(self) -> str:
        return (
            f"{self.__class__.__name__}({self.scorer!r}, num_entities={self.num_entities}, "
            f"num_relations={self.num_relations})"
        )


class _Shares(NamedTuple):
    """Scores of one relation as logs of probabilities, by the formula above for links that are no
    facts."""

    temperature: float
    weight: float
    outside: Tensor | None
    log_expected: NDArray[np.float64]

    def replace(self, rows: Tensor, near: Tensor | None) -> NDArray[np.int64]:
        """Replaces scores in place; returns the places of those that are NaN or infinite."""
        if near is not None:
            near = near.to(rows.dtype).contiguous()
        if backend_of(rows) == "numba" and rows.dtype == torch.float32:
            return self._loop(rows, near)
        bad: list[NDArray[np.int64]] = []
        step = max(1, _NUMBERS // max(1, rows.shape[1]))
        for index in torch.arange(len(rows), device=rows.device).split(step):
            values = rows[index] * self.temperature
            if near is not None:
                values += near[index] * self.weight
            if self.outside is not None:
                values.masked_fill_(self.outside, -math.inf)
            empty = (values == -math.inf).all(1)
            shares = torch.log_softmax(values, 1)
            # Where no entity can be meant, there is no probability to share.
            shares[empty] = -math.inf
            bad.append(index[shares.isnan().any(1)].cpu().numpy())
            scale = torch.from_numpy(self.log_expected).to(shares)[index, None]
            rows[index] = shares.add_(scale).clamp_(max=math.log(_MOST))
        return np.concatenate(bad)

    def _loop(self, rows: Tensor, near: Tensor | None) -> NDArray[np.int64]:
        from sheafprop.query.loops import share_rows

        count, width = rows.shape
        bad = np.zeros(count, dtype=np.bool_)
        beside = np.zeros((0, width), np.float32) if near is None else near.numpy()
        outside = np.zeros(0, np.bool_) if self.outside is None else self.outside.numpy()
        numbers = [np.float32(value) for value in (self.temperature, self.weight)]
        arrays = (rows.numpy(), beside, *numbers, outside, self.log_expected)
        bounds = np.arange(count + 1) * width
        run_rows(share_rows, (*arrays, np.float32(math.log(_MOST)), bad), bounds, _PASSES)
        return np.flatnonzero(bad)


class _RowCache:
    """Rows by entity and relation, as many as fit; until there is room, others are not kept."""

    def __init__(
        self, num_entities: int, dtype: torch.dtype, device: torch.device, limit: int
    ) -> None:
        if limit < 0:
            raise ValueError(f"'cache_bytes' must not be negative (got {limit})")
        self.num_entities, self.dtype, self.device = num_entities, dtype, device
        self.capacity = limit // max(1, num_entities * dtype.itemsize)
        self.rows = torch.empty(0, num_entities, dtype=dtype, device=device)
        self.count = 0
        # The slot of every entity, by relation; such a table takes the room of a row.
        self.slots: dict[int, NDArray[np.int32]] = {}

    def find(self, ids: NDArray[np.int64], relation: int) -> NDArray[np.int64]:
        """The slots of rows, -1 for those that are not kept."""
        if relation not in self.slots:
            return np.full(len(ids), -1)
        return self.slots[relation][ids].astype(np.int64)

    def add(self, ids: NDArray[np.int64], relation: int, rows: Tensor) -> None:
        """Keeps as many of the rows at some places as there is room for."""
        table = self.slots.get(relation)
        room = self.capacity - self.count - len(self.slots) - (table is None)
        size = min(room, len(ids))
        if size <= 0:
            return
        if not len(self.rows):
            # Memory is taken page by page, as it is written to.
            shape = (self.capacity, self.num_entities)
            self.rows = torch.empty(shape, dtype=self.dtype, device=self.device)
        if table is None:
            table = self.slots[relation] = np.full(self.num_entities, -1, dtype=np.int32)
        self.rows[self.count : self.count + size] = rows[:size]
        table[ids[:size]] = np.arange(self.count, self.count + size)
        self.count += size

    def make_room(self) -> None:
        if self.count + len(self.slots) + 2 > self.capacity:
            self.slots, self.count = {}, 0


def _by_relation(name: str, value: float | Tensor, count: int) -> NDArray[np.float64]:
    """A positive number for each relation and direction."""
    numbers = np.asarray(value.cpu() if isinstance(value, Tensor) else value, dtype=np.float64)
    if numbers.shape not in ((), (count,)) or not (np.isfinite(numbers) & (numbers > 0)).all():
        raise ValueError(
            f"'{name}' must be positive and finite, one number or {count} (got {value!r})"
        )
    return np.broadcast_to(numbers, (count,))
