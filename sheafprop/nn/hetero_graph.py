import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.typing import EdgeType, NodeType

from sheafprop.nn.graph_input import as_edges
from sheafprop.nn.k_hop_batch import warn_sampled
from sheafprop.sheaf.graph_checks import check_graph_shapes


@dataclass(frozen=True, eq=False, repr=False)
class HeteroGraph:
    r"""A :class:`~torch_geometric.data.HeteroData` as one relation-typed multigraph, and the
    conversion back.

    Nodes are numbered by node type in the order of ``data.node_types``, and edges by edge type, as
    in ``HeteroData.to_homogeneous()``. In addition, edges may be given as ``adj_t``, one relation
    name may refer to several edge types, and types without features, weights or known nodes get
    zeros, ones and False.

    Features of different widths are projected in the model and joined there, so that the
    projections are trained: ``graph.join({kind: layer(data[kind].x) for kind, layer in
    linear.items()})`` for a graph read with ``x=None``.

    :meth:`split` returns the rows of every type in their original order. For a
    :class:`~torch_geometric.data.Batch`,
    ``torch_geometric.utils.unbatch(rows, batch[node_type].batch, dim=-2)`` then splits them by
    graph.

    Args:
        edge_index (Tensor): Heads and tails, int64 ``[2, E]``.
        edge_type (Tensor): Relation ids, int64 ``[E]``.
        num_nodes_of (dict): Number of nodes of each type, in order.
        relation_ids (dict): Relation id of each edge type ``(source, relation, destination)``.
        x (Tensor, optional): Features ``[N, F]``.
        edge_weight (Tensor, optional): Weights ``[E]``.
        boundary_mask (Tensor, optional): Known vertices, bool ``[N]``.

    Example:
        >>> from sheafprop import IdentitySheaf, SheafPropagation
        >>> data = HeteroData()
        >>> data["author"].x, data["paper"].x = torch.zeros(2, 4), torch.ones(3, 4)
        >>> data["author", "writes", "paper"].edge_index = torch.tensor([[0, 0, 1], [0, 1, 2]])
        >>> graph = HeteroGraph.from_hetero(data)
        >>> graph
        HeteroGraph(num_nodes_of={'author': 2, 'paper': 3}, num_edges=3, num_relations=1)
        >>> sheaf = IdentitySheaf(torch.zeros(graph.num_relations, 4))
        >>> out = SheafPropagation(2)(graph.x, *graph.edges, sheaf)
        >>> graph.split(out)["author"].shape
        torch.Size([2, 4])
    """

    edge_index: Tensor
    edge_type: Tensor
    num_nodes_of: dict[NodeType, int]
    relation_ids: dict[EdgeType, int]
    x: Tensor | None = None
    edge_weight: Tensor | None = None
    boundary_mask: Tensor | None = None

    @classmethod
    def from_hetero(
        cls,
        data: HeteroData,
        *,
        relation_ids: Mapping[str | EdgeType, int] | None = None,
        x: str | None = "x",
        edge_weight: str = "edge_weight",
        boundary_mask: str = "boundary_mask",
    ) -> "HeteroGraph":
        r"""Reads a heterogeneous graph.

        Args:
            data (HeteroData): The graph; node types without edges are kept. An edge type holds an
                ``edge_index`` or an ``adj_t``.
            relation_ids (Mapping, optional): Relation ids of the sheaf, by relation name or by edge
                type ``(source, relation, destination)``; the edge type takes precedence. If None,
                relation *names* are numbered in the order of ``data.edge_types``, so that one name
                between two pairs of node types is one relation. To distinguish them, give an id for
                each edge type: ``{kind: i for i, kind in enumerate(data.edge_types)}``.
            x (str, optional): Attribute with the features of a node type. The nodes of a type
                without it are free and start at zero; if no type has it, or None is given,
                :attr:`x` is None.
            edge_weight (str): Attribute with the weights of an edge type; ones where it is missing.
            boundary_mask (str): Attribute with the known nodes of a type; none known where it is
                missing.

        Raises:
            ValueError: If an edge type has no relation id or no edges of shape ``[2, E]``, an id
                is out of its node type's range, features differ in width or type, or the number of
                nodes of a type is unknown.
        """
        if not isinstance(data, HeteroData):
            raise ValueError(f"'data' must be a HeteroData (got {type(data).__name__})")
        warn_sampled(data)
        num_nodes_of = {kind: _num_nodes(data, kind, x) for kind in data.node_types}
        if relation_ids is None:
            names = dict.fromkeys(name for _, name, _ in data.edge_types)
            relation_ids = {name: i for i, name in enumerate(names)}
        ids: dict[EdgeType, int] = {}
        for kind in data.edge_types:
            found = relation_ids.get(kind, relation_ids.get(kind[1]))
            if found is None:
                raise ValueError(
                    f"'relation_ids' names neither the edge type {kind} nor the relation "
                    f"{kind[1]!r} (got {sorted(map(str, relation_ids))})"
                )
            if isinstance(found, float) or found < 0:
                raise ValueError(
                    f"'relation_ids' must be integers from 0 on (got {found} for {kind})"
                )
            ids[kind] = int(found)

        first = dict(zip(num_nodes_of, accumulate(num_nodes_of.values(), initial=0), strict=False))
        edges = {kind: _edges(data, kind, num_nodes_of) for kind in ids}
        num_edges = {kind: part.shape[1] for kind, part in edges.items()}
        shifted = [
            part + part.new_tensor([[first[kind[0]]], [first[kind[2]]]])
            for kind, part in edges.items()
        ]
        types = [torch.full_like(part[0], ids[kind]) for kind, part in edges.items()]
        none = torch.zeros(2, 0, dtype=torch.long)
        return cls(
            edge_index=torch.cat(shifted, dim=1) if shifted else none,
            edge_type=torch.cat(types) if types else none[0],
            num_nodes_of=num_nodes_of,
            relation_ids=ids,
            x=None if x is None else _join(data.collect(x, True), num_nodes_of, 0, x),
            edge_weight=_join(data.collect(edge_weight, True), num_edges, 1, edge_weight),
            boundary_mask=_join(data.collect(boundary_mask, True), num_nodes_of, 0, boundary_mask),
        )

    @property
    def num_nodes(self) -> int:
        """Number of vertices of all types."""
        return sum(self.num_nodes_of.values())

    @property
    def num_relations(self) -> int:
        """The minimum number of relations of a sheaf for this graph."""
        return 1 + max(self.relation_ids.values(), default=-1)

    @property
    def edges(self) -> tuple[Tensor, Tensor]:
        """``edge_index`` and ``edge_type``, as the layers take them."""
        return self.edge_index, self.edge_type

    def join(self, values: Mapping[NodeType, Tensor]) -> Tensor:
        r"""Concatenates the rows of all node types in the order of the nodes; the inverse of
        :meth:`split`.

        Types without values get rows of zeros (False), so that
        ``graph.join({kind: mask}).nonzero().flatten()`` has the numbers of some nodes of a type, as
        :func:`k_hop_batch` takes them. Raises :class:`ValueError` on unknown types and on rows that
        do not fit.

        Shapes:
            - **values:** one tensor :math:`(N_t, *)` for each type
            - **output:** :math:`(N, *)`
        """
        unknown = [kind for kind in values if kind not in self.num_nodes_of]
        if unknown or not values:
            raise ValueError(
                f"'values' must hold rows of some of the node types {list(self.num_nodes_of)} "
                f"(got {list(values)})"
            )
        joined = _join(values, self.num_nodes_of, 0, "values")
        assert joined is not None
        return joined

    def split(self, out: Tensor) -> dict[NodeType, Tensor]:
        r"""Splits rows by node type, in their original order.

        Shapes:
            - **out:** :math:`(N, F)`, :math:`(B, N, F)`, or :math:`(N)`

        Raises:
            ValueError: If there is not one row for each node.
        """
        dim = 0 if out.dim() == 1 else -2
        if out.shape[dim] != self.num_nodes:
            raise ValueError(
                f"'out' must have a row for each of the {self.num_nodes} nodes "
                f"(got {out.shape[dim]})"
            )
        rows = out.split(list(self.num_nodes_of.values()), dim)
        return dict(zip(self.num_nodes_of, rows, strict=True))

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(num_nodes_of={self.num_nodes_of}, "
            f"num_edges={self.edge_type.numel()}, num_relations={self.num_relations})"
        )


