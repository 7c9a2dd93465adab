"""The default of ``sheafprop fit`` on plain folders, beside the presets of each data set.

A cell writes a data set as the folder of a user, a whole graph by ``sheafprop split``, and runs the
commands ``fit`` and ``test`` on it, with ``experiment/folder`` or with a preset. Times are those of
the processor: ``fit`` starts, trains, selects and saves, ``test`` ranks the test triples and the
baselines; settings are compared by training and selection, without the start of the command.
Finished cells are in the file of results and are not run again.
"""

import argparse
import json
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Trainer

from benchmarks.cells import Cell, CellStore, add_running_options, combine, run_cells
from benchmarks.command_line import report_errors
from benchmarks.presets import FAMILIES, VERSIONS, completion_config, config_hash
from benchmarks.transductive_data import read_parts
from sheafprop.cli.main import main as sheafprop
from sheafprop.config_files import load_config, merge
from sheafprop.data import build_dataset, write_triples
from sheafprop.data.datasets.folder import FILES
from sheafprop.data.datasets.grail import ENVIRONMENT
from sheafprop.errors import SheafpropError
from sheafprop.hardware import describe_hardware, peak_bytes
from sheafprop.ranking import PROTOCOLS
from sheafprop.report.tables import NOTHING, markdown_table

Record = dict[str, Any]

KEYS = ("dataset", "settings", "seed", "config_hash")
FIELDS = ("hits@10", "mrr", "validation_hits@10", "seconds_fit", "seconds_train", "seconds_test")
#: The default; the same without validation triples of the inference graph; with short episodes; the
#: defaults of before, without the frequency of answers and with one teleport probability, and
#: without proximity; the preset ``best``, and that with episodes and proximity.
SETTINGS = (
    "default",
    "default without validation",
    "default with episodes",
    "default without frequency",
    "default without proximity",
    "preset",
    "preset with episodes",
)
#: The setting that the benchmarks are ranked with under ``merged``, which contains what validates.
MERGED = "default without validation"
#: What the others are compared with.
PRESETS = ("preset", "preset with episodes")
#: The mode of each data set, and the preset it is compared with.
DATASETS = {
    "fb237_v4": ("fully-inductive", "fb237_rotate"),
    "WN18RR_v4": ("fully-inductive", "WN18RR_rotate"),
    "nell_v4": ("fully-inductive", "nell_rotate"),
    "codex-s": ("semi-inductive", "fb237_rotate"),
    "FB15k-237": ("fully-inductive", "fb237_rotate"),
}
#: The benchmarks; those that are not among the data sets have the setting ``MERGED`` alone.
BENCHMARKS = tuple(f"{family}_{version}" for family in FAMILIES for version in VERSIONS)
#: Options of ``sheafprop split`` for a whole graph; the others are splits already.
_SPLIT = {"codex-s": ("--new-fraction", "0.1"), "FB15k-237": ("--max-triples", "170000")}


def config_of(dataset: str, settings: str) -> list[str]:
    """The configurations of a cell, as ``fit`` takes them."""
    if settings.startswith("preset"):
        kind = "episodes" if settings.endswith("episodes") else "best"
        return [f"preset/{kind}/{DATASETS[dataset][1]}", "data/folder"]
    more = ["episodes/folder"] if settings.endswith("with episodes") else []
    return ["experiment/folder", *more, "logger/csv"]


def options_of(dataset: str, settings: str) -> dict[str, Any]:
    """What a cell changes in the section ``model`` of its configurations, by option."""
    if settings == "default without proximity":
        return {"proximity": None}
    if settings == "default without frequency":
        return {"proximity.frequency": 0.0, "proximity.teleport": 0.15}
    family, _, version = dataset.rpartition("_")
    if settings == "preset with episodes" and family in FAMILIES:
        # The weight of proximity is that of the data set.
        near = completion_config("episodes", family, version, "rotate")["model"]["proximity"]
        return {"proximity.weight": near["weight"]}
    return {}


def cells(
    datasets: list[str], settings: list[str], seeds: list[int], root: str | None = None
) -> list[Cell]:
    """The cells of a selection, one seed of all after the other."""
    found = []
    for seed, dataset, name in combine(seeds, datasets, settings):
        if dataset not in DATASETS and name != MERGED:
            continue
        config: dict[str, Any] = {}
        for file in config_of(dataset, name):
            config = merge(config, load_config(file))
        # Defaults of before have the values of the time, as in stored results that are older.
        if name == "default without frequency":
            for option in ("frequency", "teleport"):
                del config["model"]["proximity"][option]
        elif name == "default without proximity":
            del config["model"]["proximity"]
        else:
            config["model"] |= options_of(dataset, name)
        key = {"dataset": dataset, "settings": name, "seed": seed}
        key["config_hash"] = config_hash(config)
        found.append(Cell(key, run_cell, (dataset, name, seed, root)))
    return found


