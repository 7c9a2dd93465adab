"""How time and memory of a plan and its steps grow with the graph."""

import math

import torch
from torch import Tensor

from benchmarks.benchmark_cases import (
    STEP_SIZE,
    Case,
    benchmark_case,
    make_features,
    make_sheaf,
)
from benchmarks.benchmark_graphs import BenchmarkGraph, power_law_multigraph
from benchmarks.measuring import (
    in_own_process,
    interleaved,
    memory_held,
    most_memory_held,
    timed,
)
from sheafprop.sheaf import PropagationPlan


def scaling_case(maps: str, num_nodes: int, num_triples: int, width: int) -> Case:
    """Plan and step of one size in a process of its own, whose peak it reports."""
    return in_own_process(_scaling, maps, num_nodes, num_triples, width)


def _scaling(maps: str, num_nodes: int, num_triples: int, width: int) -> Case:
    sheaf = make_sheaf(maps, 200, width)

    def build(graph: BenchmarkGraph, x: Tensor) -> tuple[PropagationPlan, Tensor]:
        plan = PropagationPlan(
            graph.edge_index, graph.edge_type, sheaf, graph.num_nodes, dtype=x.dtype
        )
        constant = plan.constant(x)
        plan.step(x, constant, STEP_SIZE)
        return plan, constant

    # Kernels are compiled before, which does not grow with the graph.
    build(power_law_multigraph(100, 1000), make_features(maps, 100, width))
    held = memory_held()
    graph, x = power_law_multigraph(num_nodes, num_triples), make_features(maps, num_nodes, width)
    (plan, constant), starting = timed(lambda: build(graph, x))
    out = torch.empty_like(x)
    median = interleaved({"step": lambda: plan.step(x, constant, STEP_SIZE, out)}, 6)
    return benchmark_case(
        graph,
        maps,
        width,
        median["step"],
        peak_bytes=most_memory_held(),
        startup_seconds=starting - median["step"],
        peak_bytes_beyond_imports=most_memory_held() - held,
    )


def slope(cases: list[Case], key: str) -> float:
    """Exponent of a power law fitted to several sizes."""
    x = [math.log(case["triples"]) for case in cases]
    y = [math.log(case[key]) for case in cases]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum(
        (a - mean_x) ** 2 for a in x
    )
