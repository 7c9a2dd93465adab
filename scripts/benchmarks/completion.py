"""Inductive completion on the GraIL benchmarks: train, propagate, rank, one cell at a time.

A cell is a data set, a model, a preset and a seed; the edge-type heuristic of a data set is one,
too. Finished cells are in the file of results and are not run again; an interrupted run goes on
where it was.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cells import Cell, CellStore, add_running_options, combine, run_cells
from benchmarks.command_line import report_errors
from benchmarks.completion_cell import heuristic_records, run_cell
from benchmarks.episode_cell import proximity_records, run_episode_cell
from benchmarks.presets import (
    EPISODES,
    FAMILIES,
    FORMER,
    MODELS,
    PRESETS,
    VARIANTS,
    VERSIONS,
    WITH_EPISODES,
    completion_config,
    config_hash,
)
from benchmarks.tables.completion_tables import completion_report, completion_table
from sheafprop.data import build_dataset
from sheafprop.ranking.edge_type_heuristic import HEURISTIC

#: Starts without propagation have a name of their own as their model, which the hash tells as well.
KEYS = ("dataset", "preset", "seed", "config_hash")
FIELDS = ("model", "protocol", "hits@10", "mrr")


def cells(
    families: Sequence[str],
    versions: Sequence[str],
    models: Sequence[str],
    presets: Sequence[str],
    seeds: Sequence[int],
    root: str | None = None,
) -> list[Cell]:
    """The cells of a selection, one seed of all after the other; what is named twice, once."""
    found = []
    axes = (seeds, presets, versions, families, models)
    for seed, preset, version, family, model in combine(*axes):
        if preset == "paper" and family == "nell":
            continue  # the paper has no settings for it
        if family not in VARIANTS.get(preset, WITH_EPISODES):
            continue  # it has none
        if model not in (WITH_EPISODES[family] if preset in EPISODES else MODELS):
            continue
        config = completion_config(preset, family, version, model)
        key = {"dataset": f"{family}_{version}", "model": model, "preset": preset, "seed": seed}
        key["config_hash"] = config_hash(config)
        if preset in EPISODES:
            del key["model"]  # a record for each method
            # Propagated vectors are ranked with 64 columns, as in the preset ``best``.
            wide = model == "rotate" and family in FORMER["narrow"]
            vectors = not wide or preset in ("narrow", "peers")
            run = partial(run_episode_cell, vectors=vectors)
            found.append(Cell(key, run, (config, seed, root)))
            continue
        found.append(Cell(key, run_cell, (config, preset, seed, root)))
    return found


def heuristic_cell(name: str, root: str | None) -> Cell:
    """The edge-type heuristic of a data set, which needs no model."""
    key = {"dataset": name, "model": HEURISTIC, "preset": "none", "seed": 0, "config_hash": "none"}
    return Cell(key, heuristic_records, (name, root))


def proximity_cell(name: str, root: str | None) -> Cell:
    """Proximity alone, after the edge-type filter and with peers, which need no model."""
    key = {"dataset": name, "preset": "none", "seed": 0, "config_hash": "proximity, peers"}
    return Cell(key, proximity_records, (name, root))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--family", nargs="+", choices=FAMILIES, default=["fb237"], help="benchmarks (fb237)")
    add("--version", nargs="+", choices=VERSIONS, default=["v1"], help="their versions (v1)")
    add(
        "--model",
        nargs="+",
        choices=(*MODELS, "pairre"),
        default=["rotate"],
        help="models (rotate)",
    )
    add("--preset", nargs="+", choices=PRESETS, default=["best"], help="settings (best)")
    add("--seeds", nargs="+", type=int, default=[0], help="seeds (0)")
    add("--all", action="store_true", help="all families, versions and models")
    add("--data", help="folder of the benchmark's files or archives (default: SHEAFPROP_DATA)")
    add("--baselines", action="store_true",
        help="rank by the edge-type heuristic alone, whether it is stored or not")  # fmt: skip
    add_running_options(parser, "completion.jsonl")
    add("--report", metavar="FOLDER", nargs="?", const="runs/completion",
        help="write tables and figures of the results there (runs/completion), run nothing",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    store = CellStore(options.results, KEYS, FIELDS)
    with report_errors(parser, "finished cells are kept, and the same command goes on"):
        if not options.report:
            _run(options, store)
        elif records := store.records():
            print(completion_report(records, Path(options.report)))
        else:
            print(f"{options.results} holds no results")


def _run(options: argparse.Namespace, store: CellStore) -> None:
    store.check()
    chosen = (options.family, options.version, options.model)
    if options.all:
        chosen = (FAMILIES, VERSIONS, MODELS)
    if "paper" in options.preset and "nell" in chosen[0]:
        print("the paper has no settings for NELL-995: excluded", file=sys.stderr)
    selection = cells(*chosen, options.preset, options.seeds, options.data)
    names = sorted({cell.key["dataset"] for cell in selection})
    for name in names:
        build_dataset("grail", name=name, root=options.data).check()
    limits: dict[str, Any] = {"jobs": options.jobs, "threads": options.threads}
    baselines = [
        make(name, options.data) for name in names for make in (heuristic_cell, proximity_cell)
    ]
    if options.baselines:
        run_cells(baselines, store, again=True, **limits)
        print(completion_table([r for r in store.records() if r["model"] == HEURISTIC], "full"))
        return
    run_cells([*baselines, *selection], store, again=options.again, **limits)
    wanted = [{name: cell.key[name] for name in KEYS} for cell in selection]
    for record in store.records():
        if {name: record[name] for name in KEYS} in wanted and (
            "iterations" in record or record["preset"] in EPISODES
        ):
            figures = f"Hits@10 {record['hits@10']:.3f}  MRR {record['mrr']:.3f}"
            named = (record[key] for key in ("dataset", "model", "preset", "seed", "protocol"))
            print(*named, f"{record.get('iterations', '-')} iterations", figures, sep="  ")