def run_cell(
    dataset: str, settings: str, seed: int, root: str | None = None, *, folder: Path
) -> list[Record]:
    """Runs ``fit`` and ``test`` on the folder of a data set; returns their figures and times.

    Without validation triples in the folder of ``fit``, those of the data set still filter: they
    are in the folder of ``evaluate``, which keeps the run's choice.
    """
    shutil.rmtree(folder, ignore_errors=True)  # what an interrupted cell has left
    import_module("sheafprop.cli.lightning")  # no part of what a command costs
    own, whole = folder / "own" / dataset, folder / "whole" / dataset
    write_folder(whole, dataset, root)
    shutil.copytree(whole, own)
    valid = settings != MERGED
    merged: dict[str, float] = {}
    if not valid:
        (own / FILES["valid"]).unlink()
    runs = folder / "runs"
    words = [word for name in config_of(dataset, settings) for word in ("--config", name)]
    words += ["--data.root", str(own), "--data.mode", _mode(dataset)]
    words += ["--run.group", str(runs), "--run.name", f"seed-{seed}"]
    words += ["--seed_everything", str(seed), "--trainer.accelerator", "cpu"]
    for name, value in options_of(dataset, settings).items():
        words.append(f"--model.{name}={json.dumps(value)}")
    run = runs / f"seed-{seed}"
    with _timed_training() as seconds:
        seconds["seconds_fit"] = _run(folder, "fit", *words)
    if valid:
        seconds["seconds_test"] = _run(folder, "test", "--run", str(run))
        found = json.loads((run / "metrics.json").read_text("utf-8"))
        metrics = found["test"][0]["metrics"]
    else:
        table = folder / "figures.csv"
        where = ["--run", str(run), "--data.root", str(whole), "--out", str(table)]
        protocols = ["full", "merged"] if dataset in BENCHMARKS else ["full"]
        where += [word for protocol in protocols for word in ("--protocol", protocol)]
        seconds["seconds_test"] = _run(folder, "evaluate", *where)
        found = json.loads((run / "metrics.json").read_text("utf-8"))
        metrics = _first_method(table)
        for metric in ("hits@10", "mrr") if "merged" in protocols else ():
            merged[f"merged_{metric}"] = metrics[PROTOCOLS["merged"].key(metric)]
    selection = found["selection"]
    chosen = selection["chosen"]
    (row,) = (
        row
        for row in selection["curve"]
        if all(row[name] == chosen[name] for name in ("start", "step_size", "iterations"))
    )
    return [
        {
            "protocol": "full",
            "hits@10": metrics["hits@10"],
            "mrr": metrics["mrr"],
            **merged,
            "selected_on": selection["on"],
            "validation_hits@10": row["hits@10"],
            "validation_mrr": row["mrr"],
            "validation_triples": selection["count"],
            "start": chosen["start"],
            "iterations": chosen["iterations"],
            "configurations_tried": selection["tried"],
            "proximity": (selection.get("proximity") or {}).get("chosen"),
            "epochs": found["training"]["epochs"],
            "stopped": found["training"]["stopped"],
            **seconds,
            "peak_bytes": peak_bytes(),
            "hardware": describe_hardware(),
            "threads": torch.get_num_threads(),
        }
    ]


@contextmanager
def _timed_training() -> Iterator[dict[str, float]]:
    """Counts the processor time of training, selection and saving, all within ``Trainer.fit``."""
    seconds: dict[str, float] = {}
    fit = Trainer.fit

    def timed(self: Trainer, *arguments: Any, **more: Any) -> None:
        begin = time.process_time()
        fit(self, *arguments, **more)
        seconds["seconds_train"] = round(time.process_time() - begin, 2)

    Trainer.fit = timed  # type: ignore[method-assign]
    try:
        yield seconds
    finally:
        Trainer.fit = fit  # type: ignore[method-assign]


def _run(folder: Path, *words: str) -> float:
    """Runs a command of sheafprop; returns its processor time."""
    begin = time.process_time()
    with (folder / "output.txt").open("a", encoding="utf-8") as file, redirect_stdout(file):
        code = sheafprop(list(words))
    if code:
        raise SheafpropError(f"'sheafprop {words[0]}' ended with {code}: see {folder}/output.txt")
    return round(time.process_time() - begin, 2)


def _first_method(table: Path) -> dict[str, float]:
    """The figures of the first method of a table of ``evaluate``."""
    import pandas as pd

    rows = pd.read_csv(table)
    first = rows[rows["method"] == rows["method"].iloc[0]]
    return dict(zip(first["metric"], first["value"], strict=True))


