"""What a plan needs to know of column-wise maps, and its triples counted into rows."""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from sheafprop.kernels.backend import is_traced, numba_loops
from sheafprop.kernels.build_fact_csr import TripleChunk, build_fact_csr, number_vertices
from sheafprop.kernels.fact_csr import FactCSR
from sheafprop.sheaf.graph_checks import GraphInput
from sheafprop.sheaf.relation_sheaf import RelationSheaf

# Triples that are numbered at once.
_CHUNK = 2**20


def can_count_rows(graph: GraphInput) -> bool:
    """Whether triples can be counted into rows, which needs neither copies of them nor a sort.

    That is on the CPU, for column-wise maps without gradients.
    """
    sheaf = graph.sheaf
    given = [graph.edge_index, graph.edge_type, *sheaf.tensors().values()]
    given += [] if graph.boundary_mask is None else [graph.boundary_mask]
    return (
        sheaf.takes_rows
        and all(tensor.device.type == "cpu" for tensor in given)
        and not any(is_traced(tensor) or tensor.requires_grad for tensor in given)
        and numba_loops() is not None
    )


def count_rows(graph: GraphInput, *, labels: bool, dtype: torch.dtype) -> tuple[FactCSR, Tensor]:
    """The messages into free vertices, and the known vertices that send some, ascending.

    Args:
        graph (GraphInput): The graph of the plan, with its mask.
        labels (bool): Whether the labels of all ends are kept; see :func:`needs_labels`.
        dtype (torch.dtype): Real number type of weights.
    """
    edge_index, edge_type, sheaf, edge_weight, boundary_mask = graph
    assert boundary_mask is not None
    head, tail = edge_index.numpy()
    relation, number, weight = edge_type.numpy(), None, None
    if edge_weight is not None and not bool((edge_weight == 1).all()):
        weight = edge_weight.to(dtype).numpy()

    def chunks() -> Iterator[TripleChunk]:
        for start in range(0, len(head), _CHUNK):
            part = slice(start, start + _CHUNK)
            ends = [ids[part] if number is None else number[ids[part]] for ids in (head, tail)]
            of = None if weight is None else weight[part]
            yield TripleChunk(ends[0], relation[part], ends[1], of)

    num_nodes = boundary_mask.numel()
    num_free = num_nodes - int(boundary_mask.sum())
    sources = torch.zeros(0, dtype=torch.long)
    if num_free < num_nodes:
        number, sources = number_vertices(chunks, boundary_mask)
    rows = build_fact_csr(
        chunks,
        num_free,
        sources.numel(),
        sheaf.num_relations,
        merge=sheaf.is_constant,
        ends=labels,
        weighted=weight is not None,
        dtype=dtype,
    )
    return rows, sources


def needs_labels(sheaf: RelationSheaf, normalization: Literal["block", "degree"] | None) -> bool:
    """Whether the relations of triple ends count for more than their messages.

    They do for translations, for maps that are not unitary, and for degrees under diagonal maps.
    """
    if sheaf.end_translations() is not None:
        return True
    tails, heads, _ = sheaf.block_terms()
    squares = torch.cat([tails, heads])
    gap = float((squares - 1).abs().max()) if squares.numel() else 0.0
    is_unitary = gap <= 8 * torch.finfo(squares.dtype).eps
    return not is_unitary or (normalization == "degree" and not sheaf.is_constant)


def check_takes_rows(sheaf: RelationSheaf) -> None:
    """Refuses maps that mix columns, or are not known to keep them apart."""
    if not sheaf.takes_rows:
        raise ValueError(
            "only identity and diagonal maps and quaternions run by columns (got "
            f"{type(sheaf).__name__}, whose maps mix the columns or are not known to keep them "
            "apart)"
        )
