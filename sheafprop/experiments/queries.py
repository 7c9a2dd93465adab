"""Logical queries on the nine FB15k-237 splits: train, propagate, rank, one cell at a time.

A cell is a ratio, a model, a preset and a seed. Finished cells are in the file of results and are
not run again, unless their configuration has changed.
"""

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from sheafprop.data.datasets.compact_queries import read_compact_queries
from sheafprop.data.datasets.grail import ENVIRONMENT
from sheafprop.experiments.cell_store import CellStore
from sheafprop.experiments.commit import current_commit
from sheafprop.experiments.query_cell import HEURISTIC, heuristic_records, run_cell
from sheafprop.experiments.query_curve import SHARES, run_curve
from sheafprop.experiments.query_presets import MODELS, PRESETS, RATIOS, query_config
from sheafprop.experiments.query_tuning import CRITERIA, SPACE, run_tuning
from sheafprop.io import write_bytes
from sheafprop.report import hits_by_ratio, query_curves, query_report, query_summary

CURVES = "query_curves.json"
CELL = ("ratio", "model", "preset", "seed")

Cell = dict[str, Any]


def run(
    ratios: Sequence[str],
    models: Sequence[str],
    presets: Sequence[str],
    seeds: Sequence[int],
    store: CellStore,
    folder: Path,
) -> None:
    """Runs the cells that the store does not hold yet, and the heuristic of their ratios."""
    cells = list(product(seeds, presets, models, ratios))
    for seed, preset, model, ratio in tqdm(cells, desc="cells", disable=None):
        config = query_config(preset, ratio, model)
        cell = {"ratio": ratio, "model": model, "preset": preset, "seed": seed}
        key = config.hash(ratio, seed)
        if not _is_done(store, key):
            data = read_compact_queries(folder / f"{ratio}.npz")
            _put(store, cell, key, run_cell(data, config, seed))
        cell = {"ratio": ratio, "model": HEURISTIC, "preset": "none", "seed": 0}
        if not store.holds(cell):
            data = read_compact_queries(folder / f"{ratio}.npz")
            _put(store, cell, "none", heuristic_records(data))


def tune(
    ratios: Sequence[str],
    models: Sequence[str],
    seeds: Sequence[int],
    store: CellStore,
    folder: Path,
) -> None:
    """Compares hyperparameters chosen by the training graph with those chosen by pi and ip."""
    cells = list(product(seeds, models, ratios))
    for seed, model, ratio in tqdm(cells, desc="cells", disable=None):
        config = query_config("best", ratio, model)
        key = config.hash(ratio, seed, CRITERIA, SPACE)
        if _is_done(store, key):
            continue
        data = read_compact_queries(folder / f"{ratio}.npz")
        for name, records in run_tuning(data, config, seed).items():
            cell = {"ratio": ratio, "model": model, "preset": name, "seed": seed}
            _put(store, cell, key, records)


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
    cells = list(product(seeds, presets, models, ratios))
    for seed, preset, model, ratio in tqdm(cells, desc="curves", disable=None):
        config = replace(query_config(preset, ratio, model), max_epochs=-1, max_steps=steps)
        cell = {"ratio": ratio, "model": model, "preset": preset, "seed": seed, "length": steps}
        key = config.hash(ratio, seed, SHARES)
        if not _is_done(store, key):
            data = read_compact_queries(folder / f"{ratio}.npz")
            _put(store, cell, key, run_curve(data, config, seed))


def _is_done(store: CellStore, key: str) -> bool:
    return any(record["config_hash"] == key for record in store.records())


def _put(store: CellStore, cell: Cell, key: str, found: list[dict[str, Any]]) -> None:
    more = {"config_hash": key, "commit": current_commit()}
    store.put(cell, [record | more for record in found])


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
    parser.add_argument("--ratio", nargs="+", choices=RATIOS, default=["550"])
    parser.add_argument("--model", nargs="+", choices=MODELS, default=["rotate"])
    parser.add_argument("--preset", nargs="+", choices=PRESETS, default=["best"])
    parser.add_argument("--seed", nargs="+", type=int, default=[0])
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
        type=int,
        help="instead, train for so many batches and rank validation queries on the way; test "
        f"queries are not looked at (results: {CURVES} beside the others)",
    )
    parser.add_argument("--all", action="store_true", help="all ratios, models and presets")
    parser.add_argument("--results", type=Path, default=Path("scripts/results/queries.json"))
    parser.add_argument(
        "--data", type=Path, help=f"folder of the .npz files (default: {ENVIRONMENT}/inductiveqe)"
    )
    parser.add_argument(
        "--report",
        metavar="FOLDER",
        nargs="?",
        type=Path,
        const=Path("runs/queries"),
        help="write tables and the figure of the results there (runs/queries), run nothing",
    )
    options = parser.parse_args(arguments)
    store = CellStore(options.results, CELL)
    if options.report:
        written = write_report(store, options.report)
        print(*written, sep="\n") if written else print(f"{options.results} holds no results")
        return
    folder = options.data
    if folder is None:
        if ENVIRONMENT not in os.environ:
            parser.error(f"give --data, or set {ENVIRONMENT} to a folder with inductiveqe/")
        folder = Path(os.environ[ENVIRONMENT]) / "inductiveqe"
    chosen = (options.ratio, options.model, options.preset)
    if options.all:
        chosen = (RATIOS, MODELS, PRESETS)
    if options.curve is not None:
        if options.curve < 1:
            parser.error("--curve needs at least 1 batch")
        curves = CellStore(options.results.with_name(CURVES), (*CELL, "length"))
        follow(*chosen, options.seed, options.curve, curves, folder)
        print(query_curves(curves.records()))
        return
    if options.tune:
        tune(*chosen[:2], options.seed, store, folder)
    else:
        run(*chosen, options.seed, store, folder)
    print(query_summary(store.records()))
