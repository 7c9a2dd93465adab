"""The problems that propagation is measured on, and the form of what is measured."""

import math
from typing import Any

import torch
from torch import Tensor

from benchmarks.benchmark_graphs import BenchmarkGraph
from sheafprop.kernels.memory import empty
from sheafprop.sheaf import DenseSheaf, DiagonalSheaf, IdentitySheaf, RelationSheaf

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
    scale = width**-0.5
    return DenseSheaf(*(scale * normal(num_relations, width, width) for _ in range(2)))


def make_features(maps: str, num_nodes: int, width: int, device: str = "cpu") -> Tensor:
    """Seeded features ``[N, 1, width]``, complex with half as many columns for complex maps."""
    generator = torch.Generator().manual_seed(2)
    x = empty((num_nodes, 1, width), torch.empty(0, device=device))
    x.copy_(torch.randn(x.shape, generator=generator))
    return torch.view_as_complex(x.view(num_nodes, 1, width // 2, 2)) if maps == "diagonal" else x
