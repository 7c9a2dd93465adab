"""Steps of propagation by several processes against one thread, and what a formula predicts.

A graph of communities is cut by METIS and by a hash, or its columns are shared. In one run the
processes take turns with one thread of the first of them, while the others wait; ratios are of
these. Before, each process measures constants on the links and the cores that it has, all at once:

    T = max over ranks of max(c A_in + k m, m) + c A_bd + p b,     m = alpha (P - 1) + b / beta

for A_in entries of rows without halo and A_bd others, c seconds an entry, b bytes received or sent,
p seconds a byte to pack, and k the share of the time of an exchange in which it needs a core that
computes as well (0 where there are more cores than processes). "estimate" is this formula for
machines that are not here.
"""

import argparse
import math
import multiprocessing
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.benchmark_cases import STEP_SIZE, make_features, make_sheaf
from benchmarks.cells import RESULTS, check_hardware, merge_cases, read_records
from benchmarks.command_line import integer, report_errors
from benchmarks.measuring import measured_here
from sheafprop.data.partition import hash_partition, metis_partition, partition_costs
from sheafprop.distributed import PartitionedGraph, PartitionedPlan, Ranks, process_group
from sheafprop.pretrained.mapped.cost_estimate import ENTRY
from sheafprop.sheaf import PropagationPlan
from sheafprop.sheaf.graph_checks import GraphInput
from sheafprop.sheaf.row_plan import count_rows, needs_labels

ENTITIES, TRIPLES, STEPS, ROUNDS = 300_000, 3_000_000, 8, 5
WIDTHS = (64, 128)
MAPS = ("identity", "diagonal")
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


# Processes ---------------------------------------------------------------------------------------


