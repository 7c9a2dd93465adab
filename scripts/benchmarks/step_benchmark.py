"""One propagation step against other ways to compute it.

Each case checks first that what it compares computes the same vectors.
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Any, Optional

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing
from torch_geometric.transforms import FeaturePropagation

from benchmarks.benchmark_cases import (
    STEP_SIZE,
    BenchmarkGraph,
    Case,
    benchmark_case,
    make_features,
    make_sheaf,
    power_law_multigraph,
)
from benchmarks.measuring import (
    copy_bandwidth,
    interleave,
    matrix_product,
    time_call,
    with_peak,
)
from sheafprop.kernels.algebra import DIAGONAL, Algebra
from sheafprop.kernels.dense_coupling import DenseCoupling
from sheafprop.kernels.relation_incidence import RelationIncidence
from sheafprop.sheaf import DenseSheaf, PropagationPlan, RelationSheaf
from sheafprop.sheaf.dense_blocks import DenseBlocks
from sheafprop.sheaf.table_sheaf import TableSheaf

try:
    from torch_sparse import SparseTensor
except ImportError:
    SparseTensor = None


def step_case(
    graph: BenchmarkGraph, maps: str, width: int, *, rounds: int = 6, device: str = "cpu"
) -> Case:
    """One step with maps of rows of a table against scatter, torch-sparse and bare products."""
    graph = graph.to(device)
    sheaf = make_sheaf(maps, graph.num_relations, width, device)
    x = make_features(maps, graph.num_nodes, width, device)

    def build() -> tuple[PropagationPlan, Tensor, Tensor]:
        plan = graph.plan(sheaf, x)
        constant = plan.constant(x)
        out = torch.empty_like(x)
        plan.step(x, constant, STEP_SIZE, out)
        return plan, constant, out

    # Once on a few triples: compiling is a cost of its own, paid once for each machine.
    few, small = graph.part(slice(64)), x[:, :, :1].expand_as(x).contiguous()
    _, compiling = time_call(lambda: few.plan(sheaf, x).step(small, small, STEP_SIZE), device)
    (plan, constant, out), peak = with_peak(build, device)
    _, starting = time_call(build, device)

    coefficients = None if maps == "identity" else _coefficients(sheaf)
    inverse = plan.blocks.inverse.unsqueeze(1)  # type: ignore[attr-defined]
    flat, unchanged = x[:, 0], constant[:, 0]
    two = TwoPropagates(coefficients, sheaf.algebra)

    def finish(messages: Tensor) -> Tensor:
        received = inverse[:, 0] * (messages + unchanged)
        return flat + STEP_SIZE * (received - _in_range(plan, flat))

    matrix = adjacency(graph)
    real = torch.view_as_real(flat).flatten(1) if flat.is_complex() else flat
    functions: dict[str, Callable[[], Any]] = {
        "step": lambda: plan.step(x, constant, STEP_SIZE, out),
        "csr": lambda: matrix @ real,
        "lean": lambda: finish(lean_messages(flat, graph, coefficients, sheaf.algebra)),
        "scatter": lambda: finish(two(flat, graph)),
    }
    if maps != "identity":
        pairs = torch.view_as_real(x).flatten(2) if x.is_complex() else x
        other = graph.plan(make_sheaf("identity", graph.num_relations, width, device), pairs)
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
    median = interleave(functions, rounds, slow=slow, device=device)
    # Apart from them, since it empties the caches that small graphs live in.
    copy, copied = copy_bandwidth(device)
    median |= interleave({"copy": copy}, device=device)
    entries = 2 * graph.edge_type.numel() if maps != "identity" else matrix.values().numel()
    row = width * x.real.element_size()
    moved = entries * (row + 8) + 3 * graph.num_nodes * row
    case = benchmark_case(
        graph,
        maps,
        width,
        median["step"],
        ratio_scatter=median["scatter"] / median["step"],
        ratio_lean=median["lean"] / median["step"],
        ratio_torch_sparse=_ratio(median, "torch-sparse"),
        ratio_csr=median["step"] / median["csr"],
        ratio_identity=median["step"] / median["identity"] if "identity" in median else None,
        peak_bytes=peak,
        peak_bytes_scatter=peak_scatter,
        bandwidth_fraction=(moved / median["step"]) / (copied / median["copy"]),
        startup_seconds=starting - median["step"],
        compile_seconds=compiling,
    )
    if maps == "identity" and device == "cpu":
        case["ratio_feature_propagation"] = _feature_propagation(graph, flat) / median["step"]
    return case


def dense_case(graph: BenchmarkGraph, width: int, *, rounds: int = 4, device: str = "cpu") -> Case:
    """One step with dense maps against scatter in chunks (on a sample of the edges if wide)."""
    graph = graph.to(device)
    sheaf = make_sheaf("dense", graph.num_relations, width, device)
    assert isinstance(sheaf, DenseSheaf)
    x = make_features("dense", graph.num_nodes, width, device)

    def build(graph: BenchmarkGraph) -> tuple[PropagationPlan, Tensor]:
        plan = graph.plan(sheaf, x)
        constant = plan.constant(x)
        plan.step(x, constant, STEP_SIZE)
        return plan, constant

    # Once on a few triples, so that the peak counts no code that is read in for the first time.
    build(graph.part(slice(64)))
    ((plan, constant), starting), peak = with_peak(
        lambda: time_call(lambda: build(graph), device), device
    )
    coupling = dense_coupling(graph, sheaf)
    assert isinstance(plan.blocks, DenseBlocks)
    # As many sums are received as features are sent, since every edge is walked both ways.
    received = torch.randn_like(coupling.map_out(x))

    num_edges = graph.edge_type.numel()
    chunk = max(1, 2**28 // (4 * width**2))
    sample = num_edges if width <= 64 else min(num_edges, max(256, num_edges // 64))
    picked = torch.randperm(num_edges, generator=torch.Generator().manual_seed(3))[:sample]
    part = graph.part(picked.to(device))
    two = TwoPropagates(sheaf.tail.mH @ sheaf.head)
    copy, copied = copy_bandwidth(device)
    product, operations = matrix_product(device)
    median = interleave(
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
    scatter = median["scatter"] * num_edges / sample
    rate = 2 * coupling.map_products * width**2 / (median["map out"] + median["map back"])
    # Equal blocks are read once, if they stay in the cache.
    inverse_bytes = plan.blocks.inverses.numel() * x.element_size()
    return benchmark_case(
        graph,
        "dense",
        width,
        median["step"],
        ratio_scatter=scatter / median["step"],
        scatter_sample=sample / num_edges,
        peak_bytes=peak,
        # Computed: one matrix for each edge of one propagate call.
        peak_bytes_scatter=num_edges * width**2 * x.element_size(),
        bandwidth_fraction=(inverse_bytes / median["inverse"]) / (copied / median["copy"]),
        matmul_fraction=rate / (operations / median["product"]),
        startup_seconds=starting - median["step"],
    )


class TwoPropagates(MessagePassing):
    r"""The sum of messages by two ``propagate`` calls with PyG's default scatter.

    One call carries the messages into the tails, :math:`c_r \odot x_h` or :math:`C_r x_h`, the
    other those into the heads, with the conjugate coefficients. Coefficients are prepared, and
    whatever does not change from step to step is left out: this is the best case.

    Args:
        coefficients (Tensor, optional): None for identity maps, ``[R, d]`` for diagonal ones and
            quaternions, and ``[R, d, d]`` (:math:`R_t^* R_h`) for dense ones.
        algebra (Algebra): The product of rows of coefficients.
    """

    def __init__(self, coefficients: Tensor | None = None, algebra: Algebra = DIAGONAL):
        super().__init__(aggr="add")
        self.into_tail, self.algebra = coefficients, algebra
        self.into_head = None
        if coefficients is not None and coefficients.dim() == 3:
            self.into_head = coefficients.mH.contiguous()
        elif coefficients is not None:
            self.into_head = algebra.conjugate(coefficients)

    def forward(self, x: Tensor, graph: BenchmarkGraph) -> Tensor:
        given = dict(x=x, edge_type=graph.edge_type, size=(graph.num_nodes, graph.num_nodes))
        into_tail = self.propagate(graph.edge_index, table=self.into_tail, **given)
        return into_tail + self.propagate(graph.edge_index.flip(0), table=self.into_head, **given)

    def message(
        self,
        x_j: Tensor,
        edge_type: Tensor,
        table: Optional[Tensor],  # noqa: UP045 (PyG's inspector reads it)
    ) -> Tensor:
        if table is None:
            return x_j
        if table.dim() == 2:
            return self.algebra.multiply(table[edge_type], x_j)
        return (table[edge_type] @ x_j.unsqueeze(-1)).squeeze(-1)


def lean_messages(
    x: Tensor,
    graph: BenchmarkGraph,
    coefficients: Tensor | None = None,
    algebra: Algebra = DIAGONAL,
) -> Tensor:
    """The same sum with two calls of ``index_add_``, for all maps but dense ones."""
    head, tail = graph.edge_index
    into_tail, into_head = x[head], x[tail]
    if coefficients is not None:
        back = algebra.conjugate(coefficients)
        multiply = torch.Tensor.mul_ if algebra is DIAGONAL else algebra.multiply
        into_tail = multiply(coefficients[graph.edge_type], into_tail)
        into_head = multiply(back[graph.edge_type], into_head)
    return torch.zeros_like(x).index_add_(0, tail, into_tail).index_add_(0, head, into_head)


def in_chunks(layer: TwoPropagates, x: Tensor, graph: BenchmarkGraph, size: int) -> Tensor:
    """Two propagates for ``size`` edges at a time, where all at once need too much memory."""
    out = torch.zeros_like(x)
    for start in range(0, graph.edge_type.numel(), size):
        out += layer(x, graph.part(slice(start, start + size)))
    return out


def adjacency(graph: BenchmarkGraph) -> Tensor:
    """Who is connected with whom, both ways and with parallel edges added, ``torch.sparse_csr``."""
    both = torch.cat([graph.edge_index, graph.edge_index.flip(0)], dim=1)
    size = (graph.num_nodes, graph.num_nodes)
    ones = torch.ones(both.shape[1], device=both.device)
    with warnings.catch_warnings():
        # "Sparse CSR support is in beta": nothing a user could act on.
        warnings.simplefilter("ignore", UserWarning)
        return torch.sparse_coo_tensor(both, ones, size).coalesce().to_sparse_csr()


def dense_coupling(graph: BenchmarkGraph, sheaf: DenseSheaf) -> DenseCoupling:
    """What a step sends along all edges, whose products with the maps are timed apart."""
    head, tail = graph.edge_index
    ends = RelationIncidence.of_triples(
        head,
        tail,
        graph.edge_type,
        torch.ones(head.numel(), device=head.device),
        graph.num_nodes,
        sheaf.num_relations,
    )
    messages = ends.messages(torch.cat([head, tail]), graph.num_nodes, symmetric=True)
    coupling = sheaf.coupling(messages)
    assert isinstance(coupling, DenseCoupling)
    return coupling


def parity_cases(device: str) -> Iterator[Case]:
    """Largest difference between a step on CPU and on the device, for every map kind."""
    graph = power_law_multigraph(2_000, 20_000)
    for maps in ("identity", "diagonal", "diagonal, real", "quaternions", "dense"):
        width = 32 if maps == "dense" else 128
        results = []
        for place in ("cpu", device):
            moved, x = graph.to(place), make_features(maps, graph.num_nodes, width).to(place)
            plan = moved.plan(make_sheaf(maps, graph.num_relations, width, place), x)
            results.append(plan.step(x, plan.constant(x), STEP_SIZE).cpu())
        difference = float((results[0] - results[1]).abs().max() / results[0].abs().max())
        if difference > 1e-5:
            raise AssertionError(f"{maps} maps: CPU and {device} differ by {difference:.2g}")
        yield benchmark_case(moved, maps, width, None, parity_difference=difference)


def _coefficients(sheaf: RelationSheaf) -> Tensor:
    assert isinstance(sheaf, TableSheaf)
    assert sheaf.head is not None
    if sheaf.tail is None:
        return sheaf.head
    return sheaf.algebra.multiply(sheaf.algebra.conjugate(sheaf.tail), sheaf.head)


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
    median = interleave(
        {
            "one": lambda: FeaturePropagation(missing, 1)(Data(x, both)),
            "four": lambda: FeaturePropagation(missing, 4)(Data(x, both)),
        },
        2,
    )
    return max(0.0, median["four"] - median["one"]) / 3


def _ratio(median: dict[str, float], name: str) -> float | None:
    return median[name] / median["step"] if name in median else None
