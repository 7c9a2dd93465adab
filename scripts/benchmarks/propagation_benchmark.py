"""The propagation step and the limit, side by side with other ways to compute them.

Ratios are taken between times measured in turn in one process. Each case checks first that what it
compares computes the same vectors. All cases are measured in several runs, one after the other; a
case is stored with its threads, the number of runs, medians and ranges.
"""

import argparse
import functools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.benchmark_cases import (
    STEP_SIZE,
    BenchmarkGraph,
    Case,
    benchmark_case,
    fb15k237,
    inference_graph,
    make_features,
    make_sheaf,
    power_law_multigraph,
)
from benchmarks.cells import check_hardware, merge_cases
from benchmarks.limit_benchmark import KNOWN, limit_cases
from benchmarks.measuring import (
    add_runs,
    in_own_process,
    interleave,
    measured_here,
    memory_held,
    most_memory_held,
    summarize,
    time_call,
)
from benchmarks.step_benchmark import dense_case, parity_cases, step_case
from sheafprop.sheaf import PropagationPlan

#: What can be run apart from the rest.
PARTS = ("steps", "graphs", "growth", "limits")


def step_cases(quick: bool, device: str) -> Iterator[Case]:
    """Steps on a large seeded graph."""
    size = 30_000 if quick else 300_000
    graph = power_law_multigraph(size, 10 * size)
    for maps in ("identity", "diagonal", "diagonal, real", "quaternions"):
        yield step_case(graph, maps, 128, device=device)


def graph_cases(quick: bool, device: str) -> Iterator[Case]:
    """Steps on FB15k-237 and on GraIL's inference graphs."""
    if (real := _fb15k237()) is not None:
        for maps in ("identity", "diagonal", "quaternions"):
            yield step_case(real, maps, 128, device=device)
        for width in (32,) if quick else (64, 256):
            yield _dense_case(real, width, device)
    splits = ["fb237_v1"] if quick else ["fb237_v1", "fb237_v4", "WN18RR_v1", "nell_v1"]
    for small in filter(None, map(inference_graph, splits)):
        for maps in ("identity", "diagonal"):
            yield step_case(small, maps, 64, rounds=30, device=device)
        yield _dense_case(small, 32, device, rounds=30)


def _dense_case(graph: BenchmarkGraph, width: int, device: str, rounds: int = 4) -> Case:
    measure = functools.partial(dense_case, graph, width, rounds=rounds, device=device)
    # Its peak would otherwise depend on what the allocator kept of earlier cases.
    return in_own_process(measure) if device == "cpu" else measure()


def scaling_case(maps: str, num_nodes: int, num_triples: int, width: int) -> Case:
    """Plan and step of one size in a process of its own, whose peak it reports."""
    return in_own_process(_scaling, maps, num_nodes, num_triples, width)


def _scaling(maps: str, num_nodes: int, num_triples: int, width: int) -> Case:
    sheaf = make_sheaf(maps, 200, width)

    def build(graph: BenchmarkGraph, x: Tensor) -> tuple[PropagationPlan, Tensor]:
        plan = graph.plan(sheaf, x)
        constant = plan.constant(x)
        plan.step(x, constant, STEP_SIZE)
        return plan, constant

    # Kernels are compiled before, which does not grow with the graph.
    build(power_law_multigraph(100, 1000), make_features(maps, 100, width))
    held = memory_held()
    graph, x = power_law_multigraph(num_nodes, num_triples), make_features(maps, num_nodes, width)
    (plan, constant), starting = time_call(lambda: build(graph, x))
    out = torch.empty_like(x)
    median = interleave({"step": lambda: plan.step(x, constant, STEP_SIZE, out)}, 6)
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
    sizes = np.log([case["triples"] for case in cases])
    return float(np.polyfit(sizes, np.log([case[key] for case in cases]), 1)[0])


def growth_cases(quick: bool) -> Iterator[Case]:
    """Plan and step of four sizes, and the exponents of time and memory in the triples.

    Features of the smallest, and they alone, may fit a machine's last cache: steps in it and beside
    it cost differently, so that the exponents are those of the others.
    """
    for maps in ("identity",) if quick else ("identity", "diagonal"):
        unit = 10_000 if quick else 1_000_000
        sizes = (unit, 2 * unit, 3 * unit, 4 * unit)
        found = [scaling_case(maps, n, 10 * n, 64) for n in sizes]
        for key in ("seconds", "peak_bytes_beyond_imports", "startup_seconds"):
            found[-1][f"slope_{key}"] = slope(found[1:], key)
        yield from found


def all_limit_cases(quick: bool) -> Iterator[Case]:
    """The limit on GraIL's WN18RR graphs and on FB15k-237."""
    splits = ["WN18RR_v1"] if quick else ["WN18RR_v1", "WN18RR_v4"]
    graphs = [inference_graph(split) for split in splits]
    if not quick:
        graphs.append(_fb15k237())
    for graph in filter(None, graphs):
        yield from limit_cases(graph, (0.25,) if quick else KNOWN, dense=not quick)


def cases(quick: bool, device: str, parts: Sequence[str] = PARTS) -> Iterator[Case]:
    """The cases of some parts; ``quick`` for smaller graphs and fewer of the slow ones."""
    if "steps" in parts:
        yield from step_cases(quick, device)
    if "graphs" in parts:
        yield from graph_cases(quick, device)
    if device != "cpu":
        yield from parity_cases(device)
        return
    if "growth" in parts:
        yield from growth_cases(quick)
    if "limits" in parts:
        yield from all_limit_cases(quick)


def run(
    *, quick: bool = False, device: str = "cpu", parts: Sequence[str] = PARTS, runs: int = 1
) -> list[Case]:
    """Runs the cases of some parts several times and prints each as it is done."""
    if device != "cpu" and not torch.cuda.is_available():
        raise SystemExit("there is no CUDA device here")
    found: dict[str, list[Case]] = {}
    facts = measured_here()
    for number in range(1, runs + 1):
        for case in cases(quick, device, parts):
            found.setdefault(case["name"], []).append(case)
            shown = {k: _short(v) for k, v in case.items() if v is not None and k != "name"}
            print(f"run {number}", case["name"], *(f"{k}={v}" for k, v in shown.items()), sep="  ",
                  flush=True)  # fmt: skip
    return [summarize(measured) | facts for measured in found.values()]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small graphs, about a minute")
    parser.add_argument(
        "--json",
        metavar="FILE",
        type=Path,
        help="write the results there; cases that are in it and not run again stay",
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    add_runs(parser)
    parser.add_argument("--only", choices=PARTS, help="one part instead of all")
    options = parser.parse_args(arguments)
    parts = PARTS if options.only is None else (options.only,)
    check_hardware(options.json, measured_here()["hardware"])
    found = run(quick=options.quick, device=options.device, parts=parts, runs=options.runs)
    if options.json is not None:
        merge_cases(options.json, found)


def _short(value: Any) -> Any:
    return f"{value:.4g}" if isinstance(value, float) else value


def _fb15k237() -> BenchmarkGraph | None:
    graph = fb15k237()
    if graph is None:
        print("FB15k-237 is not at hand: SHEAFPROP_DATA does not name it", file=sys.stderr)
    return graph
