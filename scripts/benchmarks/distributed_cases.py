"""Cases of :mod:`benchmarks.distributed_benchmark`: steps by several processes."""

import math
import os
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.benchmark_cases import STEP_SIZE, make_features, make_sheaf
from benchmarks.processes import Clock, Plain, Together
from sheafprop.distributed import PartitionedGraph, PartitionedPlan, Ranks
from sheafprop.distributed.halo_exchange import HaloExchange
from sheafprop.sheaf import PropagationPlan
from sheafprop.sheaf.graph_checks import GraphInput
from sheafprop.sheaf.row_plan import count_rows, needs_labels

MAPS = ("identity", "diagonal")
#: How rows reach another rank: by memory that both map, or by the process group.
ROUTES = ("memory", "sockets")
_RELATIONS, _COMMUNITY = 200, 100
Record = dict[str, Any]


def community_graph(
    num_nodes: int, num_triples: int, mixing: float, *, power: float = 1.0, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Heads and tails ``[2, E]`` and relations; a share ``mixing`` of the tails is drawn anywhere.

    Within communities of 100 vertices and among them, ranks are drawn as a power of uniform
    numbers: a power of 1 gives about equal degrees, larger ones a long tail. Ids are shuffled.
    """
    rng = np.random.default_rng(seed)

    def draw(size: int) -> np.ndarray:
        return (rng.random(num_triples) ** power * size).astype(np.int64)

    count = num_nodes // _COMMUNITY
    own = draw(count)
    head, tail = own * _COMMUNITY + draw(_COMMUNITY), own * _COMMUNITY + draw(_COMMUNITY)
    far = rng.random(num_triples) < mixing
    tail = np.where(far, draw(num_nodes), tail)
    tail = np.where(head == tail, (tail + 1) % num_nodes, tail)
    return rng.permutation(num_nodes)[np.stack([head, tail])], rng.integers(
        _RELATIONS, size=num_triples
    )


# Constants ---------------------------------------------------------------------------------------


def measure_constants(
    ranks: Ranks, entities: int, triples: int, width: int, rounds: int
) -> dict[str, Any]:
    """The constants of the formula, by all ranks at once."""
    found: dict[str, Any] = {"entry": {}}
    clock, size = Clock(ranks), ranks.size
    for maps in MAPS:
        lines = []
        # As many own rows as there will be, with few and with many rows of others behind them.
        for rows in (entities // size, entities):
            edges, kinds = community_graph(rows, rows * triples // entities, 1.0)
            sheaf, x = make_sheaf(maps, _RELATIONS, width), make_features(maps, rows, width)
            plan = PropagationPlan(
                torch.from_numpy(edges), torch.from_numpy(kinds), sheaf, rows, dtype=x.dtype
            )
            steps, times = _Steps(plan, x), []
            for _ in range(rounds):
                with clock.measure() as spent:
                    steps.run(1)
                times.append(spent[0])
            lines.append([rows, statistics.median(times) / (2 * edges.shape[1])])
        found["entry"][maps] = lines
    return found | measure_links(ranks, max(2048, entities // size), width, rounds)


def measure_links(ranks: Ranks, rows: int, width: int, rounds: int) -> dict[str, Any]:
    """What exchanging costs: by each route ``alpha``, ``beta`` and ``share``, and ``pack``."""
    source = torch.zeros(rows, width)
    found: dict[str, Any] = {}
    index = torch.randperm(rows)[: rows // 2].sort().values
    packed = source[index]
    found["pack"] = _median(
        ranks, rounds, lambda: torch.index_select(source, 0, index, out=packed)
    )[0] / (packed.numel() * 4)
    for route in ROUTES:
        ranks.shares_memory = route == "memory"
        sizes, times, share = (16, rows // 2), [], 0.0
        for count in sizes:
            counts = [count * (rank != ranks.rank) for rank in range(ranks.size)]
            sent = [index[:some] for some in counts]
            exchange = HaloExchange(ranks, sent, counts, rows)
            buffer = torch.zeros(rows + sum(counts), width)
            wall, cpu = _median(ranks, 4 * rounds, partial(exchange.run, buffer))
            if route == "sockets":
                # By memory, packing is all but a copy of what is done.
                wall -= found["pack"] * sum(counts) * width * 4
            times.append(max(wall, 1e-9))
            share = min(1.0, cpu / times[-1])
        bytes_sent = [count * (ranks.size - 1) * width * 4 for count in sizes]
        slope = max(times[1] - times[0], 1e-9) / (bytes_sent[1] - bytes_sent[0])
        found[route] = {
            "alpha": max(0.0, times[0] - bytes_sent[0] * slope) / (ranks.size - 1),
            "beta": 1 / slope,
            # Where cores are left, they do what is under way.
            "share": share if route == "memory" or (os.cpu_count() or 1) <= ranks.size else 0.0,
        }
    ranks.shares_memory = True
    return found


def _median(ranks: Ranks, rounds: int, run: Callable[[], Any]) -> list[float]:
    """Wall and processor seconds, the first time left out."""
    clock, spent_here = Clock(ranks), []
    for _ in range(rounds + 1):
        with clock.measure() as spent:
            run()
        spent_here.append(spent)
    return [statistics.median(values) for values in zip(*spent_here[1:], strict=True)]


def entry_seconds(constants: Record, maps: str, rows: int) -> float:
    """Seconds an entry among so many rows, by the logarithm between what was measured."""
    (small, low), (large, high) = constants["entry"][maps]
    share = math.log(max(rows, 1) / small) / math.log(large / small) if large > small else 0.0
    return low + min(max(share, 0.0), 1.0) * (high - low)


def predict(
    ranks: Ranks, constants: Record, maps: str, graph: PartitionedGraph, row: int, route: str
) -> float:
    """Seconds of a step by the formula."""
    rows = graph.rows(_RELATIONS, merge=maps == "identity", ends=False, dtype=torch.float32)
    start = rows.free.start
    inner = int(start[graph.num_interior])
    outer = int(start[-1]) - inner
    c, link = entry_seconds(constants, maps, graph.num_free + graph.num_halo), constants[route]
    sent = graph.exchange.num_sent * row
    most = max(sent, graph.num_halo * row)
    message = link["alpha"] * (ranks.size - 1) + most / link["beta"]
    seconds = max(c * inner + link["share"] * message, message) + c * outer
    if route == "sockets":
        seconds += constants["pack"] * sent
    return float(ranks.all_reduce(torch.tensor(seconds), "max"))


# Cases -------------------------------------------------------------------------------------------


def measure_cases(
    ranks: Ranks, folder: Path, width: int, steps: int, rounds: int, threads: int
) -> list[Record]:
    """Constants, then all cases, each in turns with one thread of the first rank."""
    edges, kinds, nodes = _load(folder)
    constants = measure_constants(ranks, nodes, len(kinds), width, rounds)
    records = []
    for maps in MAPS:
        sheaf, x = make_sheaf(maps, _RELATIONS, width), make_features(maps, nodes, width)
        whole = _whole(ranks, edges, kinds, maps, width)

        def about(split: str, maps: str = maps) -> Record:
            return {
                "name": f"{ranks.size} ranks, {maps}, width {width}, {split}",
                "ranks": ranks.size,
                "maps": maps,
                "split": split,
                "entities": nodes,
                "triples": len(kinds),
                "width": width,
                "threads": threads,
                "runs": rounds,
            }

        times = _take_turns(ranks, whole, _columns(ranks, edges, kinds, maps, width), steps, rounds)
        records.append(about("columns") | {"rows_sent": 0.0, "bytes_sent": 0} | times)
        for split in ("metis", "hash"):
            assignment = torch.from_numpy(np.load(folder / f"{split}-{ranks.size}.npy"))
            for route in ROUTES:
                ranks.shares_memory = route == "memory"
                graph = PartitionedGraph.of_triples(ranks, edges, kinds, assignment)
                plan = PartitionedPlan(graph, sheaf, dtype=x.dtype)
                shared = _Steps(plan, x[graph.owned])
                row = x[:1].numel() * x.element_size()
                predicted = predict(ranks, constants, maps, graph, row, route)
                times = _take_turns(ranks, whole, shared, steps, rounds)
                exchange = graph.exchange
                sent = torch.tensor(exchange.bytes_sent // exchange.rounds)
                record = {
                    "bytes_sent": int(ranks.all_reduce(sent, "max")),
                    "rows_sent": int(ranks.all_reduce(torch.tensor(graph.num_halo))) / nodes,
                    "predicted": predicted,
                    "ratio_predicted": predicted / times["seconds"],
                }
                by = "" if route == "memory" else f", {route}"
                records.append(about(f"{split}{by}") | record | times)
            ranks.shares_memory = True
    name = f"{ranks.size} ranks, width {width}, constants"
    constants |= {"name": name, "ranks": ranks.size, "split": None}
    return [constants | {"width": width, "threads": threads}, *records]


def measure_ceilings(
    plain: Plain, folder: Path, width: int, steps: int, rounds: int
) -> dict[str, float]:
    """By maps, the ratio of processes that each step some columns and know nothing of each other.

    Those that share the columns cannot do better on this machine.
    """
    edges, kinds, _ = _load(folder)
    found = {}
    for maps in MAPS:
        whole = _whole(plain, edges, kinds, maps, width)
        times = _take_turns(plain, whole, _columns(plain, edges, kinds, maps, width), steps, rounds)
        found[maps] = times["ratio"]
    return found


def _load(folder: Path) -> tuple[Tensor, Tensor, int]:
    edges, kinds = (
        torch.from_numpy(np.load(folder / f"{name}.npy")) for name in ("edges", "kinds")
    )
    return edges, kinds, int(edges.max()) + 1


def _whole(ranks: Together, edges: Tensor, kinds: Tensor, maps: str, width: int) -> "_Steps | None":
    """Steps of one process, on the first rank."""
    if not ranks.is_first:
        return None
    nodes = int(edges.max()) + 1
    sheaf, x = make_sheaf(maps, _RELATIONS, width), make_features(maps, nodes, width)
    return _Steps(PropagationPlan(edges, kinds, sheaf, nodes, dtype=x.dtype), x)


def _columns(ranks: Together, edges: Tensor, kinds: Tensor, maps: str, width: int) -> "_Steps":
    """Steps of this rank's columns of all entities."""
    nodes = int(edges.max()) + 1
    sheaf, x = make_sheaf(maps, _RELATIONS, width), make_features(maps, nodes, width)
    some = slice(x.shape[2] * ranks.rank // ranks.size, x.shape[2] * (ranks.rank + 1) // ranks.size)
    mask = torch.zeros(nodes, dtype=torch.bool)
    rows, _ = count_rows(
        GraphInput(edges, kinds, sheaf, boundary_mask=mask),
        labels=needs_labels(sheaf, "block"),
        dtype=torch.float32,
    )
    plan = PropagationPlan.from_rows(rows, sheaf, columns=some, dtype=x.dtype)
    return _Steps(plan, x[:, :, some].contiguous())


class _Steps:
    """Steps that go on from each other. The first two, which compile and make the two tensors that
    the others write into, are run here."""

    def __init__(self, plan: PropagationPlan, x: Tensor):
        self._plan, self._constant = plan, plan.constant(x)
        self._last = plan.step(x, self._constant, STEP_SIZE)
        self._spare = plan.step(self._last, self._constant, STEP_SIZE)

    def run(self, count: int) -> None:
        for _ in range(count):
            done = self._plan.step(self._last, self._constant, STEP_SIZE, self._spare)
            self._last, self._spare = done, self._last


def _take_turns(
    ranks: Together, alone: _Steps | None, shared: _Steps, steps: int, rounds: int
) -> Record:
    """Seconds of a step by one thread and by all ranks, and the ratio of each round."""
    clock = Clock(ranks)
    walls, ratios, shares = [], [], []
    for _ in range(rounds):
        with clock.measure(steps) as one:
            if alone is not None:
                alone.run(steps)
        with clock.measure(steps) as several:
            shared.run(steps)
        walls.append((one[0], several[0]))
        ratios.append(one[0] / several[0])
        shares.append(several[1] / one[1])
    ranges = {"ratio": [min(ratios), max(ratios)], "processor": [min(shares), max(shares)]}
    return {
        "seconds_alone": statistics.median(w for w, _ in walls),
        "seconds": statistics.median(w for _, w in walls),
        "ratio": statistics.median(ratios),
        "processor": statistics.median(shares),
        "ranges": ranges,
    }
