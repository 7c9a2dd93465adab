from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sheafprop.data import Vocabulary
from sheafprop.kernels.backend import backend_of
from sheafprop.kernels.threads import run_rows
from sheafprop.kge.distance import promote, real_rows
from sheafprop.query.branch_energy import BranchEnergy, double
from sheafprop.query.dense_elimination import DenseElimination, DenseEnergy
from sheafprop.query.diagonal_elimination import DiagonalElimination
from sheafprop.query.elimination import Branch, Elimination
from sheafprop.query.interior_prior import InteriorPrior
from sheafprop.query.parser import parse_query
from sheafprop.query.query import Query, quoted
from sheafprop.query.query_batch import QueryBatch
from sheafprop.sheaf import RelationSheaf


@dataclass(frozen=True)
class QueryAnswer:
    r"""One answer to a query.

    Args:
        label: The entity.
        entity: Its id.
        score: What answers are ranked by, minus the sum over sections of
            :math:`a_i \sqrt{E_i}`.
        energy: The energy :math:`\sum_i a_i E_i` of the query graph with this answer in its place.
        edges: On request the part of every edge in the energy, as pairs of the relation (as the
            text of a query writes it) and its energy, in the order of the query. Edges of the
            branches of an ``or`` that did not give this answer are not among them.
    """

    label: str
    entity: int
    score: float
    energy: float
    edges: tuple[tuple[str, float], ...] | None = None


# Scores in one block (32 MiB of float32) and in a tile of it, numbers in the features of all
# candidates that are kept, and in the matrices of a block of queries.
_BLOCK_SCORES = 2**23
_TILE_SCORES = 2**21
_BLOCK_FEATURES = 2**24
_BLOCK_MATRICES = 2**23

AnyQuery = Query | str


