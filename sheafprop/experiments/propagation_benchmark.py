"""The propagation step and the limit, side by side with other ways to compute them.

Ratios are taken between times measured in turn in one process. Each case checks first that what it
compares computes the same vectors.
"""

import argparse
import json
import math
import multiprocessing
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import FeaturePropagation

from sheafprop.experiments.benchmark_graphs import (
    BenchmarkGraph,
    fb15k237,
    inference_graph,
    power_law_multigraph,
)
from sheafprop.experiments.limit_benchmark import KNOWN, limit_cases
from sheafprop.experiments.measuring import (
    copy_bandwidth,
    interleaved,
    matrix_product,
    memory_held,
    most_memory_held,
    timed,
    with_peak,
)
from sheafprop.experiments.propagation_baselines import TwoPropagates, in_chunks, lean_messages
from sheafprop.kernels.dense_coupling import DenseCoupling
from sheafprop.kernels.memory import empty
from sheafprop.report.hardware import describe_hardware
from sheafprop.sheaf import DenseSheaf, DiagonalSheaf, IdentitySheaf, PropagationPlan, RelationSheaf

try:
    from torch_sparse import SparseTensor
except ImportError:
    SparseTensor = None

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
)
#: What can be run apart from the rest.
PARTS = ("steps", "growth", "limits")
Case = dict[str, Any]


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


def step_case(
    graph: BenchmarkGraph, maps: str, width: int, *, rounds: int = 6, device: str = "cpu"
) -> Case:
    """One step with identity or diagonal maps against scatter, torch-sparse and bare products."""
    graph = graph.to(device)
    sheaf = make_sheaf(maps, graph.num_relations, width, device)
    x = make_features(maps, graph.num_nodes, width, device)

    def build() -> tuple[PropagationPlan, Tensor, Tensor]:
        plan = PropagationPlan(
            graph.edge_index, graph.edge_type, sheaf, graph.num_nodes, dtype=x.dtype
        )
        constant = plan.constant(x)
        out = torch.empty_like(x)
        plan.step(x, constant, STEP_SIZE, out)
        return plan, constant, out

    # Once on a few triples: compiling is a cost of its own, paid once for each machine.
    few = (graph.edge_index[:, :64], graph.edge_type[:64], sheaf, graph.num_nodes)
    small = x[:, :, :1].expand_as(x).contiguous()
    _, compiling = timed(
        lambda: PropagationPlan(*few, dtype=x.dtype).step(small, small, STEP_SIZE), device
    )
    (plan, constant, out), peak = with_peak(build, device)
    _, starting = timed(build, device)

    coefficients = None if maps == "identity" else _coefficients(sheaf)
    inverse = plan.blocks.inverse.unsqueeze(1)  # type: ignore[attr-defined]
    flat, unchanged = x[:, 0], constant[:, 0]
    two = TwoPropagates(coefficients)

    def finish(messages: Tensor) -> Tensor:
        received = inverse[:, 0] * (messages + unchanged)
        return flat + STEP_SIZE * (received - _in_range(plan, flat))

    ends = PropagationPlan(
        graph.edge_index, graph.edge_type, IdentitySheaf(relations=graph.num_relations),
        graph.num_nodes,
    )  # fmt: skip
    matrix = ends._free_coupling._product.matrix()  # type: ignore[attr-defined]
    real = torch.view_as_real(flat).flatten(1) if flat.is_complex() else flat
    functions: dict[str, Callable[[], Any]] = {
        "step": lambda: plan.step(x, constant, STEP_SIZE, out),
        "csr": lambda: matrix @ real,
        "lean": lambda: finish(lean_messages(flat, graph, coefficients)),
        "scatter": lambda: finish(two(flat, graph)),
    }
    if maps != "identity":
        other = PropagationPlan(
            graph.edge_index,
            graph.edge_type,
            make_sheaf("identity", graph.num_relations, width, device),
            graph.num_nodes,
        )
        pairs = torch.view_as_real(x).flatten(2) if x.is_complex() else x
        pairs_out, pairs_constant = torch.empty_like(pairs), other.constant(pairs)
        functions["identity"] = lambda: other.step(pairs, pairs_constant, STEP_SIZE, pairs_out)
    elif SparseTensor is not None:
        sparse = SparseTensor(
            rowptr=matrix.crow_indices(),
            col=matrix.col_indices(),
            value=matrix.values(),
            sparse_sizes=tuple(matrix.shape),
        )
        functions["torch-sparse"] = lambda: finish(sparse @ flat)
    _check_equal(plan.step(x, constant, STEP_SIZE)[:, 0], functions, ("lean", "torch-sparse"))
    _, peak_scatter = with_peak(functions["scatter"], device)

    slow = ("scatter", "lean", "torch-sparse") if graph.edge_type.numel() > 10**6 else ()
    best = interleaved(functions, rounds, slow=slow, device=device)
    # Apart from them, since it empties the caches that small graphs live in.
    copy, copied = copy_bandwidth(device)
    best |= interleaved({"copy": copy}, device=device)
    entries = 2 * graph.edge_type.numel() if maps != "identity" else matrix.values().numel()
    row = width * x.real.element_size()
    moved = entries * (row + 8) + 3 * graph.num_nodes * row
    case = _case(
        graph,
        maps,
        width,
        best["step"],
        ratio_scatter=best["scatter"] / best["step"],
        ratio_lean=best["lean"] / best["step"],
        ratio_torch_sparse=_ratio(best, "torch-sparse"),
        ratio_csr=best["step"] / best["csr"],
        ratio_identity=best["step"] / best["identity"] if "identity" in best else None,
        peak_bytes=peak,
        peak_bytes_scatter=peak_scatter,
        bandwidth_fraction=(moved / best["step"]) / (copied / best["copy"]),
        startup_seconds=starting - best["step"],
        compile_seconds=compiling,
    )
    if maps == "identity" and device == "cpu":
        case["ratio_feature_propagation"] = _feature_propagation(graph, flat) / best["step"]
    return case