def _num_nodes(data: HeteroData, kind: NodeType, x: str | None) -> int:
    store = data[kind]
    if x is not None and x in store:
        return int(store[x].shape[0])
    with warnings.catch_warnings():
        # It warns where it finds nothing. Edges, without which nodes would be lost, it does not
        # count: they are not in the store of a node type.
        warnings.simplefilter("ignore")
        count = store.num_nodes
    if count is None:
        raise ValueError(
            f"the number of nodes of type {kind!r} is unknown: set data[{kind!r}].num_nodes "
            f"or data[{kind!r}].{x or 'x'}"
        )
    return int(count)


def _edges(data: HeteroData, kind: EdgeType, num_nodes_of: dict[NodeType, int]) -> Tensor:
    store = data[kind]
    edge_index: Any = store.get("edge_index", store.get("adj_t"))
    if edge_index is None:
        raise ValueError(f"edge type {kind} has neither 'edge_index' nor 'adj_t'")
    if not isinstance(edge_index, Tensor) and edge_index.has_value():
        raise ValueError(
            f"'adj_t' of edge type {kind} holds values: give weights as an attribute of their own"
        )
    edge_index, _ = as_edges(edge_index, torch.zeros(0, dtype=torch.long))
    try:
        check_graph_shapes(edge_index, edge_index[:1].flatten(), 0)
    except ValueError as error:
        raise ValueError(f"edge type {kind}: {error}") from None
    for row, node_type in zip(edge_index, (kind[0], kind[2]), strict=True):
        if row.numel() and not (int(row.min()) >= 0 and int(row.max()) < num_nodes_of[node_type]):
            got = int(row.min()) if int(row.min()) < 0 else int(row.max())
            raise ValueError(
                f"'edge_index' of edge type {kind} must hold ids of the "
                f"{num_nodes_of[node_type]} nodes of type {node_type!r} (got {got})"
            )
    return edge_index.long()


def _join(
    values: Mapping[Any, Tensor], counts: Mapping[Any, int], missing: float, name: str
) -> Tensor | None:
    given = {kind: values[kind] for kind in counts if kind in values}
    if not given:
        return None
    first = next(iter(given.values()))
    for kind, value in given.items():
        expected = (counts[kind], *first.shape[1:])
        if value.shape != expected or value.dtype != first.dtype:
            raise ValueError(
                f"'{name}' of {kind!r} must be {list(expected)} of type {first.dtype} "
                f"(got {list(value.shape)} of type {value.dtype})"
                + (
                    "; project all node types to one width, with from_hetero(data, x=None) and "
                    "graph.join({type: rows}) in a model that trains the projections"
                    if name == "x"
                    else ""
                )
            )
    return torch.cat(
        [
            given[kind] if kind in given else first.new_full((count, *first.shape[1:]), missing)
            for kind, count in counts.items()
        ]
    )
