"""Inductive completion on the GraIL benchmarks: train, propagate, rank, one cell at a time.

A cell is a data set, a model, a preset and a seed; the edge-type heuristic of a data set is one,
too. Finished cells are in the file of results and are not run again; an interrupted run goes on
where it was.
"""

import argparse
import multiprocessing
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from itertools import product
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from benchmarks.cell_store import CellStore
from benchmarks.command_line import end_silently, integer, told_errors
from benchmarks.commit import current_commit
from benchmarks.completion_cell import heuristic_records, run_cell
from benchmarks.completion_presets import (
    FAMILIES,
    MODELS,
    PRESETS,
    VERSIONS,
    completion_config,
    config_hash,
)
from benchmarks.tables.completion_report import completion_report
from benchmarks.tables.completion_tables import completion_table
from sheafprop.data import build_dataset
from sheafprop.errors import SheafpropError
from sheafprop.ranking.edge_type_heuristic import HEURISTIC

#: Starts without propagation have a name of their own as their model, which the hash tells as well.
CELL = ("dataset", "preset", "seed", "config_hash")
FIELDS = ("model", "protocol", "hits@10", "mrr")

Cell = dict[str, Any]
Work = list[tuple[Cell, tuple[Any, ...]]]


def cells(
    families: Sequence[str],
    versions: Sequence[str],
    models: Sequence[str],
    presets: Sequence[str],
    seeds: Sequence[int],
) -> list[tuple[Cell, dict[str, Any]]]:
    """The cells of a selection with their configurations, one seed of all after the other.

    What is named twice is taken once.
    """
    found = []
    named: Any = map(dict.fromkeys, (seeds, presets, versions, families, models))
    for seed, preset, version, family, model in product(*named):
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

    A fresh process for each cell makes its peak memory its own. A cell that fails does not stop
    the others, and what is finished stays in the store when the run is interrupted.

    Raises:
        SheafpropError: At the end, with the cells that failed; or if a process was killed.
    """
    failed = []
    with (
        ProcessPoolExecutor(
            jobs,
            multiprocessing.get_context("spawn"),
            initializer=end_silently,
            max_tasks_per_child=1,
        ) as pool,
        tqdm(total=len(work), desc="cells", disable=None) as bar,
    ):
        running = {pool.submit(function, *given, **limits): cell for cell, given in work}
        try:
            for done in as_completed(running):
                cell = running[done]
                name = " ".join(str(value) for key, value in cell.items() if key != "config_hash")
                bar.set_postfix_str(name)
                try:
                    found = done.result()
                except SheafpropError as error:
                    failed.append(f"{name}: {error}")
                    tqdm.write(f"failed: {failed[-1]}", file=sys.stderr)
                else:
                    more = {"commit": current_commit()}
                    store.put(cell, [record | more for record in found])
                bar.update()
        except BrokenProcessPool as error:
            raise SheafpropError(
                "the process of a cell was killed, most likely for want of memory; finished cells "
                "are kept, and --jobs 1 needs the least"
            ) from error
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    if failed:
        raise SheafpropError(f"{len(failed)} of {len(work)} cells failed: {'; '.join(failed)}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="With --paper-code-step the script shows instead what the step of the paper's "
        "published code does; --paper-code-step --help lists its options.",
    )
    add = parser.add_argument
    add("--family", nargs="+", choices=FAMILIES, default=["fb237"], help="benchmarks (fb237)")
    add("--version", nargs="+", choices=VERSIONS, default=["v1"], help="their versions (v1)")
    add("--model", nargs="+", choices=MODELS, default=["rotate"], help="models (rotate)")
    add("--preset", nargs="+", choices=PRESETS, default=["best"], help="settings (best)")
    add("--seeds", nargs="+", type=int, default=[0], help="seeds (0)")
    add("--all", action="store_true", help="all families, versions and models")
    add("--again", action="store_true", help="run cells that are stored, too")
    add(
        "--baselines",
        action="store_true",
        help="rank by the edge-type heuristic alone, whether it is stored or not",
    )
    add_running_options(parser, Path("scripts/results/completion.json"))
    add(
        "--report",
        metavar="FOLDER",
        nargs="?",
        const="runs/completion",
        help="write tables and figures of the results there (runs/completion), run nothing",
    )
    options = parser.parse_args(arguments)
    store = CellStore(options.results, CELL, FIELDS)
    with told_errors(parser, "finished cells are kept, and the same command goes on"):
        if not options.report:
            _run(options, store)
        elif records := store.records():
            print(completion_report(records, Path(options.report)))
        else:
            print(f"{options.results} holds no results")


def add_running_options(parser: argparse.ArgumentParser, results: Path) -> None:
    """Adds the options of every command that calls :func:`run_in_processes`."""
    parser.add_argument(
        "--results",
        metavar="FILE",
        type=Path,
        default=results,
        help=f"where finished cells are kept ({results})",
    )
    parser.add_argument(
        "--data", help="folder of the benchmark's files or archives (default: SHEAFPROP_DATA)"
    )
    parser.add_argument("--jobs", type=integer(1), default=1, help="cells that run at once (1)")
    parser.add_argument("--threads", type=integer(1), default=1, help="threads of each (1)")


def _heuristic_cell(name: str) -> Cell:
    return {
        "dataset": name,
        "model": HEURISTIC,
        "preset": "none",
        "seed": 0,
        "config_hash": "none",
    }


def _run(options: argparse.Namespace, store: CellStore) -> None:
    store.check()
    chosen = (options.family, options.version, options.model)
    if options.all:
        chosen = (FAMILIES, VERSIONS, MODELS)
    if "paper" in options.preset and "nell" in chosen[0]:
        print("the paper has no settings for NELL-995: left out", file=sys.stderr)
    selection = cells(*chosen, options.preset, options.seeds)
    names = sorted({cell["dataset"] for cell, _ in selection})
    for name in names:
        build_dataset("grail", name=name, root=options.data).check()
    baselines: Work = [(_heuristic_cell(name), (name,)) for name in names]
    work: Work = [(cell, (config, cell["preset"], cell["seed"])) for cell, config in selection]
    limits = {"root": options.data, "threads": options.threads}

    def missing(found: Work, again: bool) -> Work:
        return [(cell, given) for cell, given in found if again or not store.holds(cell)]

    todo = missing(baselines, options.again or options.baselines)
    run_in_processes(heuristic_records, todo, limits, store, jobs=options.jobs)
    if options.baselines:
        print(completion_table([r for r in store.records() if r["model"] == HEURISTIC], "full"))
        return
    todo = missing(work, options.again)
    if len(todo) < len(work):
        stored = f"{len(work) - len(todo)} of {len(work)} cells are stored results"
        print(f"{stored}; --again runs them again", file=sys.stderr)
    run_in_processes(run_cell, todo, limits, store, jobs=options.jobs)
    for record in store.records():
        own = any(all(record[key] == cell[key] for key in CELL) for cell, _ in work)
        if own and "iterations" in record:
            figures = f"Hits@10 {record['hits@10']:.3f}  MRR {record['mrr']:.3f}"
            named = (record[key] for key in ("dataset", "model", "preset", "seed", "protocol"))
            print(*named, f"{record['iterations']} iterations", figures, sep="  ")