def dense_case(graph: BenchmarkGraph, width: int, *, rounds: int = 4, device: str = "cpu") -> Case:
    """One step with dense maps against scatter in chunks (on a sample of the edges if wide)."""
    graph = graph.to(device)
    sheaf = make_sheaf("dense", graph.num_relations, width, device)
    assert isinstance(sheaf, DenseSheaf)
    x = make_features("dense", graph.num_nodes, width, device)

    def build(edge_index: Tensor, edge_type: Tensor) -> tuple[PropagationPlan, Tensor]:
        plan = PropagationPlan(edge_index, edge_type, sheaf, graph.num_nodes)
        constant = plan.constant(x)
        plan.step(x, constant, STEP_SIZE)
        return plan, constant

    # Once on a few triples, so that the peak counts no code that is read in for the first time.
    build(graph.edge_index[:, :64], graph.edge_type[:64])
    ((plan, constant), peak), starting = timed(
        lambda: with_peak(lambda: build(graph.edge_index, graph.edge_type), device), device
    )
    coupling = plan._free_coupling
    assert isinstance(coupling, DenseCoupling)
    sent = coupling.map_out(x)
    received = coupling._mix(sent)

    num_edges = graph.edge_type.numel()
    chunk = max(1, 2**28 // (4 * width**2))
    sample = num_edges if width <= 64 else min(num_edges, max(256, num_edges // 64))
    picked = torch.randperm(num_edges, generator=torch.Generator().manual_seed(3))[:sample]
    part = BenchmarkGraph(
        graph.name,
        graph.edge_index[:, picked.to(device)],
        graph.edge_type[picked.to(device)],
        graph.num_nodes,
        graph.num_relations,
    )
    two = TwoPropagates(sheaf.tail.mH @ sheaf.head)
    copy, copied = copy_bandwidth(device)
    product, operations = matrix_product(device)
    best = interleaved(
        {
            "step": lambda: plan.step(x, constant, STEP_SIZE),
            "scatter": lambda: in_chunks(two, x[:, 0], part, chunk),
            "map out": lambda: coupling.map_out(x),
            "map back": lambda: coupling.map_back(received),
            "inverse": lambda: plan.precondition(constant),
            "copy": copy,
            "product": product,
        },
        rounds,
        slow=("scatter",),
        device=device,
    )
    if sample == num_edges:
        expected = plan.couple(x)[:, 0]
        ours = in_chunks(two, x[:, 0], graph, chunk)
        assert torch.allclose(expected, ours, atol=1e-3 * float(expected.abs().max()))
    scatter = best["scatter"] * num_edges / sample
    rate = 2 * coupling.map_products * width**2 / (best["map out"] + best["map back"])
    inverse_bytes = graph.num_nodes * width**2 * x.element_size()
    return _case(
        graph,
        "dense",
        width,
        best["step"],
        ratio_scatter=scatter / best["step"],
        scatter_sample=sample / num_edges,
        peak_bytes=peak,
        # Computed: one matrix for each edge of one propagate call.
        peak_bytes_scatter=num_edges * width**2 * x.element_size(),
        bandwidth_fraction=(inverse_bytes / best["inverse"]) / (copied / best["copy"]),
        matmul_fraction=rate / (operations / best["product"]),
        startup_seconds=starting - best["step"],
    )


def scaling_case(maps: str, num_nodes: int, num_triples: int, width: int) -> Case:
    """Plan and step of one size in a process of its own, whose peak it reports."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_scaling, (maps, num_nodes, num_triples, width, torch.get_num_threads()))


def _scaling(maps: str, num_nodes: int, num_triples: int, width: int, threads: int) -> Case:
    torch.set_num_threads(threads)
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
    best = interleaved({"step": lambda: plan.step(x, constant, STEP_SIZE, out)}, 12)
    return _case(
        graph,
        maps,
        width,
        best["step"],
        peak_bytes=most_memory_held(),
        startup_seconds=starting - best["step"],
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


def step_cases(quick: bool, device: str) -> Iterator[Case]:
    """Steps on a large seeded graph, on FB15k-237 and on GraIL's inference graphs."""
    size = 30_000 if quick else 300_000
    graph = power_law_multigraph(size, 10 * size)
    for maps in ("identity", "diagonal", "diagonal, real"):
        yield step_case(graph, maps, 128, device=device)
    del graph
    if (real := _fb15k237()) is not None:
        for maps in ("identity", "diagonal"):
            yield step_case(real, maps, 128, device=device)
        yield dense_case(real, 32 if quick else 64, device=device)
        if not quick:
            yield dense_case(real, 256, device=device)
    splits = ["fb237_v1"] if quick else ["fb237_v1", "fb237_v4", "WN18RR_v1", "nell_v1"]
    for small in filter(None, map(inference_graph, splits)):
        for maps in ("identity", "diagonal"):
            yield step_case(small, maps, 64, rounds=30, device=device)
        yield dense_case(small, 32, rounds=30, device=device)


def growth_cases(quick: bool) -> Iterator[Case]:
    """Plan and step of three sizes, and the exponents of time and memory in the triples."""
    for maps in ("identity",) if quick else ("identity", "diagonal"):
        top = 40_000 if quick else 1_000_000
        sizes = (top // 4, top // 2, top)
        found = [scaling_case(maps, n, 10 * n, 64) for n in sizes]
        for key in ("seconds", "peak_bytes_beyond_imports", "startup_seconds"):
            found[-1][f"slope_{key}"] = slope(found, key)
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
    if device != "cpu":
        yield from parity_cases(device)
        return
    if "growth" in parts:
        yield from growth_cases(quick)
    if "limits" in parts:
        yield from all_limit_cases(quick)


def parity_cases(device: str) -> Iterator[Case]:
    """Largest difference between a step on CPU and on the device, for every map kind."""
    graph = power_law_multigraph(2_000, 20_000)
    for maps in ("identity", "diagonal", "diagonal, real", "dense"):
        width = 32 if maps == "dense" else 128
        results = []
        for place in ("cpu", device):
            moved, x = graph.to(place), make_features(maps, graph.num_nodes, width).to(place)
            plan = PropagationPlan(
                moved.edge_index,
                moved.edge_type,
                make_sheaf(maps, graph.num_relations, width, place),
                graph.num_nodes,
                dtype=x.dtype,
            )
            results.append(plan.step(x, plan.constant(x), STEP_SIZE).cpu())
        difference = float((results[0] - results[1]).abs().max() / results[0].abs().max())
        if difference > 1e-5:
            raise AssertionError(f"{maps} maps: CPU and {device} differ by {difference:.2g}")
        yield _case(moved, maps, width, None, parity_difference=difference)


def run(
    *, quick: bool = False, device: str = "cpu", parts: Sequence[str] = PARTS
) -> dict[str, Any]:
    """Runs the cases of some parts and prints each as it is done."""
    if device != "cpu" and not torch.cuda.is_available():
        raise SystemExit("there is no CUDA device here")
    found, commit = [], _commit()
    for case in cases(quick, device, parts):
        found.append(case | {"commit": commit})
        shown = {k: _short(v) for k, v in case.items() if v is not None and k != "name"}
        print(case["name"], *(f"{k}={v}" for k, v in shown.items()), sep="  ", flush=True)
    return {
        "hardware": describe_hardware(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "commit": commit,
        "cases": found,
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
    parser.add_argument("--only", choices=PARTS, help="one part instead of all")
    options = parser.parse_args(arguments)
    parts = PARTS if options.only is None else (options.only,)
    result = run(quick=options.quick, device=options.device, parts=parts)
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


def _case(graph: BenchmarkGraph, maps: str, width: int, seconds: float | None, **more: Any) -> Case:
    case: Case = dict.fromkeys(KEYS)
    case |= {
        "name": f"{graph.name}, {maps}, width {width}",
        "maps": maps,
        "entities": graph.num_nodes,
        "triples": graph.edge_type.numel(),
        "width": width,
        "seconds": seconds,
    }
    return case | more


def _coefficients(sheaf: RelationSheaf) -> Tensor:
    assert isinstance(sheaf, DiagonalSheaf)
    assert sheaf.head is not None
    return sheaf.head if sheaf.tail is None else sheaf.tail.conj() * sheaf.head


def _in_range(plan: PropagationPlan, flat: Tensor) -> Tensor:
    return plan.blocks.project(flat.unsqueeze(1))[:, 0]


def _check_equal(expected: Tensor, functions: dict[str, Callable], names: tuple[str, ...]) -> None:
    scale = float(expected.abs().max())
    for name in names:
        if name in functions:
            difference = float((functions[name]() - expected).abs().max()) / scale
            if not difference < 1e-4:
                raise AssertionError(f"{name} gives another step (by {difference:.2g})")


def _feature_propagation(graph: BenchmarkGraph, x: Tensor) -> float:
    """Seconds for each iteration of PyG's transform, its preparation taken off."""
    both = torch.cat([graph.edge_index, graph.edge_index.flip(0)], dim=1)
    missing = torch.ones_like(x, dtype=torch.bool)
    missing[: len(x) // 20] = False
    best = interleaved(
        {
            "one": lambda: FeaturePropagation(missing, 1)(Data(x, both)),
            "four": lambda: FeaturePropagation(missing, 4)(Data(x, both)),
        },
        2,
    )
    return max(0.0, best["four"] - best["one"]) / 3


def _ratio(best: dict[str, float], name: str) -> float | None:
    return best[name] / best["step"] if name in best else None


def _short(value: Any) -> Any:
    return f"{value:.4g}" if isinstance(value, float) else value


def _fb15k237() -> BenchmarkGraph | None:
    graph = fb15k237()
    if graph is None:
        print("FB15k-237 is not at hand: SHEAFPROP_DATA does not name it", file=sys.stderr)
    return graph


def _commit() -> str | None:
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
