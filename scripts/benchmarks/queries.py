"""Logical queries on the nine FB15k-237 splits: train, propagate, rank, one cell at a time.

A cell is a ratio, a model, a preset and a seed. Finished cells are in the file of results and are
not run again, unless their configuration has changed: then their results stand beside those of the
old configuration, which are kept.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from benchmarks.cell_store import CellStore
from benchmarks.command_line import integer, told_errors
from benchmarks.commit import current_commit
from benchmarks.query_cell import heuristic_records, run_cell
from benchmarks.query_curve import SHARES, run_curve
from benchmarks.query_presets import (
    MODELS,
    PRESETS,
    RATIOS,
    WITH_PRIOR,
    query_config,
)
from benchmarks.query_tuning import CRITERIA, SPACE, run_tuning
from benchmarks.tables.query_figure import hits_by_ratio
from benchmarks.tables.query_tables import query_curves, query_report, query_summary
from sheafprop.data.datasets.grail import ENVIRONMENT
from sheafprop.data.datasets.query_data import QueryData
from sheafprop.data.datasets.query_files import read_compact_queries, read_released_queries
from sheafprop.errors import DataError
from sheafprop.files import write_bytes
from sheafprop.ranking.edge_type_heuristic import HEURISTIC

CURVES = "query_curves.json"
CELL = ("ratio", "model", "preset", "seed", "config_hash")
FIELDS = ("type", "averaging", "hits@10")
CURVE_FIELDS = ("steps", "micro", "macro")

Cell = dict[str, Any]


def run(
    ratios: Sequence[str],
    models: Sequence[str],
    presets: Sequence[str],
    seeds: Sequence[int],
    store: CellStore,
    folder: Path,
    again: bool = False,
) -> None:
    """Runs the cells that the store does not hold yet, and the heuristic of their ratios.

    Args:
        again: Whether to run cells that the store holds, too.
    """
    stored = 0
    for cell in _cells("cells", seed=seeds, preset=presets, model=models, ratio=ratios):
        ratio, seed = cell["ratio"], cell["seed"]
        if cell["preset"] == "no-prior" and cell["model"] not in WITH_PRIOR:
            continue  # its best has no prior
        config = query_config(cell["preset"], ratio, cell["model"])
        cell["config_hash"] = config.hash(ratio, seed)
        if again or not store.holds(cell):
            _put(store, cell, run_cell(read_queries(folder, ratio), config, seed))
        else:
            stored += 1
        run_baselines([ratio], store, folder)
    if stored:
        print(f"{stored} cells are stored results; --again runs them again", file=sys.stderr)


def run_baselines(
    ratios: Sequence[str], store: CellStore, folder: Path, again: bool = False
) -> None:
    """Runs the edge-type heuristic of some ratios, which needs no model."""
    for ratio in dict.fromkeys(ratios):
        cell = {"ratio": ratio, "model": HEURISTIC, "preset": "none", "seed": 0}
        cell["config_hash"] = "none"
        if again or not store.holds(cell):
            _put(store, cell, heuristic_records(read_queries(folder, ratio)))


def tune(
    ratios: Sequence[str],
    models: Sequence[str],
    seeds: Sequence[int],
    store: CellStore,
    folder: Path,
) -> None:
    """Compares hyperparameters chosen by the training graph with those chosen by pi and ip."""
    for cell in _cells("cells", seed=seeds, model=models, ratio=ratios):
        ratio, seed = cell["ratio"], cell["seed"]
        config = query_config("best", ratio, cell["model"])
        cell["config_hash"] = config.hash(ratio, seed, CRITERIA, SPACE)
        if all(store.holds(cell | {"preset": name}) for name in CRITERIA):
            continue
        for name, records in run_tuning(read_queries(folder, ratio), config, seed).items():
            _put(store, cell | {"preset": name}, records)


def follow(
    ratios: Sequence[str],
    models: Sequence[str],
    presets: Sequence[str],
    seeds: Sequence[int],
    steps: int,
    store: CellStore,
    folder: Path,
) -> None:
    """Stores learning curves over a number of batches that replaces the preset's."""
    for cell in _cells("curves", seed=seeds, preset=presets, model=models, ratio=ratios):
        ratio, seed = cell["ratio"], cell["seed"]
        config = query_config(cell["preset"], ratio, cell["model"])
        config = replace(config, max_epochs=-1, max_steps=steps)
        cell["length"] = steps
        cell["config_hash"] = config.hash(ratio, seed, SHARES)
        if not store.holds(cell):
            _put(store, cell, run_curve(read_queries(folder, ratio), config, seed))


