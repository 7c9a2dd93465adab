from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sheafprop.data.vocabulary import Labels
from sheafprop.query.parser import parse_query
from sheafprop.query.query import Query, QueryShape, structure


@dataclass(frozen=True, eq=False)
class QueryBatch:
    r"""A batch of queries of one shape, in ids.

    With :math:`R` relations, the id :math:`r + R` denotes the inverse of relation :math:`r`.

    Args:
        shape (QueryShape): The common shape.
        slots (Tensor): Ids in the slots of the shape, int64 ``[Q, num_slots]``.
        edge_weight (Tensor, optional): The weight :math:`w \ge 0` of every edge of every query, in
            the order of the relation slots, ``[Q, number of relation slots]``. (default: all one)

    Raises:
        ValueError: If the shapes do not match or a weight is negative.
    """

    shape: QueryShape
    slots: Tensor
    edge_weight: Tensor | None = None

    def __post_init__(self) -> None:
        shape, slots, weight = self.shape, self.slots, self.edge_weight
        if slots.dtype != torch.long or slots.dim() != 2 or slots.shape[1] != shape.num_slots:
            raise ValueError(
                f"'slots' must be int64 [Q, {shape.num_slots}] (got {slots.dtype} "
                f"{list(slots.shape)})"
            )
        if weight is None:
            return
        wanted = (slots.shape[0], len(shape.relation_slots))
        if weight.shape != wanted or not weight.is_floating_point():
            raise ValueError(
                f"'edge_weight' must be real {list(wanted)} (got {weight.dtype} "
                f"{list(weight.shape)})"
            )
        if not bool((weight >= 0).all()) or bool(weight.isinf().any()):
            raise ValueError("weights must be finite and not negative")

    @classmethod
    def of(cls, name: str, slots: Tensor, edge_weight: Tensor | None = None) -> QueryBatch:
        """Builds a batch of the structure ``name``, such as ``"2p"`` or ``"ip"``."""
        return cls(structure(name), slots, edge_weight)

    @classmethod
    def from_queries(
        cls, queries: Sequence[Query | str], entities: Labels, relations: Labels
    ) -> list[tuple[QueryBatch, Tensor]]:
        """Builds one batch per shape from queries over labels, with the positions of its rows.

        Args:
            queries (sequence of Query or str): The queries.
            entities, relations (Vocabulary): The labels and their ids.
        """
        parsed = [parse_query(query) if isinstance(query, str) else query for query in queries]
        members: dict[QueryShape, list[int]] = {}
        for position, query in enumerate(parsed):
            members.setdefault(query.shape, []).append(position)
        return [
            (
                cls(shape, torch.stack([parsed[i].ids(entities, relations) for i in positions])),
                torch.tensor(positions),
            )
            for shape, positions in members.items()
        ]

    def check_ids(self, num_entities: int, num_relations: int) -> None:
        """Raises ``ValueError`` unless all ids are those of ``num_entities`` entities and
        ``num_relations`` relations, inverse ones included."""
        for name, columns, bound in (
            ("entity", self.shape.entity_slots, num_entities),
            ("relation", self.shape.relation_slots, 2 * num_relations),
        ):
            ids = self.slots[:, list(columns)]
            wrong = ids[(ids < 0) | (ids >= bound)]
            if wrong.numel():
                inverse = ", inverse ones included" if name == "relation" else ""
                raise ValueError(
                    f"{name} ids go from 0 to {bound - 1}{inverse} (got {int(wrong[0])})"
                )

    def conjunctions(self, *, ordered: bool = True) -> list[QueryBatch]:
        """Returns batches without unions whose combined answers are those of this batch.

        Args:
            ordered (bool, optional): Whether to sort branches, so that queries that differ only in
                their order become equal. Otherwise the order of the slots does not change.

        Raises:
            ValueError: If there is a negation, or a branch is an entity.
        """
        weight = self.edge_weight
        if weight is None:
            weight = torch.ones(
                len(self), len(self.shape.relation_slots), dtype=torch.double, device=self.device
            )
        column = {slot: i for i, slot in enumerate(self.shape.relation_slots)}
        batches = []
        for shape, slots in self.shape.conjunctions():
            _check_anchors(shape)
            ids = self.slots[:, list(slots)]
            # Weights stand at relation slots only, but are spread over all slots to move along.
            spread = weight[:, [column.get(slot, 0) for slot in slots]]
            if ordered:
                order, shape = _sort_branches(shape, ids, spread)
                ids, spread = ids.gather(1, order), spread.gather(1, order)
            batches.append(QueryBatch(shape, ids, spread[:, list(shape.relation_slots)]))
        return batches

    def order_by_relation(self) -> Tensor:
        """Returns an order of the rows that groups queries with equal relations."""
        order = torch.arange(len(self), device=self.device)
        for slot in self.shape.relation_slots:
            order = order[self.slots[order, slot].argsort(stable=True)]
        return order

    @property
    def device(self) -> torch.device:
        """The device of the ids."""
        return self.slots.device

    def __getitem__(self, rows: Tensor | slice) -> QueryBatch:
        weight = None if self.edge_weight is None else self.edge_weight[rows]
        return QueryBatch(self.shape, self.slots[rows], weight)

    def __len__(self) -> int:
        return self.slots.shape[0]

    def __repr__(self) -> str:
        names = [label[0] for label in self.shape.slot_kinds]
        return f"{self.__class__.__name__}({len(self)} x {self.shape.text(names)})"


