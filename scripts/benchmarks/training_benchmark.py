"""Epochs of training and filtered ranking, against PyKEEN with the same model, loss and batches.

Each library runs in a process of its own, one after the other. Ranks in double precision must be
equal for the same parameters. Ratios are those of processor time, which other programs on the
machine disturb least. Cases that are measured again replace those in the file of results.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.cells import Cell, CellStore, add_results_option, run_cells
from benchmarks.command_line import check_pykeen, report_errors
from benchmarks.measuring import add_runs, in_own_process, measured_here, summarize
from benchmarks.pykeen_baseline import PyKEENBaseline
from benchmarks.transductive import rank, train
from benchmarks.transductive_data import TransductiveData
from sheafprop.training import SheafCompletion

TRAINING: dict[str, dict[str, Any]] = {
    "transe": {"hidden_channels": 64, "loss": "cross_entropy", "lr": 0.01},
    "rotate": {
        "hidden_channels": 64,
        "kge_args": {"entity_constraint": None},
        "loss": "nssa",
        "loss_args": {"margin": 6.0},
        "num_negatives": 32,
        "lr": 0.01,
    },
}
_EPOCHS = 3
#: Queries ranked at once by PyKEEN, its own choice on a CPU and more; the faster one counts.
_PYKEEN_BATCHES = (32, 256)


@dataclass(frozen=True)
class TrainingCase:
    """What is trained and ranked: a model on a part of a data set."""

    dataset: str
    model: str
    batch_size: int
    num_train: int
    num_test: int

    def data(self) -> TransductiveData:
        """The triples."""
        return TransductiveData.load(self.dataset).shorten(self.num_train, self.num_test)

    def module(self) -> SheafCompletion:
        """Our module."""
        return SheafCompletion(kge=self.model, **TRAINING[self.model])  # type: ignore[arg-type]


#: Parts of the data, since an epoch of PyKEEN over all entities takes very long.
CASES = (
    TrainingCase("codex-s", "transe", 512, 4096, 500),
    TrainingCase("codex-s", "rotate", 512, 16384, 500),
    TrainingCase("FB15k-237", "transe", 128, 512, 100),
    TrainingCase("FB15k-237", "rotate", 512, 16384, 100),
)


def measure(case: TrainingCase) -> dict[str, Any]:
    """Times of both libraries in one run and their ratios; ranks are compared on the way.

    Raises:
        AssertionError: If the ranks are not the same.
    """
    ours, state, ranks = in_own_process(_ours, case)
    theirs, other_ranks = in_own_process(_theirs, case, state)
    if ours["threads"] != theirs["threads"]:
        raise AssertionError(f"{case}: {ours['threads']} and {theirs['threads']} threads")
    for side in ("head", "tail"):
        different = int((ranks[side] != other_ranks[side]).sum())
        if different:
            raise AssertionError(f"{case}: {different} ranks of {side}s differ from PyKEEN's")
    found: dict[str, Any] = {
        **measured_here(),
        "threads": ours["threads"],
        "loss": TRAINING[case.model]["loss"],
        "batch_size": case.batch_size,
        "train_triples": case.num_train,
        "test_triples": case.num_test,
        "hidden_channels": TRAINING[case.model]["hidden_channels"],
    }
    for task in ("epoch", "ranking"):
        found |= {
            f"seconds_{task}": ours[task],
            f"seconds_{task}_pykeen": theirs[task],
            f"ratio_{task}": theirs[task] / ours[task],
        }
    return found


def _ours(case: TrainingCase) -> tuple[dict[str, Any], dict[str, Any], dict[str, Tensor]]:
    data, module, clock = case.data(), case.module(), [time.process_time()]
    after_epoch = lambda: clock.append(time.process_time())  # noqa: E731
    model, _ = train(module, data, _EPOCHS, case.batch_size, after_epoch)
    turns = [_process_time(lambda: rank(model, data).metrics("full")) for _ in range(_EPOCHS)]
    seconds = {"epoch": _median(clock), "ranking": statistics.median(turns)}
    seconds["threads"] = torch.get_num_threads()
    state = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    exact = rank(model.double(), data)
    return seconds, state, {"head": exact.ranks("head"), "tail": exact.ranks("tail")}


def _theirs(case: TrainingCase, state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    data, clock = case.data(), [time.process_time()]
    model = case.module().build(data.num_nodes, data.num_relations)
    baseline = PyKEENBaseline(model, data, TRAINING[case.model])
    baseline.train(_EPOCHS, case.batch_size, lambda: clock.append(time.process_time()))
    model.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
    baseline.load(model)
    # The faster batch size counts, by its median.
    turns = [
        [_process_time(partial(baseline.rank, size)) for _ in range(_EPOCHS)]
        for size in _PYKEEN_BATCHES
    ]
    seconds = {"epoch": _median(clock), "ranking": min(map(statistics.median, turns))}
    seconds["threads"] = torch.get_num_threads()
    baseline.model.double()
    baseline.load(model.double())
    return seconds, baseline.rank(_PYKEEN_BATCHES[0])[0]


def _process_time(function: Callable[[], Any]) -> float:
    begin = time.process_time()
    function()
    return time.process_time() - begin


def _median(clock: list[float]) -> float:
    # The first epoch has the preparations in it.
    return statistics.median(end - begin for begin, end in pairwise(clock[1:]))


def run_case(case: TrainingCase, runs: int, *, folder: Path) -> list[dict[str, Any]]:
    """One case, measured several times."""
    return [summarize([measure(case) for _ in range(runs)])]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures the cases and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--datasets", nargs="+", choices=sorted({c.dataset for c in CASES}), help="(all)")
    add("--models", nargs="+", choices=sorted(TRAINING), help="(all)")
    add_results_option(parser, "training.jsonl")
    add_runs(parser)
    options = parser.parse_args(arguments)
    store = CellStore(options.results, ("dataset", "model"), ("ratio_epoch", "ratio_ranking"))
    with report_errors(parser, "cases that were measured are kept"):
        check_pykeen()
        store.check()
        cells = [
            Cell({"dataset": c.dataset, "model": c.model}, run_case, (c, options.runs))
            for c in CASES
            if c.dataset in (options.datasets or c.dataset)
            and c.model in (options.models or c.model)
        ]
        # One after the other, and again: what is measured must have the machine for itself.
        run_cells(cells, store, threads=1, again=True)
        for record in store.records():
            ratios = f"epoch {record['ratio_epoch']:.1f}x, ranking {record['ratio_ranking']:.1f}x"
            print(f"{record['dataset']} {record['model']}: {ratios}")
