"""Training of large entity tables: the rows of a batch alone, against the whole table.

RotatE with 128 real columns, batches of 1024 triples and 1024 shared candidates, unit rows. "Rows"
is ``sparse=True`` with row-wise Adagrad; "whole" is how version 0.1.0 trains, with Adam and with
the constraint over all rows. Both run in the process of their case, one after the other. Times are
processor times of a step with all that the trainer does, medians of some steps, and memory is
anonymous, beyond what the process holds when a training begins.

The case "epoch" trains one hundredth of an epoch of as many entities and triples as Wikidata5M has.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from benchmarks.benchmark_cases import power_law_multigraph
from benchmarks.cells import Cell, CellStore, add_results_option, run_cells
from benchmarks.command_line import integer, report_errors
from benchmarks.measuring import (
    add_runs,
    anonymous_peak,
    measured_here,
    memory_held,
    summarize,
)
from benchmarks.training import train_plainly
from sheafprop.data import KnowledgeGraph
from sheafprop.data.inductive_data import InductiveData
from sheafprop.training import SheafCompletion

ENTITIES = (250_000, 500_000, 1_000_000, 2_000_000)
EPOCH_ENTITIES, EPOCH_TRIPLES = 4_600_000, 20_000_000
BATCH, CANDIDATES, RELATIONS, WIDTH = 1024, 1024, 500, 128
#: Steps that are timed, and steps before them that are not.
_STEPS, _FIRST = 8, 3
_WAYS: dict[str, dict[str, Any]] = {
    "rows": {"sparse": True, "optimizer": "rowwise_adagrad"},
    "whole": {"sparse": False, "optimizer": "adam"},
}


class _Clock(Callback):
    """Processor times at the start of each step."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any
    ) -> None:
        self.times.append(time.process_time())


def synthetic_data(entities: int, triples: int) -> InductiveData:
    """Triples with a few frequent entities and relations, and an inference graph of two."""
    graph = power_law_multigraph(entities, triples, RELATIONS)
    train = KnowledgeGraph(
        graph.edge_index, graph.edge_type, num_nodes=entities, num_relations=RELATIONS
    )
    small = KnowledgeGraph.from_triples(
        torch.tensor([[0, 0, 1]]), num_nodes=2, num_relations=RELATIONS
    )
    return InductiveData(
        name=f"{entities:,} entities",
        mode="fully-inductive",
        train=train,
        train_valid=None,
        inference=small,
        boundary_mask=torch.zeros(2, dtype=torch.bool),
        boundary_source=torch.full((2,), -1),
        valid=None,
        test=None,
    )


def build_module(way: str, width: int = WIDTH) -> SheafCompletion:
    """The module, trained in one of the two ways."""
    return SheafCompletion(
        kge="rotate",
        hidden_channels=width // 2,
        kge_args={"squared": True},
        loss_args={"scale": 4.0, "label_smoothing": 0.1},
        num_candidates=CANDIDATES,
        lr=0.1,
        **_WAYS[way],
    )


def _train(way: str, entities: int, triples: int, width: int, part: float = 1.0) -> dict[str, Any]:
    """Seconds of a step, of everything, and the peak memory, of a training in this process."""
    clock = _Clock()
    memory_held()  # gives back what was freed
    with anonymous_peak() as peak:
        before, begin = peak(), time.process_time()
        data = synthetic_data(entities, triples)
        limits: dict[str, Any] = {"max_epochs": 1, "limit_train_batches": part}
        train_plainly(build_module(way, width), data, BATCH, callbacks=[clock], **limits)
        found = {"seconds": time.process_time() - begin, "peak_bytes": peak() - before}
    steps = [end - start for start, end in pairwise(clock.times[_FIRST:])]
    return found | {"step": statistics.median(steps), "steps": len(clock.times)}


def measure_step(entities: int, width: int = WIDTH) -> dict[str, Any]:
    """Times and memory of a step in both ways."""
    triples = (_FIRST + _STEPS + 1) * BATCH
    found: dict[str, Any] = {
        **measured_here(),
        "threads": torch.get_num_threads(),
        "batch_size": BATCH,
        "candidates": CANDIDATES,
        "width": width,
    }
    for way in _WAYS:
        run = _train(way, entities, triples, width)
        found |= {f"seconds_{way}": run["step"], f"peak_bytes_{way}": run["peak_bytes"]}
    return found | {"ratio": found["seconds_whole"] / found["seconds_rows"]}


def measure_epoch(entities: int, triples: int, width: int = WIDTH) -> dict[str, Any]:
    """Time and memory of one hundredth of an epoch, from the synthetic triples on."""
    run = _train("rows", entities, triples, width, 0.01)
    return {
        **measured_here(),
        "threads": torch.get_num_threads(),
        "batch_size": BATCH,
        "candidates": CANDIDATES,
        "width": width,
        "triples": triples,
        "steps": run["steps"],
        "seconds_rows": run["step"],
        "seconds_in_all": run["seconds"],
        "peak_bytes_rows": run["peak_bytes"],
    }


def _run_steps(entities: int, width: int, runs: int, *, folder: Path) -> list[dict[str, Any]]:
    return [summarize([measure_step(entities, width) for _ in range(runs)])]


def _run_epoch(entities: int, triples: int, width: int, *, folder: Path) -> list[dict[str, Any]]:
    return [measure_epoch(entities, triples, width)]


def describe(record: dict[str, Any]) -> str:
    """One line on a record."""
    step, peak = 1e3 * record["seconds_rows"], record["peak_bytes_rows"] / 2**30
    line = f"{record['entities']:>9,} entities: {step:.1f} ms a step, {peak:.2f} GiB"
    if record["case"] == "epoch":
        return (
            f"{line}; {record['steps']} steps, {record['seconds_in_all']:.0f} s in all, of "
            f"{record['triples']:,} triples"
        )
    whole, peak = 1e3 * record["seconds_whole"], record["peak_bytes_whole"] / 2**30
    return f"{line}; the whole table {whole:.1f} ms, {peak:.2f} GiB; {record['ratio']:.1f}x"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures the cases and writes the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add, numbers = parser.add_argument, integer(BATCH)
    add("--cases", nargs="+", choices=("step", "epoch"), default=["step", "epoch"], help="(both)")
    add("--entities", nargs="+", type=numbers, default=ENTITIES, help="of the steps")
    add("--epoch-entities", type=numbers, default=EPOCH_ENTITIES, help=f"({EPOCH_ENTITIES})")
    add("--epoch-triples", type=numbers, default=EPOCH_TRIPLES, help=f"({EPOCH_TRIPLES})")
    add("--width", type=integer(2), default=WIDTH, help=f"real columns ({WIDTH})")
    add_results_option(parser, "scale.jsonl")
    add_runs(parser)
    options = parser.parse_args(arguments)
    store = CellStore(options.results, ("case", "entities"), ("seconds_rows", "peak_bytes_rows"))
    with report_errors(parser, "cases that were measured are kept"):
        store.check()
        cells = []
        if "step" in options.cases:
            for n in dict.fromkeys(options.entities):
                key = {"case": "step", "entities": n}
                cells.append(Cell(key, _run_steps, (n, options.width, options.runs)))
        if "epoch" in options.cases:
            key = {"case": "epoch", "entities": options.epoch_entities}
            size = options.epoch_entities, options.epoch_triples, options.width
            cells.append(Cell(key, _run_epoch, size))
        # One after the other, and again: what is measured must have the machine for itself.
        run_cells(cells, store, threads=1, again=True)
        for record in store.records():
            print(describe(record))