def _check_anchors(shape: QueryShape) -> None:
    """An entity alone fixes a vertex; it is not a branch that leads to one."""
    if shape.operator == "anchor":
        raise ValueError("a query needs a relation: an entity alone asks for nothing")
    for node in shape.walk():
        if node.operator == "and" and any(b.operator == "anchor" for b in node.branches):
            raise ValueError("the branches of 'and' are queries via relations (got an entity)")


def _sort_branches(shape: QueryShape, ids: Tensor, weight: Tensor) -> tuple[Tensor, QueryShape]:
    """The order of slots, per query, that sorts the branches of every ``and``; and its shape."""
    count = ids.shape[0]
    if shape.operator == "anchor":
        return torch.zeros(count, 1, dtype=torch.long, device=ids.device), shape
    parts = []
    for branch, slots in zip(shape.branches, shape.branch_slots, strict=True):
        order, inner = _sort_branches(branch, ids[:, slots], weight[:, slots])
        parts.append((inner, order + slots.start))
    if shape.operator == "via":
        own = torch.full((count, 1), shape.num_slots - 1, device=ids.device)
        return torch.cat([parts[0][1], own], dim=1), QueryShape("via", (parts[0][0],))
    parts.sort(key=lambda part: repr(part[0]))
    orders, start = [], 0
    while start < len(parts):
        same = [order for inner, order in parts[start:] if inner == parts[start][0]]
        orders.append(_sort_rows(torch.stack(same, dim=1), (weight, ids)).flatten(1))
        start += len(same)
    return torch.cat(orders, dim=1), QueryShape("and", tuple(inner for inner, _ in parts))


def _sort_rows(orders: Tensor, keys: Sequence[Tensor]) -> Tensor:
    """Sorts branches of one shape, given as slots ``[Q, m, L]``, by the last key first."""
    if orders.shape[1] == 1:
        return orders
    count, number, length = orders.shape
    rank = torch.arange(number, device=orders.device).expand(count, -1)
    for key in keys:
        values = key.gather(1, orders.flatten(1)).view_as(orders)
        for column in range(length - 1, -1, -1):
            step = values[:, :, column].gather(1, rank).argsort(dim=1, stable=True)
            rank = rank.gather(1, step)
    return orders.gather(1, rank.unsqueeze(2).expand(-1, -1, length))
