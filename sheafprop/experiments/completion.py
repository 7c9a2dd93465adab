"""Inductive completion on the GraIL benchmarks: train, propagate, rank, one cell at a time.

A cell is a data set, a model, a preset and a seed. Finished cells are in the file of results and
are not run again; an interrupted run goes on where it was.
"""

import argparse
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from sheafprop.data import build_dataset
from sheafprop.errors import SheafpropError
from sheafprop.experiments.cell_store import CellStore
from sheafprop.experiments.commit import current_commit
from sheafprop.experiments.completion_cell import run_cell
from sheafprop.experiments.completion_presets import (
    FAMILIES,
    MODELS,
    PRESETS,
    VERSIONS,
    completion_config,
    config_hash,
)
from sheafprop.report import completion_report

#: Baselines of a cell have a name of their own as their model, which the hash tells as well.
CELL = ("dataset", "preset", "seed", "config_hash")

Cell = dict[str, Any]


def cells(
    families: Sequence[str],
    versions: Sequence[str],
    models: Sequence[str],
    presets: Sequence[str],
    seeds: Sequence[int],
) -> list[tuple[Cell, dict[str, Any]]]:
    """The cells of a selection with their configurations, one seed of all after the other."""
    found = []
    for seed, preset, version, family, model in product(seeds, presets, versions, families, models):
        if preset == "paper" and family == "nell":
            continue  # the paper has no settings for it
        config = completion_config(preset, family, version, model)
        cell = {"dataset": f"{family}_{version}", "model": model, "preset": preset, "seed": seed}
        found.append((cell | {"config_hash": config_hash(config)}, config))
    return found


def run_in_processes(
    function: Callable[..., list[dict[str, Any]]],
    work: Sequence[tuple[Cell, tuple[Any, ...]]],
    limits: dict[str, Any],
    store: CellStore,
    *,
    jobs: int,
) -> None:
    """Calls a function for each cell in a process of its own and stores what it finds.

    A fresh process for each cell makes its peak memory its own. What is finished stays in the
    store when one fails or the run is interrupted.
    """
    with (
        ProcessPoolExecutor(
            jobs, multiprocessing.get_context("spawn"), max_tasks_per_child=1
        ) as pool,
        tqdm(total=len(work), desc="cells", disable=None) as bar,
    ):
        running = {pool.submit(function, *given, **limits): cell for cell, given in work}
        try:
            for done in as_completed(running):
                cell = running[done]
                bar.set_postfix_str(f"{cell['dataset']} {cell['model']}")
                store.put(cell, [record | {"commit": current_commit()} for record in done.result()])
                bar.update()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", nargs="+", choices=FAMILIES, default=["fb237"])
    parser.add_argument("--version", nargs="+", choices=VERSIONS, default=["v1"])
    parser.add_argument("--model", nargs="+", choices=MODELS, default=["rotate"])
    parser.add_argument("--preset", nargs="+", choices=PRESETS, default=["best"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--all", action="store_true", help="all families, versions and models")
    parser.add_argument("--results", type=Path, default=Path("scripts/results/completion.json"))
    parser.add_argument(
        "--data", help="folder of the benchmark's files or archives (default: SHEAFPROP_DATA)"
    )
    parser.add_argument("--jobs", type=int, default=1, help="cells that run at once (1)")
    parser.add_argument("--threads", type=int, default=1, help="threads of each (1)")
    parser.add_argument(
        "--report",
        metavar="FOLDER",
        nargs="?",
        const="runs/completion",
        help="write tables and figures of the results there, without running anything",
    )
    options = parser.parse_args(arguments)
    store = CellStore(options.results, CELL)
    if options.report:
        print(completion_report(store.records(), Path(options.report)))
        return
    chosen = (options.family, options.version, options.model)
    if options.all:
        chosen = (FAMILIES, VERSIONS, MODELS)
    selection = cells(*chosen, options.preset, options.seeds)
    try:
        for name in sorted({cell["dataset"] for cell, _ in selection}):
            build_dataset("grail", name=name, root=options.data).check()
        work = [
            (cell, (config, cell["preset"], cell["seed"]))
            for cell, config in selection
            if not store.holds(cell)
        ]
        limits = {"root": options.data, "threads": options.threads}
        run_in_processes(run_cell, work, limits, store, jobs=options.jobs)
    except SheafpropError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    wanted = [cell for cell, _ in selection]
    for record in store.records():
        own = any(all(record[key] == cell[key] for key in CELL) for cell in wanted)
        if own and "iterations" in record:
            figures = f"Hits@10 {record['hits@10']:.3f}  MRR {record['mrr']:.3f}"
            names = (record[key] for key in ("dataset", "model", "preset", "seed", "protocol"))
            print(*names, f"{record['iterations']} iterations", figures, sep="  ")