def write_folder(folder: Path, dataset: str, root: str | None = None) -> None:
    """Writes a data set as the files of a user."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    if dataset in _SPLIT:
        graph = folder.parent / "graph.tsv"
        write_triples(graph, np.concatenate(read_parts(dataset)))
        words = [str(graph), "--out", str(folder), "--mode", _mode(dataset)]
        _run(folder.parent, "split", *words, *_SPLIT[dataset])
        return
    folder.mkdir()
    data = build_dataset("grail", name=dataset, root=root).load()
    sets = {
        "train": (data.train.triples, data.train),
        "train_valid": (data.train_valid, data.train),
        "observed": (data.inference.triples, data.inference),
        "valid": (data.valid, data.inference),
        "test": (data.test, data.inference),
    }
    for key, (triples, graph) in sets.items():
        assert triples is not None
        assert graph.entities is not None
        assert graph.relations is not None
        head, relation, tail = triples.T
        names = [graph.entities.labels_of(head), graph.relations.labels_of(relation)]
        names.append(graph.entities.labels_of(tail))
        write_triples(folder / FILES[key], np.array(names, dtype=object).T)


def default_table(records: Sequence[Record]) -> str:
    """Means over seeds as Markdown, with the difference to the preset on the seeds of both."""
    found: dict[tuple[str, str], dict[int, Record]] = {}
    for record in records:
        if record["dataset"] in DATASETS:
            found.setdefault((record["dataset"], record["settings"]), {})[record["seed"]] = record
    rows = []
    for (dataset, settings), own in sorted(found.items(), key=lambda item: _place(*item[0])):
        every = own.values()
        cells = [dataset, settings, str(len(own))]
        cells.append(f"{100 * _mean(every, 'hits@10'):.1f} ({_mean(every, 'mrr'):.3f})")
        shares = []
        for preset in PRESETS:
            best = found.get((dataset, preset), {})
            both = [seed for seed in own if seed in best]
            points = share = NOTHING
            if not settings.startswith("preset") and both:
                ours, theirs = ([part[s] for s in both] for part in (own, best))
                gain = _mean(ours, "hits@10") - _mean(theirs, "hits@10")
                ratio = _mean(ours, "seconds_train") / _mean(theirs, "seconds_train")
                points, share = f"{100 * gain:+.1f}", f"{ratio:.2f}"
            cells.append(points)
            shares.append(share)
        cells += [f"{_mean(every, 'seconds_train'):.0f} s", *shares]
        cells += [f"{_mean(every, f'seconds_{name}'):.0f} s" for name in ("fit", "test")]
        rows.append(cells)
    header = ["data set", "settings", "seeds", "Hits@10 (MRR)", "against the preset"]
    header += ["against that with episodes", "train and select", "of the preset's"]
    header += ["of that with episodes", "`fit`", "`test`"]
    return markdown_table(header, rows, "ll" + "r" * 9)


def merged_table(records: Sequence[Record]) -> str:
    """Means over seeds of the benchmarks under ``merged``, without validation triples."""
    ranked = [r for r in records if r["settings"] == MERGED and "merged_mrr" in r]
    rows = []
    for family in FAMILIES:
        of_family = [r for r in ranked if r["dataset"].startswith(f"{family}_")]
        cells = [family]
        for version in VERSIONS:
            own = [r for r in of_family if r["dataset"] == f"{family}_{version}"]
            hits, mrr = (
                _mean(own, f"merged_{name}") if own else 0.0 for name in ("hits@10", "mrr")
            )
            cells.append(f"{100 * hits:.1f} ({mrr:.3f})" if own else NOTHING)
        longest = max((r["seconds_train"] for r in of_family), default=0.0)
        cells.append(f"{longest:.0f} s" if of_family else NOTHING)
        rows.append(cells)
    header = ["merged", *VERSIONS, "train and select, at most"]
    return markdown_table(header, rows, "l" + "r" * 5)


def _mode(dataset: str) -> str:
    return DATASETS[dataset][0] if dataset in DATASETS else "fully-inductive"


def _place(dataset: str, settings: str) -> tuple[int, int]:
    return list(DATASETS).index(dataset), SETTINGS.index(settings)


def _mean(records: Collection[Record], name: str) -> float:
    return sum(float(record[name]) for record in records) / len(records)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    known = [*DATASETS, *(name for name in BENCHMARKS if name not in DATASETS)]
    add("--dataset", nargs="+", choices=known, default=list(DATASETS), help="data sets "
        f"({', '.join(DATASETS)}); the others have '{MERGED}' alone")  # fmt: skip
    add("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS), help="settings (all)")
    add("--seeds", nargs="+", type=int, default=[0], help="seeds (0)")
    add("--data", help=f"folder of the GraIL benchmarks (default: {ENVIRONMENT}); the others are "
        f"always of {ENVIRONMENT}")  # fmt: skip
    add_running_options(parser, "defaults.jsonl")
    add("--report", action="store_true", help="print what is stored, run nothing")
    options = parser.parse_args(arguments)
    store = CellStore(options.results, KEYS, FIELDS)
    with report_errors(parser, "finished cells are kept, and the same command goes on"):
        store.check()
        if not options.report:
            chosen = (options.dataset, options.settings, options.seeds)
            limits = {"jobs": options.jobs, "threads": options.threads, "again": options.again}
            run_cells(cells(*chosen, options.data), store, **limits)
        print(default_table(store.records()), merged_table(store.records()), sep="\n\n")
