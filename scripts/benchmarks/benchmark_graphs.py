"""The graphs that benchmarks run on: seeded multigraphs, and the real ones where they are found."""

import os
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from sheafprop.data.datasets.grail import ENVIRONMENT, FAMILIES, GraILDataset
from sheafprop.data.knowledge_graph import KnowledgeGraph
from sheafprop.data.triples import read_triples


@dataclass(frozen=True)
class BenchmarkGraph:
    """A multigraph with typed edges and without loops."""

    name: str
    edge_index: Tensor
    edge_type: Tensor
    num_nodes: int
    num_relations: int

    def to(self, device: str) -> "BenchmarkGraph":
        return BenchmarkGraph(
            self.name,
            self.edge_index.to(device),
            self.edge_type.to(device),
            self.num_nodes,
            self.num_relations,
        )


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
    """The training graph of FB15k-237; None if ``full/FB15k-237.tar.gz`` is not at hand."""
    root = os.environ.get(ENVIRONMENT)
    archive = Path(root or "", "full", "FB15k-237.tar.gz")
    if root is None or not archive.is_file():
        return None
    with tempfile.TemporaryDirectory() as folder, tarfile.open(archive) as members:
        members.extract("train.txt", folder, filter="data")
        triples = read_triples(Path(folder, "train.txt"))
    return _graph("FB15k-237", KnowledgeGraph.from_labels(triples))


def _graph(name: str, graph: KnowledgeGraph) -> BenchmarkGraph:
    head, relation, tail = graph.triples[graph.triples[:, 0] != graph.triples[:, 2]].T
    return BenchmarkGraph(
        name,
        torch.stack([head, tail]),
        relation.contiguous(),
        len(graph.entities or ()),
        len(graph.relations or ()),
    )