class QueryAnswering:
    r"""Scores every entity as the answer to logical queries, by the energy of the query graph.

    The score of an entity is minus the square root of the least energy of the query graph with that
    entity at its target, over all vectors of the vertices between (Kron reduction),

    .. math::
        f(q, t) = - \sum_{i=1}^{s} a_i \sqrt{\min_{z} E_q \left( x_{\text{sources}}^{(i)}, z,
        x_t^{(i)} \right)}

    summed over sections. A query with unions takes the best of the conjunctions that it stands for.
    Nothing here is trained: the maps of the relations and the vectors are all it takes, so that new
    entities with propagated vectors take part as the trained ones do. See Cobb and Gebhart,
    "Feature Propagation on Knowledge Graphs Using Cellular Sheaves".

    Args:
        sheaf (RelationSheaf): The maps of the relations, as :meth:`KGEModel.sheaf` returns them.
        x (Tensor): The vectors of all entities, ``[N, d]`` or ``[N, s, d]``.
        entities (Vocabulary, optional): Their labels; needed for queries over labels.
        relations (Vocabulary, optional): The labels of the relations; needed likewise.
        relation_weight (Tensor, optional): The weight of the edges of every relation, ``[R]``.
            (default: all one)
        section_weight (sequence of float, optional): :math:`a_i \ge 0`, one for each section.
            (default: all one)
        interior_prior (InteriorPrior, optional): What is expected of the vertices between, added to
            the energy. (default: nothing, as in the paper)

    Raises:
        ValueError: If sizes do not fit, or a number is not finite.
    """

    def __init__(
        self,
        sheaf: RelationSheaf,
        x: Tensor,
        *,
        entities: Vocabulary | None = None,
        relations: Vocabulary | None = None,
        relation_weight: Tensor | None = None,
        section_weight: Sequence[float] | None = None,
        interior_prior: InteriorPrior | None = None,
    ) -> None:
        if x.dim() == 2:
            x = x.unsqueeze(1)
        if x.dim() != 3 or sheaf.stalk_dim not in (None, x.shape[-1]):
            raise ValueError(
                f"'x' must be [N, {sheaf.stalk_dim or 'd'}] or [N, s, {sheaf.stalk_dim or 'd'}] "
                f"(got {list(x.shape)})"
            )
        x = promote(x.detach())
        if sheaf.dtype is not None and sheaf.dtype.is_complex:
            x = x.to(torch.complex128 if x.real.dtype == torch.float64 else torch.complex64)
        _check_finite(x, "a vector")
        for value in vars(sheaf).values():
            if isinstance(value, Tensor):
                _check_finite(value.detach(), "a relation parameter")
        for name, labels, count in (
            ("entities", entities, x.shape[0]),
            ("relations", relations, sheaf.num_relations),
        ):
            if labels is not None and len(labels) != count:
                raise ValueError(f"'{name}' must hold {count} labels (got {len(labels)})")
        if relation_weight is not None:
            relation_weight = relation_weight.detach().double()
            if relation_weight.shape != (sheaf.num_relations,) or not bool(
                ((relation_weight >= 0) & relation_weight.isfinite()).all()
            ):
                raise ValueError(
                    f"'relation_weight' must hold {sheaf.num_relations} finite numbers from 0 on "
                    f"(got shape {list(relation_weight.shape)})"
                )
        weights = (
            [1.0] * x.shape[1] if section_weight is None else [float(a) for a in section_weight]
        )
        if len(weights) != x.shape[1] or not all(0 <= a < math.inf for a in weights):
            raise ValueError(
                f"'section_weight' must hold {x.shape[1]} numbers from 0 on (got {weights})"
            )
        self.sheaf, self.x = sheaf, x
        self.entities, self.relations = entities, relations
        self.relation_weight, self.section_weight = relation_weight, tuple(weights)
        kind = DiagonalElimination if sheaf.independent_columns else DenseElimination
        if interior_prior is not None:
            _check_prior(interior_prior, x, 2 * sheaf.num_relations)
        self.elimination: Elimination = kind(sheaf, x, interior_prior)
        # The largest squared length of a vector in each section.
        self._longest = torch.linalg.vector_norm(x, dim=2).square().double().amax(0)
        # The last candidates, and features by section, whether of all entities, and their number.
        self._candidates, self._chosen = torch.empty(0, dtype=torch.long, device=x.device), x[:0]
        self._kept: dict[tuple[int, bool, int], Tensor] = {}

    # Scores --------------------------------------------------------------------------------------

    @torch.no_grad()
    def score(
        self,
        queries: QueryBatch | Sequence[AnyQuery],
        candidates: Tensor | None = None,
        *,
        batch_size: int | None = None,
    ) -> Tensor:
        r"""Scores all entities as answers; higher is better.

        Args:
            queries (QueryBatch or sequence of Query or str): The queries.
            candidates (Tensor, optional): Ids of the entities to score, ``[C]``, instead of all.
            batch_size (int, optional): Queries treated at once. Without it, intermediate results
                take some hundred megabytes at most. Scores depend on it by rounding alone.

        Returns:
            Tensor: ``[Q, C]``.

        Raises:
            DataError: If a text is not a query or a label is unknown.
            ValueError: If an id is out of range, or a query holds a negation.
        """
        if candidates is not None:
            _check_candidates(candidates, self.x.shape[0])
        count = self.x.shape[0] if candidates is None else candidates.numel()
        if not isinstance(queries, QueryBatch):
            out = self.x.real.new_empty(len(queries), count)
            for batch, rows in self._batches(queries):
                out[rows] = self.score(batch, candidates, batch_size=batch_size)
            return out
        out = self.x.real.new_empty(len(queries), count)
        for rows, block in self.blocks(queries, candidates, batch_size=batch_size):
            out[rows] = block
        return out

    def blocks(
        self, batch: QueryBatch, candidates: Tensor | None = None, *, batch_size: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields positions of queries and their scores, those of the same relations together.

        ``batch``, ``candidates`` and ``batch_size`` are those of :meth:`score`.

        Raises:
            ValueError: If ``batch_size`` is not positive.
        """
        batch = self._weighted(batch)
        candidates = None if candidates is None else candidates.to(self.x.device)
        count = self.x.shape[0] if candidates is None else candidates.numel()
        limit = _BLOCK_SCORES // max(1, count)
        if isinstance(self.elimination, DenseElimination):
            limit = min(limit, _BLOCK_MATRICES // self.x.shape[-1] ** 2)
        size = max(1, limit) if batch_size is None else batch_size
        if size < 1:
            raise ValueError(f"'batch_size' must be positive (got {batch_size})")
        conjunctions = batch.conjunctions()
        for rows in _by_relations(conjunctions[0]).split(size):
            best: Tensor | None = None
            for conjunction in conjunctions:
                scores = self._score_energies(
                    _energy(self.elimination.run(conjunction[rows])), candidates
                )
                best = scores if best is None else torch.maximum(best, scores, out=best)
            assert best is not None
            yield rows, best

    def _score_energies(self, energy: BranchEnergy, candidates: Tensor | None) -> Tensor:
        """Minus the weighted roots of the energies, summed over sections, ``[Q, C]``."""
        rows = [self._columns(section, candidates) for section in range(self.x.shape[1])]
        total = rows[0].real.new_empty(energy.constant.shape[0], rows[0].shape[0])
        coefficients, limits = [], []
        for section in range(len(rows)):
            coefficients.append(energy.coefficients(section).to(total.dtype))
            size = energy.size(section, self._longest[section])
            limits.append((math.sqrt(torch.finfo(total.dtype).eps) * size).to(total.dtype))
        shared = energy.shared()
        own, index = (total[:0], None) if shared is None else (shared[0].to(total.dtype), shared[1])
        first = 0 if shared is None else own.shape[1]
        # All sections of a tile come one after the other, while it is in the cache.
        step = max(1, _TILE_SCORES // max(1, total.shape[0]))
        for start in range(0, total.shape[1], step):
            columns = slice(start, min(start + step, total.shape[1]))
            for section, weight in enumerate(self.section_weight):
                width = first + coefficients[section].shape[1]
                features = self._features(energy, section, candidates, columns, width)
                energies = coefficients[section] @ features[first:]
                table = own[:, :first] @ features[:first] if shared else energies[:0]
                fresh = section == 0
                more = (limits[section], weight, total, start, fresh)
                near = _finish(energies, table, index, *more)
                if near.numel():
                    exact, limit = energies[near], limits[section][near]
                    self._refine(exact, near, limit, energy, section, rows[section][columns])
                    roots = exact.sqrt_().mul_(-weight)
                    total[near, columns] = roots if fresh else roots.add_(total[near, columns])
        return total

    def _refine(
        self,
        energies: Tensor,
        rows: Tensor,
        limit: Tensor,
        energy: BranchEnergy,
        section: int,
        x: Tensor,
    ) -> None:
        """Computes again, from differences, the energies whose digits cancelled in a product.

        Those that rounding made negative are among them.
        """
        row, column = (energies <= limit.unsqueeze(1)).nonzero(as_tuple=True)
        power = 2 if isinstance(energy, DenseEnergy) else 1
        step = max(1, _BLOCK_FEATURES // x.shape[1] ** power)
        for i, j in zip(row.split(step), column.split(step), strict=True):
            energies[i, j] = energy.at(rows[i], double(x[j]), section).to(energies.dtype)

    def _columns(self, section: int, candidates: Tensor | None) -> Tensor:
        if candidates is None:
            return self.x[:, section]
        if not torch.equal(candidates, self._candidates):
            self._candidates, self._kept = candidates.clone(), {}
            self._chosen = self.x[candidates]
        return self._chosen[:, section]

    def _features(
        self,
        energy: BranchEnergy,
        section: int,
        candidates: Tensor | None,
        columns: slice,
        width: int,
    ) -> Tensor:
        """The ``width`` features of some candidates; those of all are kept where they fit a block.

        :meth:`_columns` has forgotten those of other candidates.
        """
        key = (section, candidates is None, width)
        if key not in self._kept:
            x = real_rows(self._columns(section, candidates))
            if isinstance(energy, DenseEnergy) and width * len(x) > _BLOCK_FEATURES:
                return energy.features(x[columns])
            self._kept[key] = energy.features(x)
        return self._kept[key][:, columns]

    # Answers -------------------------------------------------------------------------------------

    @torch.no_grad()
    def answer(
        self,
        queries: QueryBatch | Sequence[AnyQuery] | AnyQuery,
        k: int = 10,
        *,
        candidates: Tensor | None = None,
        explain: bool = False,
    ) -> list[list[QueryAnswer]]:
        r"""Returns the :obj:`k` best answers to every query, the best first.

        Equal scores are ordered as the candidates are.

        Args:
            queries (QueryBatch, sequence of Query or str, Query or str): The queries.
            k (int, optional): How many answers to give.
            candidates (Tensor, optional): Ids of the entities to choose from, instead of all.
            explain (bool, optional): Whether to split each energy by edge: which step disagrees?

        Raises:
            DataError: If a text is not a query or a label is unknown.
            ValueError: If an id is out of range, or a query holds a negation.
        """
        if k < 1:
            raise ValueError(f"'k' must be positive (got {k})")
        if candidates is not None:
            _check_candidates(candidates, self.x.shape[0])
        if isinstance(queries, Query | str):
            queries = [queries]
        if not isinstance(queries, QueryBatch):
            answers: list[list[QueryAnswer]] = [[] for _ in queries]
            for batch, rows in self._batches(queries):
                for row, found in zip(
                    rows.tolist(),
                    self.answer(batch, k, candidates=candidates, explain=explain),
                    strict=True,
                ):
                    answers[row] = found
            return answers
        out: list[list[QueryAnswer]] = [[] for _ in range(len(queries))]
        batch = self._weighted(queries)
        for rows, scores in self.blocks(queries, candidates):
            # Stable, so that equal scores keep the order of the candidates.
            order = scores.argsort(dim=1, descending=True, stable=True)[:, :k]
            entity = order if candidates is None else candidates.to(order.device)[order]
            count = entity.shape[1]
            pairs = batch[rows.repeat_interleave(count)]
            energy, edges = self._split(pairs, entity.flatten(), explain)
            for i, row in enumerate(rows.tolist()):
                for j in range(count):
                    n = i * count + j
                    out[row].append(
                        QueryAnswer(
                            self._label(int(entity[i, j])),
                            int(entity[i, j]),
                            float(scores[i, order[i, j]]),
                            energy[n],
                            edges[n] if explain else None,
                        )
                    )
        return out

    def _split(
        self, pairs: QueryBatch, entity: Tensor, explain: bool
    ) -> tuple[list[float], list[tuple[tuple[str, float], ...]]]:
        """The energy of queries with given answers, by edge, in the conjunction that fits best."""
        target = self.x[entity]
        weight = torch.tensor(self.section_weight, dtype=torch.float64, device=target.device)
        best = [math.inf] * len(pairs)
        total = [0.0] * len(pairs)
        split: list[tuple[tuple[str, float], ...]] = [()] * len(pairs)
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

    def _label(self, entity: int) -> str:
        return str(entity) if self.entities is None else self.entities.labels[entity]

    def _relation_text(self, relation: int) -> str:
        inverse, relation = divmod(relation, self.sheaf.num_relations)
        name = str(relation) if self.relations is None else quoted(self.relations.labels[relation])
        return f"inverse({name})" if inverse else name

    # Queries -------------------------------------------------------------------------------------

    def _batches(self, queries: Sequence[AnyQuery]) -> list[tuple[QueryBatch, Tensor]]:
        if self.entities is None or self.relations is None:
            raise ValueError("queries over labels need 'entities' and 'relations' (got none)")
        parsed = [parse_query(query) if isinstance(query, str) else query for query in queries]
        return QueryBatch.from_queries(parsed, self.entities, self.relations)

    def _weighted(self, batch: QueryBatch) -> QueryBatch:
        """The batch on the right device, checked, with the weights of its relations."""
        batch.check_ids(self.x.shape[0], self.sheaf.num_relations)
        slots, weight = batch.slots.to(self.x.device), batch.edge_weight
        weight = None if weight is None else weight.to(slots.device)
        if self.relation_weight is not None:
            relation = slots[:, list(batch.shape.relation_slots)] % self.sheaf.num_relations
            own = self.relation_weight[relation]
            weight = own if weight is None else own * weight
        return QueryBatch(batch.shape, slots, weight)

    def __repr__(self) -> str:
        n, s, d = self.x.shape
        return f"{self.__class__.__name__}({type(self.sheaf).__name__}, {n} x {s} x {d})"


def _energy(branch: Branch) -> BranchEnergy:
    assert branch.energy is not None
    return branch.energy


def _by_relations(batch: QueryBatch) -> Tensor:
    """An order that brings queries with equal relations together."""
    order = torch.arange(len(batch), device=batch.device)
    for slot in batch.shape.relation_slots:
        order = order[batch.slots[order, slot].argsort(stable=True)]
    return order


def _finish(
    energies: Tensor,
    table: Tensor,
    index: Tensor | None,
    limit: Tensor,
    weight: float,
    total: Tensor,
    start: int,
    fresh: bool,
) -> Tensor:
    """Adds what queries share, and subtracts the roots from the columns of ``total`` from ``start``
    on, or from zero where ``fresh``; returns the rows left alone for small energies."""
    if energies.numel() == 0:
        return torch.empty(0, dtype=torch.long, device=energies.device)
    if backend_of(energies) != "numba":
        if index is not None:
            energies += table[index]
        small = energies.amin(1) <= limit
        roots = torch.where(small.unsqueeze(1), 0, energies).sqrt_().mul_(-weight)
        out = total[:, start : start + energies.shape[1]]
        out.copy_(roots if fresh else roots.add_(out))
        return small.nonzero().flatten()
    from sheafprop.query.rank_loops import finish_rows

    near = np.zeros(energies.shape[0], dtype=np.bool_)
    which = np.zeros(0, dtype=np.int64) if index is None else index.numpy()
    values = energies.numpy()
    shared = (table.numpy(), which)
    more = (limit.numpy(), values.dtype.type(weight), near, total.numpy(), start, fresh)
    run_rows(
        finish_rows,
        (values, *shared, *more),
        np.arange(values.shape[0] + 1) * values.shape[1],
        1,
    )
    return torch.from_numpy(near).nonzero().flatten()


def _check_finite(values: Tensor, what: str) -> None:
    values = torch.view_as_real(values) if values.is_complex() else values
    if values.is_floating_point() and not bool(values.isfinite().all()):
        raise ValueError(f"{what} is not finite, so no score would mean anything")


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
        _check_finite(values, f"a number among the {what} of 'interior_prior'")
    if prior.centre.is_complex() and not x.is_complex():
        raise ValueError(
            f"'interior_prior' must have real centres, as the vectors are real "
            f"(got {prior.centre.dtype})"
        )
    if prior.entries.is_complex() or bool((prior.entries < 0).any()):
        found = prior.entries.dtype if prior.entries.is_complex() else float(prior.entries.min())
        raise ValueError(f"'interior_prior' must have real entries from 0 on (got {found})")


def _check_candidates(candidates: Tensor, num_entities: int) -> None:
    if candidates.dim() != 1 or candidates.dtype != torch.long:
        raise ValueError(
            f"'candidates' must be int64 [C] (got {candidates.dtype} {list(candidates.shape)})"
        )
    if (
        candidates.numel()
        and not 0 <= int(candidates.min()) <= int(candidates.max()) < num_entities
    ):
        raise ValueError(
            f"candidate ids go from 0 to {num_entities - 1} (got {int(candidates.min())} to "
            f"{int(candidates.max())})"
        )
