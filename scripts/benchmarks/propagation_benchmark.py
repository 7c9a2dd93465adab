"""The propagation step and the limit, side by side with other ways to compute them.

Ratios are taken between times measured in turn in one process. Each case checks first that what it
compares computes the same vectors. All cases are measured in several runs, one after the other; a
case is stored with its threads, the number of runs, medians and ranges.
"""

import argparse
import functools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.benchmark_cases import Case
from benchmarks.benchmark_graphs import (
    BenchmarkGraph,
    fb15k237,
    inference_graph,
    power_law_multigraph,
)
from benchmarks.commit import current_commit
from benchmarks.growth_benchmark import scaling_case, slope
from benchmarks.limit_benchmark import KNOWN, limit_cases
from benchmarks.measuring import add_runs, in_own_process, summarize
from benchmarks.step_benchmark import dense_case, parity_cases, step_case
from sheafprop.hardware import describe_hardware

#: What can be run apart from the rest.
PARTS = ("steps", "graphs", "growth", "limits")


def step_cases(quick: bool, device: str) -> Iterator[Case]:
    """Steps on a large seeded graph."""
    size = 30_000 if quick else 300_000
    graph = power_law_multigraph(size, 10 * size)
    for maps in ("identity", "diagonal", "diagonal, real"):
        yield step_case(graph, maps, 128, device=device)


def graph_cases(quick: bool, device: str) -> Iterator[Case]:
    """Steps on FB15k-237 and on GraIL's inference graphs."""
    if (real := _fb15k237()) is not None:
        for maps in ("identity", "diagonal"):
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
) -> dict[str, Any]:
    """Runs the cases of some parts several times and prints each as it is done."""
    if device != "cpu" and not torch.cuda.is_available():
        raise SystemExit("there is no CUDA device here")
    found: dict[str, list[Case]] = {}
    commit = current_commit()
    for number in range(1, runs + 1):
        for case in cases(quick, device, parts):
            found.setdefault(case["name"], []).append(case | {"commit": commit})
            shown = {k: _short(v) for k, v in case.items() if v is not None and k != "name"}
            print(f"run {number}", case["name"], *(f"{k}={v}" for k, v in shown.items()), sep="  ",
                  flush=True)  # fmt: skip
    return {
        "hardware": describe_hardware(),
        "torch": torch.__version__,
        "commit": commit,
        "cases": [summarize(measured) for measured in found.values()],
    }


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
    result = run(quick=options.quick, device=options.device, parts=parts, runs=options.runs)
    if options.json is None:
        return
    if options.json.exists():
        result["cases"] = _merged(json.loads(options.json.read_text("utf-8")), result)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _merged(old: dict[str, Any], new: dict[str, Any]) -> list[Case]:
    if old["hardware"] != new["hardware"]:
        raise SystemExit(f"the file holds results of other hardware: {old['hardware']}")
    again = {case["name"]: case for case in new["cases"]}
    kept = [again.pop(case["name"], case) for case in old["cases"]]
    return [*kept, *again.values()]


def _short(value: Any) -> Any:
    return f"{value:.4g}" if isinstance(value, float) else value


def _fb15k237() -> BenchmarkGraph | None:
    graph = fb15k237()
    if graph is None:
        print("FB15k-237 is not at hand: SHEAFPROP_DATA does not name it", file=sys.stderr)
    return graph
