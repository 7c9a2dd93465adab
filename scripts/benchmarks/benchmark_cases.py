"""The problems that benchmarks run on, and the form of what is measured.

Graphs are seeded multigraphs, and the real ones where they are found.
"""

import math
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.transductive_data import TransductiveData
from sheafprop.data.datasets.grail import ENVIRONMENT, FAMILIES, GraILDataset
from sheafprop.data.knowledge_graph import KnowledgeGraph
from sheafprop.errors import DataError
from sheafprop.kernels.memory import empty
from sheafprop.sheaf import (
    DenseSheaf,
    DiagonalSheaf,
    IdentitySheaf,
    PropagationPlan,
    QuaternionSheaf,
    RelationSheaf,
)

STEP_SIZE = 0.9
#: A case of the result: these keys always, others where they mean something.
KEYS = (
    "name",
    "maps",
    "entities",
    "triples",
    "width",
    "seconds",
    "ratio_scatter",
    "ratio_torch_sparse",
    "ratio_csr",
    "peak_bytes",
    "peak_bytes_scatter",
    "bandwidth_fraction",
    "threads",
)
Case = dict[str, Any]


@dataclass(frozen=True)
class BenchmarkGraph:
    """A multigraph with typed edges and without loops."""

    name: str
    edge_index: Tensor
    edge_type: Tensor
    num_nodes: int
    num_relations: int

    def to(self, device: str) -> "BenchmarkGraph":
        moved = self.edge_index.to(device), self.edge_type.to(device)
        return replace(self, edge_index=moved[0], edge_type=moved[1])

    def part(self, edges: slice | Tensor) -> "BenchmarkGraph":
        """The graph with some of its edges."""
        return replace(self, edge_index=self.edge_index[:, edges], edge_type=self.edge_type[edges])

    def plan(self, sheaf: RelationSheaf, x: Tensor) -> PropagationPlan:
        """The plan of a step on features like ``x``."""
        ends = self.edge_index, self.edge_type
        return PropagationPlan(*ends, sheaf, self.num_nodes, dtype=x.dtype)


def power_law_multigraph(
    num_nodes: int, num_triples: int, num_relations: int = 200, seed: int = 0
) -> BenchmarkGraph:
    """Heads, tails and relations drawn with densities that fall like a power of the rank.

    The share of the vertex of rank :math:`k` falls like :math:`k^{-1/2}`, so that a few vertices
    and relations hold many of the triples; ids are shuffled.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(size: int) -> Tensor:
        rank = (torch.rand(num_triples, generator=generator).square() * size).long()
        return rank.clamp_(max=size - 1)

    head, tail = (torch.randperm(num_nodes, generator=generator)[draw(num_nodes)] for _ in range(2))
    # Loops send no messages, and the baselines would not know.
    tail = torch.where(head == tail, (tail + 1) % num_nodes, tail)
    return BenchmarkGraph(
        f"power law, {num_nodes:,} entities",
        torch.stack([head, tail]),
        draw(num_relations),
        num_nodes,
        num_relations,
    )


def inference_graph(name: str) -> BenchmarkGraph | None:
    """The observed inference graph of a GraIL split; None if its files are not at hand."""
    root = os.environ.get(ENVIRONMENT)
    if root is None or not any(Path(root).rglob(f"{f}*") for f in FAMILIES if name.startswith(f)):
        return None
    return _graph(name, GraILDataset(root, name).load().inference)


def fb15k237() -> BenchmarkGraph | None:
    """The training graph of FB15k-237; None if its files are not at hand."""
    with suppress(DataError):
        return _graph("FB15k-237", TransductiveData.load("FB15k-237").train)
    return None


def _graph(name: str, graph: KnowledgeGraph) -> BenchmarkGraph:
    head, relation, tail = graph.triples[graph.triples[:, 0] != graph.triples[:, 2]].T
    return BenchmarkGraph(
        name,
        torch.stack([head, tail]),
        relation.contiguous(),
        len(graph.entities or ()),
        len(graph.relations or ()),
    )


def benchmark_case(
    graph: BenchmarkGraph, maps: str, width: int, seconds: float | None, **more: Any
) -> Case:
    """A case with every key that all of them have, and the threads it is measured with now."""
    case: Case = dict.fromkeys(KEYS)
    case |= {
        "name": f"{graph.name}, {maps}, width {width}",
        "maps": maps,
        "entities": graph.num_nodes,
        "triples": graph.edge_type.numel(),
        "width": width,
        "seconds": seconds,
        "threads": torch.get_num_threads(),
    }
    return case | more


def make_sheaf(maps: str, num_relations: int, width: int, device: str = "cpu") -> RelationSheaf:
    """Seeded restriction maps for features of ``width`` real columns."""
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    if maps == "identity":
        return IdentitySheaf(normal(num_relations, width))
    if maps == "diagonal":
        phase = normal(num_relations, width // 2) * math.pi
        return DiagonalSheaf(head=torch.polar(torch.ones_like(phase), phase))
    if maps == "diagonal, real":
        return DiagonalSheaf(*(1 + 0.3 * normal(num_relations, width) for _ in range(2)))
    if maps == "quaternions":
        units = torch.nn.functional.normalize(normal(num_relations, width // 4, 4), dim=-1)
        return QuaternionSheaf(units.flatten(1))
    scale = width**-0.5
    return DenseSheaf(*(scale * normal(num_relations, width, width) for _ in range(2)))


def make_features(maps: str, num_nodes: int, width: int, device: str = "cpu") -> Tensor:
    """Seeded features ``[N, 1, width]``, complex with half as many columns for complex maps."""
    generator = torch.Generator().manual_seed(2)
    x = empty((num_nodes, 1, width), torch.empty(0, device=device))
    x.copy_(torch.randn(x.shape, generator=generator))
    return torch.view_as_complex(x.view(num_nodes, 1, width // 2, 2)) if maps == "diagonal" else x
