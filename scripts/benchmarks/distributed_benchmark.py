"""Steps of propagation by several processes against one thread, and what a formula predicts.

A graph of communities is cut by METIS and by a hash, or its columns are shared. In one run the
processes take turns with one thread of the first of them, while the others wait; ratios are of
these. Before, each process measures constants on the links and the cores that it has, all at once:

    T = max over ranks of max(c A_in + k m, m) + c A_bd + p b,     m = alpha (P - 1) + b / beta

for A_in entries of rows without halo and A_bd others, c seconds an entry, b bytes received or sent,
p seconds a byte to pack (a part of m where ranks share memory), and k the share of the time of an
exchange in which it needs a core that computes as well (for sockets, 0 where there are more cores
than processes). "estimate" is this formula for machines that are not here.

Under torchrun, the processes that it started, which may be on several hosts, measure their links
alone, and nothing is stored.
"""

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.cells import RESULTS, check_hardware, merge_cases, read_records
from benchmarks.command_line import integer, report_errors
from benchmarks.distributed_cases import (
    MAPS,
    ROUTES,
    Record,
    community_graph,
    measure_cases,
    measure_ceilings,
    measure_links,
)
from benchmarks.measuring import measured_here
from benchmarks.processes import run_plain, run_ranks
from sheafprop.data.partition import hash_partition, metis_partition, partition_costs
from sheafprop.distributed import process_group
from sheafprop.pretrained.mapped.cost_estimate import ENTRY

ENTITIES, TRIPLES, STEPS, ROUNDS = 300_000, 3_000_000, 8, 5
WIDTHS = (64, 128)


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
    constants = [r for r in records if "entry" in r]
    sent = {(r["ranks"], r["split"][7:]): r for r in records if str(r["split"])[:5] == "parts"}
    by_name = {r["name"]: r for r in cases}
    lines = [
        "| ranks | width | maps | split | against one thread | processor time a rank | "
        "sent a rank and step | predicted / measured | for comparison |",
        "|--:|--:|---|---|--:|--:|--:|--:|--:|",
    ]
    for r in cases:
        if r["split"].endswith(", sockets"):
            continue
        low, high = r["ranges"]["ratio"]
        if sockets := by_name.get(f"{r['name']}, sockets"):
            other = f"sockets {sockets['ratio']:.2f}x, {sockets['ratio_predicted']:.2f}"
        else:
            other = f"independent {r['ceiling']:.2f}x"
        predicted = f"{r['ratio_predicted']:.2f}" if "ratio_predicted" in r else ""
        lines.append(
            f"| {r['ranks']} | {r['width']} | {r['maps']} | {r['split']} | {r['ratio']:.2f}x "
            f"({low:.2f} to {high:.2f}) | {r['processor']:.2f} | "
            f"{r['bytes_sent'] / 2**20:.1f} MiB | {predicted} | {other} |"
        )
    where = {f"{r['hardware']}, torch {r['torch']}, commit {r['commit']}" for r in cases}
    lines += ["", f"{'; '.join(sorted(where))}. Constants:", ""]
    lines += ["| ranks | width | ns an entry, identity and complex | by | alpha | beta | share |"]
    lines += ["|--:|--:|---|---|--:|--:|--:|"]
    for r in constants:
        entry = ", ".join(
            f"{1e9 * r['entry'][maps][0][1]:.1f} to {1e9 * r['entry'][maps][1][1]:.1f}"
            for maps in MAPS
        )
        lines += [f"| {r['ranks']} | {r['width']} | {entry} | {text} |" for text in links(r)]
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


def links(constants: Record) -> list[str]:
    """Latency, bandwidth and share of each route as cells of a table."""
    return [
        f"{route} | {1e6 * c['alpha']:.0f} us | {c['beta'] / 1e9:.2f} GB/s | {c['share']:.2f}"
        for route in ROUTES
        for c in (constants[route],)
    ]


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
        if "WORLD_SIZE" in os.environ:
            with process_group() as ranks:
                for width in options.width:
                    found = measure_links(ranks, ENTITIES // ranks.size, width, options.rounds)
                    if ranks.is_first:
                        print(*links(found), f"pack {1e12 * found['pack']:.0f} ps a byte", sep="\n")
            return
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
                given = folder, width, steps, turns
                found = run_ranks(size, measure_cases, *given, 1)
                ceilings = run_plain(size, measure_ceilings, *given)
                for record in found:
                    if record["split"] == "columns":
                        record["ceiling"] = ceilings[record["maps"]]
                records += found
    return records + measure_rows_sent(entities, [8, 64])