def read_queries(folder: Path, ratio: str) -> QueryData:
    """Reads one split, as its authors released it or in the compact form.

    Raises:
        DataError: If the folder has neither, or it cannot be read.
    """
    released, compact = folder / ratio, folder / f"{ratio}.npz"
    if compact.exists():
        return read_compact_queries(compact)
    if not released.exists():
        raise DataError(
            f"there is neither a folder {released}, as the split is released, nor {compact}: name "
            "the folder that holds it with --data"
        )
    return read_released_queries(released)


def _cells(title: str, **axes: Sequence[Any]) -> Iterator[Cell]:
    """All cells, with a progress bar; what is named twice is taken once."""
    found = list(product(*map(dict.fromkeys, axes.values())))
    bar = tqdm(found, desc=title, disable=None)
    for values in bar:
        bar.set_postfix_str(" ".join(map(str, values)))
        yield dict(reversed(list(zip(axes, values, strict=True))))


def _put(store: CellStore, cell: Cell, found: list[dict[str, Any]]) -> None:
    store.put(cell, [record | {"commit": current_commit()} for record in found])


def write_report(store: CellStore, folder: Path) -> list[Path]:
    """Writes tables and figure of all results; returns the files written."""
    records = store.records()
    text, figure = folder / "queries.md", folder / "queries.png"
    if not records:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    hits_by_ratio(records, figure)
    write_bytes(text, query_report(records).encode())
    return [text, figure]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--ratio", nargs="+", choices=RATIOS, default=["550"], help="splits (550)")
    add("--model", nargs="+", choices=MODELS, default=["rotate"], help="models (rotate)")
    add("--preset", nargs="+", choices=PRESETS, default=["best"], help="settings (best)")
    add("--seeds", "--seed", dest="seed", nargs="+", type=int, default=[0], help="seeds (0)")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--tune",
        action="store_true",
        help="instead of the presets, choose hyperparameters on the training graph, and on pi and "
        "ip queries, as the paper's appendix compares them",
    )
    instead.add_argument(
        "--curve",
        metavar="BATCHES",
        type=integer(1),
        help="instead, train for so many batches and rank validation queries on the way; test "
        f"queries are not looked at (results: {CURVES} beside the others)",
    )
    instead.add_argument(
        "--baselines",
        action="store_true",
        help="instead, rank by the edge-type heuristic alone, whether it is stored or not",
    )
    add("--all", action="store_true", help="all ratios, models and presets")
    add("--again", action="store_true", help="run cells that are stored, too")
    results = Path("scripts/results/queries.json")
    add(
        "--results",
        metavar="FILE",
        type=Path,
        default=results,
        help=f"where finished cells are kept ({results})",
    )
    add(
        "--data",
        metavar="FOLDER",
        type=Path,
        help="holds the splits: folders 106, 113, ... as they are released, or 106.npz, ... "
        f"(default: {ENVIRONMENT}/inductiveqe)",
    )
    add(
        "--report",
        metavar="FOLDER",
        nargs="?",
        type=Path,
        const=Path("runs/queries"),
        help="write tables and the figure of the results there (runs/queries), run nothing",
    )
    options = parser.parse_args(arguments)
    store = CellStore(options.results, CELL, FIELDS)
    curves = CellStore(options.results.with_name(CURVES), (*CELL, "length"), CURVE_FIELDS)
    if options.report is None and options.data is None and ENVIRONMENT not in os.environ:
        parser.error(f"give --data, or set {ENVIRONMENT} to a folder with inductiveqe/")
    with told_errors(parser, "finished cells are kept, and the same command goes on"):
        if options.report is not None:
            written = write_report(store, options.report)
            print(*written, sep="\n") if written else print(f"{options.results} holds no results")
            return
        folder = options.data or Path(os.environ[ENVIRONMENT]) / "inductiveqe"
        chosen = (options.ratio, options.model, options.preset)
        if options.all:
            chosen = (RATIOS, MODELS, PRESETS)
        if options.curve is not None:
            curves.check()
            follow(*chosen, options.seed, options.curve, curves, folder)
            print(query_curves(curves.records()))
            return
        store.check()
        if options.tune:
            tune(*chosen[:2], options.seed, store, folder)
        elif options.baselines:
            run_baselines(chosen[0], store, folder, again=True)
        else:
            run(*chosen, options.seed, store, folder, options.again)
        print(query_summary(store.records()))