def run_ranks(size: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """What ``function(ranks, *arguments)`` returns on rank 0 of new processes of one thread."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    started = [
        context.Process(target=_rank, args=(rank, size, port, there, function, arguments))
        for rank in range(size)
    ]
    for process in started:
        process.start()
    there.close()
    try:
        return here.recv()
    except EOFError:
        raise RuntimeError("a process ended without a result") from None
    finally:
        for process in started:
            process.join()


def _rank(
    rank: int, size: int, port: int, pipe: Any, function: Callable[..., Any], arguments: Any
) -> None:
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    os.environ |= {name: str(value) for name, value in numbers.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    with process_group(timeout=3600) as ranks, torch.no_grad():
        found = function(ranks, *arguments)
        if rank == 0:
            pipe.send(found)


class Clock:
    """Wall and processor seconds of a block that all ranks begin together, the largest of them."""

    def __init__(self, ranks: Ranks):
        self._ranks = ranks

    @contextmanager
    def measure(self, steps: int = 1) -> Iterator[list[float]]:
        """Puts both, for each of some steps, into the list that it yields."""
        found: list[float] = []
        self._ranks.barrier()
        begin, cpu = time.perf_counter(), time.process_time()
        yield found
        spent = torch.tensor([time.perf_counter() - begin, time.process_time() - cpu])
        found += (self._ranks.all_reduce(spent, "max") / steps).tolist()


# Constants ---------------------------------------------------------------------------------------


def measure_constants(
    ranks: Ranks, entities: int, triples: int, width: int, rounds: int
) -> dict[str, Any]:
    """The constants of the formula, by all ranks at once."""
    clock, size = Clock(ranks), ranks.size
    found: dict[str, Any] = {"entry": {}}
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
    row = torch.zeros(1, width)
    times, shares = [], []
    sizes = (16, max(1024, entities // size // 2))
    for count in sizes:
        sending, into = (row.repeat(count * (size - 1), 1) for _ in range(2))
        counts = [count * (rank != ranks.rank) for rank in range(size)]
        spent_here = []
        for _ in range(4 * rounds + 1):
            with clock.measure() as spent:
                ranks.exchange(into, sending, received=counts, sent=counts, most=count)
            spent_here.append(spent)
        pairs = zip(*spent_here[1:], strict=True)
        wall, cpu = (statistics.median(values) for values in pairs)
        times.append(wall)
        shares.append(cpu / wall)
    sent = [count * (size - 1) * width * 4 for count in sizes]
    slope = max(times[1] - times[0], 1e-9) / (sent[1] - sent[0])
    found["beta"] = 1 / slope
    found["alpha"] = max(0.0, times[0] - sent[0] * slope) / (size - 1)
    found["share"] = min(1.0, shares[1]) if (os.cpu_count() or 1) <= size else 0.0
    source = torch.zeros(entities // size, width)
    index = torch.randint(len(source), (sizes[1],))
    packed, packs = source[index], []
    for _ in range(rounds):
        with clock.measure() as spent:
            torch.index_select(source, 0, index, out=packed)
        packs.append(spent[0])
    found["pack"] = statistics.median(packs) / (sizes[1] * width * 4)
    return found


def entry_seconds(constants: Record, maps: str, rows: int) -> float:
    """Seconds an entry among so many rows, by the logarithm between what was measured."""
    (small, low), (large, high) = constants["entry"][maps]
    share = math.log(max(rows, 1) / small) / math.log(large / small) if large > small else 0.0
    return low + min(max(share, 0.0), 1.0) * (high - low)


def predict(ranks: Ranks, constants: Record, maps: str, graph: PartitionedGraph, row: int) -> float:
    """Seconds of a step by the formula."""
    rows = graph.rows(_RELATIONS, merge=maps == "identity", ends=False, dtype=torch.float32)
    start = rows.free.start
    inner = int(start[graph.num_interior])
    outer = int(start[-1]) - inner
    c = entry_seconds(constants, maps, graph.num_free + graph.num_halo)
    sent = graph.exchange.num_sent * row
    most = max(sent, graph.num_halo * row)
    message = constants["alpha"] * (ranks.size - 1) + most / constants["beta"]
    hidden = max(c * inner + constants["share"] * message, message)
    seconds = torch.tensor(hidden + c * outer + constants["pack"] * sent)
    return float(ranks.all_reduce(seconds, "max"))


# Cases -------------------------------------------------------------------------------------------


def measure_cases(
    ranks: Ranks, folder: Path, width: int, steps: int, rounds: int, threads: int
) -> list[Record]:
    """Constants, then all cases, each in turns with one thread of the first rank."""
    edges = torch.from_numpy(np.load(folder / "edges.npy"))
    kinds = torch.from_numpy(np.load(folder / "kinds.npy"))
    nodes = int(edges.max()) + 1
    constants = measure_constants(ranks, nodes, len(kinds), width, rounds)
    records = []
    for maps in MAPS:
        sheaf, x = make_sheaf(maps, _RELATIONS, width), make_features(maps, nodes, width)
        whole = None
        if ranks.is_first:
            whole = _Steps(PropagationPlan(edges, kinds, sheaf, nodes, dtype=x.dtype), x)
        for split in ("columns", "metis", "hash"):
            about: Record = {"predicted": None, "rows_sent": 0.0}
            if split == "columns":
                columns = (
                    x.shape[2] * ranks.rank // ranks.size,
                    x.shape[2] * (ranks.rank + 1) // ranks.size,
                )
                some = slice(*columns)
                mask = torch.zeros(nodes, dtype=torch.bool)
                rows, _ = count_rows(
                    GraphInput(edges, kinds, sheaf, boundary_mask=mask),
                    labels=needs_labels(sheaf, "block"),
                    dtype=torch.float32,
                )
                plan = PropagationPlan.from_rows(rows, sheaf, columns=some, dtype=x.dtype)
                graph, shared = None, _Steps(plan, x[:, :, some].contiguous())
            else:
                assignment = torch.from_numpy(np.load(folder / f"{split}-{ranks.size}.npy"))
                graph = PartitionedGraph.of_triples(ranks, edges, kinds, assignment)
                plan = PartitionedPlan(graph, sheaf, dtype=x.dtype)
                shared = _Steps(plan, x[graph.owned])
                row = x[:1].numel() * x.element_size()
                about["predicted"] = predict(ranks, constants, maps, graph, row)
                sent = torch.tensor(graph.num_halo)
                about["rows_sent"] = int(ranks.all_reduce(sent)) / nodes
            times = _take_turns(ranks, whole, shared, steps, rounds)
            bytes_sent = 0 if graph is None else graph.exchange.bytes_sent
            rounds_run = 0 if graph is None else graph.exchange.rounds
            sent = torch.tensor(bytes_sent // max(1, rounds_run))
            records.append(
                {
                    "name": f"{ranks.size} ranks, {maps}, width {width}, {split}",
                    "ranks": ranks.size,
                    "maps": maps,
                    "split": split,
                    "entities": nodes,
                    "triples": len(kinds),
                    "width": width,
                    "bytes_sent": int(ranks.all_reduce(sent, "max")),
                    "threads": threads,
                    "runs": rounds,
                    **about,
                    **times,
                }
            )
    for record in records:
        if record["predicted"]:
            record["ratio_predicted"] = record["predicted"] / record["seconds"]
    name = f"{ranks.size} ranks, width {width}, constants"
    constants |= {"name": name, "ranks": ranks.size, "split": None}
    return [constants | {"width": width, "threads": threads}, *records]


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
    ranks: Ranks, alone: _Steps | None, shared: _Steps, steps: int, rounds: int
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


# Estimates ---------------------------------------------------------------------------------------


def measure_rows_sent(entities: int, parts: Sequence[int]) -> list[Record]:
    """Rows that a long-tailed graph of 6.6 facts an entity sends, without a run."""
    edges, _ = community_graph(entities, 66 * entities // 10, 0.3, power=2.0)
    records = []
    for count in parts:
        for method in ("metis", "hash"):
            partition = (
                metis_partition(edges, entities, count)
                if method == "metis"
                else hash_partition(entities, count)
            )
            costs = partition_costs(edges, partition)
            at_head, at_tail = partition.assignment[edges]
            meets = np.zeros(entities, bool)
            meets[edges[:, at_head != at_tail]] = True
            degree = np.bincount(edges.ravel(), minlength=entities)
            records.append(
                {
                    "name": f"{count} parts, {method}, rows sent",
                    "ranks": count,
                    "split": f"parts: {method}",
                    "cut": costs.cut,
                    "rows_sent": costs.rows_sent,
                    "balance": costs.balance,
                    "inner": float(degree[~meets].sum() / degree.sum()),
                    "entities": entities,
                    "triples": edges.shape[1],
                    "threads": 1,
                }
            )
    return records


def estimate_step(
    entities: float, triples: float, width: int, machines: int, parts: Record, gigabytes: float
) -> tuple[float, float, float]:
    """Seconds, bytes received and bytes of memory of a machine of 16 cores, which are worth 10, in
    a step of identity maps by entities, with all cores but those of the exchange (k = 0); by
    columns where no rows are sent."""
    a, b = ENTRY["identity"][1]
    rows_sent = parts["rows_sent"]
    if not rows_sent:
        columns = width / machines
        seconds = 2 * triples * (a + b * columns) * 1e-9 / 10
        return seconds, 0.0, 7 * 2 * triples + 12 * entities + 8 * entities * columns
    received = rows_sent * entities / machines * 4 * width
    computing = 2 * triples / machines * (a + b * width) * 1e-9 / 10
    memory = 96 * 2 * triples / machines + (1 + rows_sent) * entities / machines * 16 * width
    inner, message = parts["inner"] * computing, received / (gigabytes * 1e9)
    seconds = max(inner, message) + computing - inner + parts["pack"] * received / 10
    return seconds, received, memory


# Command -----------------------------------------------------------------------------------------

_MARKS = "<!-- measured by bench_distributed -->", "<!-- end -->"


def tables(records: Sequence[Record]) -> str:
    """What was measured and estimated, as Markdown."""
    cases = [r for r in records if r.get("ratio")]
    constants = [r for r in records if "beta" in r]
    sent = {(r["ranks"], r["split"][7:]): r for r in records if str(r["split"])[:5] == "parts"}
    lines = [
        "| ranks | width | maps | split | against one thread | processor time a rank | "
        "sent a rank and step | predicted / measured |",
        "|--:|--:|---|---|--:|--:|--:|--:|",
    ]
    for r in cases:
        predicted = f"{r['ratio_predicted']:.2f}" if r.get("ratio_predicted") else ""
        low, high = r["ranges"]["ratio"]
        lines.append(
            f"| {r['ranks']} | {r['width']} | {r['maps']} | {r['split']} | {r['ratio']:.2f}x "
            f"({low:.2f} to {high:.2f}) | {r['processor']:.2f} | "
            f"{r['bytes_sent'] / 2**20:.1f} MiB | {predicted} |"
        )
    where = {f"{r['hardware']}, torch {r['torch']}, commit {r['commit']}" for r in cases}
    lines += ["", f"{'; '.join(sorted(where))}. Constants:", ""]
    lines += ["| ranks | width | ns an entry, identity and complex | alpha | beta | pack | share |"]
    lines += ["|--:|--:|---|--:|--:|--:|--:|"]
    for r in constants:
        entry = ", ".join(
            f"{1e9 * r['entry'][maps][0][1]:.1f} to {1e9 * r['entry'][maps][1][1]:.1f}"
            for maps in MAPS
        )
        lines.append(
            f"| {r['ranks']} | {r['width']} | {entry} | {1e6 * r['alpha']:.0f} us | "
            f"{r['beta'] / 1e9:.2f} GB/s | {1e12 * r['pack']:.0f} ps a byte | {r['share']:.2f} |"
        )
    lines += [
        "",
        "Estimated, for 91.2 M entities, 601 M facts, 128 float32 columns, identity maps, machines "
        "of 16 cores that are worth 10, links of 10 / 100 Gbit (1.1 / 11 GB/s), none of it run:",
        "",
        "| machines | split | s a step | received a machine and step | memory a machine |",
        "|--:|---|--:|--:|--:|",
    ]
    graph = 91.2e6, 601e6, 128
    for machines in (8, 64):
        kinds: list[tuple[str, Record]] = [("columns", {"rows_sent": 0.0})]
        for method in ("metis", "hash"):
            if (parts := sent.get((machines, method))) is not None:
                name = f"{method}, {parts['rows_sent']:.2f} rows an entity"
                kinds.append((name, parts | {"pack": constants[0]["pack"]}))
        for name, parts in kinds:
            slow, received, memory = estimate_step(*graph, machines, parts, 1.1)
            fast = estimate_step(*graph, machines, parts, 11)[0]
            seconds = f"{slow:.1f}" if slow == fast else f"{slow:.1f} / {fast:.1f}"
            lines.append(
                f"| {machines} | {name} | {seconds} | {received / 1e9:.1f} GB | "
                f"{memory / 1e9:.0f} GB |"
            )
    return "\n".join(lines)


def write_docs(path: Path, text: str) -> None:
    """Puts a text between the marks of a page."""
    page = path.read_text("utf-8")
    begin = page.index(_MARKS[0]) + len(_MARKS[0])
    end = page.index(_MARKS[1], begin)
    path.write_text(f"{page[:begin]}\n\n{text}\n\n{page[end:]}", "utf-8")


def main(words: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=integer(2), nargs="+", default=[2, 4])
    parser.add_argument("--width", type=integer(4), nargs="+", default=WIDTHS, help="real columns")
    parser.add_argument("--rounds", type=integer(1), default=ROUNDS)
    parser.add_argument("--quick", action="store_true", help="a hundredth of the graph, one round")
    parser.add_argument("--json", type=Path, default=RESULTS / "distributed.jsonl")
    parser.add_argument("--docs", type=Path, help="put the tables of the results into this page")
    options = parser.parse_args(words)
    with report_errors(parser):
        here = measured_here()
        if not options.quick:
            check_hardware(options.json, here["hardware"])
        records = measure(options.ranks, options.width, options.quick, options.rounds)
        records = [record | here for record in records]
        if not options.quick:
            merge_cases(options.json, records)
            records = read_records(options.json)
        text = tables(records)
        print(text)
        if options.docs:
            write_docs(options.docs, text)


def measure(sizes: Sequence[int], widths: Sequence[int], quick: bool, rounds: int) -> list[Record]:
    """All records, without where they were measured."""
    part, steps = (100, 2) if quick else (1, STEPS)
    entities, triples = ENTITIES // part, TRIPLES // part
    records = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        edges, kinds = community_graph(entities, triples, 0.2)
        edges[:, 0] = entities - 1, 0
        np.save(folder / "edges.npy", edges)
        np.save(folder / "kinds.npy", kinds)
        for size in sizes:
            by = {"metis": metis_partition(edges, entities, size)}
            by["hash"] = hash_partition(entities, size)
            for name, partition in by.items():
                np.save(folder / f"{name}-{size}.npy", partition.assignment)
            turns = 1 if quick else rounds
            for width in widths:
                records += run_ranks(size, measure_cases, folder, width, steps, turns, 1)
    return records + measure_rows_sent(entities, [8, 64])
