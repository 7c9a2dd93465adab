"""Logical queries on the nine FB15k-237 splits: train, propagate, rank, one cell at a time.

A cell is a ratio, a model, a preset and a seed. Finished cells are in the file of results and are
not run again, unless their configuration has changed: then their results stand beside those of the
old configuration, which are kept.
"""

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.cells import Cell, CellStore, add_running_options, combine, run_cells
from benchmarks.command_line import integer, report_errors
from benchmarks.entity_cell import GRID, ITERATIONS, METHODS, SAMPLE, SELECTION, run_entities
from benchmarks.entity_links import EntitySettings
from benchmarks.presets import MODELS, QUERY_PRESETS, RATIOS, WITH_PRIOR, query_config
from benchmarks.query_cell import SHARES, heuristic_records, run_cell, run_curve
from benchmarks.query_task import check_queries
from benchmarks.query_tuning import CRITERIA, SPACE, run_tuning
from benchmarks.tables.figures import hits_by_ratio
from benchmarks.tables.query_tables import entity_table, query_curves, query_report, query_summary
from sheafprop.data.datasets.grail import ENVIRONMENT
from sheafprop.files import write_text
from sheafprop.ranking.edge_type_heuristic import HEURISTIC

CURVES = "query_curves.jsonl"
ENTITIES = "query_entities.jsonl"
KEYS = ("ratio", "model", "preset", "seed", "config_hash")
FIELDS = ("type", "averaging", "hits@10")
CURVE_FIELDS = ("steps", "micro", "macro")
ENTITY_KEYS = (*KEYS, "method")
ENTITY_FIELDS = ("type", "averaging", "hits@10")


def cells(
    ratios: Sequence[str],
    models: Sequence[str],
    presets: Sequence[str],
    seeds: Sequence[int],
    folder: Path,
    *,
    steps: int | None = None,
) -> list[Cell]:
    """The cells of a selection, one seed of all after the other; what is named twice, once.

    Args:
        folder (Path): Where the splits are.
        steps (int, optional): Learning curves over so many batches, instead of the preset's.
    """
    found = []
    for seed, preset, model, ratio in combine(seeds, presets, models, ratios):
        if preset == "no-prior" and model not in WITH_PRIOR:
            continue  # its best has no prior
        config = query_config(preset, ratio, model)
        key = {"ratio": ratio, "model": model, "preset": preset, "seed": seed}
        function: Callable[..., Any] = run_cell
        if steps is None:
            key["config_hash"] = config.hash(ratio, seed)
        else:
            config, function = replace(config, max_epochs=-1, max_steps=steps), run_curve
            key |= {"length": steps, "config_hash": config.hash(ratio, seed, SHARES)}
        found.append(Cell(key, function, (folder, ratio, config, seed)))
    return found


def heuristic_cells(ratios: Sequence[str], folder: Path) -> list[Cell]:
    """The edge-type heuristic of some ratios, which needs no model."""
    key = {"model": HEURISTIC, "preset": "none", "seed": 0, "config_hash": "none"}
    return [
        Cell({"ratio": ratio} | key, heuristic_records, (folder, ratio))
        for ratio in dict.fromkeys(ratios)
    ]


def tuning_cells(
    ratios: Sequence[str], models: Sequence[str], seeds: Sequence[int], folder: Path
) -> list[Cell]:
    """Hyperparameters chosen by the training graph against those chosen by pi and ip.

    A cell has both; its records name the criterion as their preset.
    """
    found = []
    for seed, model, ratio in combine(seeds, models, ratios):
        config = query_config("best", ratio, model)
        key = {"ratio": ratio, "model": model, "seed": seed}
        key["config_hash"] = config.hash(ratio, seed, CRITERIA, SPACE)
        found.append(Cell(key, run_tuning, (folder, ratio, config, seed)))
    return found


def entity_cells(
    ratios: Sequence[str],
    models: Sequence[str],
    presets: Sequence[str],
    seeds: Sequence[int],
    folder: Path,
    methods: Sequence[str],
    most_valid: int,
    most_test: int | None,
    trained: Path,
) -> list[Cell]:
    """Cells that rank over entities or beside, one method of all ratios after the other.

    ``methods``, ``most_valid`` and ``most_test`` are those of :func:`run_entities`; trained models
    are kept in folders of ``trained``.
    """
    found = []
    for method in dict.fromkeys(methods):
        for cell in cells(ratios, models, presets, seeds, folder):
            config, seed = cell.arguments[2:]
            model = trained / config.hash(cell.key["ratio"], seed)
            chosen: Any = (EntitySettings(), METHODS[method], ITERATIONS, GRID, SELECTION)
            own = config.hash(cell.key["ratio"], seed, repr(chosen), most_valid, most_test)
            arguments = (*cell.arguments, method, most_valid, most_test, model)
            key = cell.key | {"method": method, "config_hash": own}
            found.append(Cell(key, run_entities, arguments))
    return found


def write_report(store: CellStore, folder: Path) -> list[Path]:
    """Writes tables and figure of all results; returns the files written."""
    records = store.records()
    text, figure = folder / "queries.md", folder / "queries.png"
    if not records:
        return []
    hits_by_ratio(records, figure)
    write_text(text, query_report(records))
    return [text, figure]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--ratio", nargs="+", choices=RATIOS, default=["550"], help="splits (550)")
    add("--model", nargs="+", choices=MODELS, default=["rotate"], help="models (rotate)")
    add("--preset", nargs="+", choices=QUERY_PRESETS, default=["best"], help="settings (best)")
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
    instead.add_argument(
        "--entities",
        action="store_true",
        help="instead, rank by entity interiors and by the energy, including queries with negation "
        f"(results: {ENTITIES} beside the others; trained models stay in a folder there)",
    )
    add(
        "--method",
        nargs="+",
        choices=METHODS,
        default=["entities"],
        help="for --entities: what is ranked (entities)",
    )
    add(
        "--most-valid",
        metavar="N",
        type=integer(1),
        default=SAMPLE,
        help=f"for --entities: validation queries that choose the steps ({SAMPLE:,} at most)",
    )
    add(
        "--most-test",
        metavar="N",
        type=integer(1),
        help="for --entities: test queries of each type, a seeded choice (all)",
    )
    add("--all", action="store_true", help="all ratios, models and presets")
    add_running_options(parser, "queries.jsonl", threads=None)
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
    if options.report is None and options.data is None and ENVIRONMENT not in os.environ:
        parser.error(f"give --data, or set {ENVIRONMENT} to a folder with inductiveqe/")
    store = CellStore(options.results, KEYS, FIELDS)
    with report_errors(parser, "finished cells are kept, and the same command goes on"):
        if options.report is not None:
            written = write_report(store, options.report)
            print(*written, sep="\n") if written else print(f"{options.results} holds no results")
        else:
            _run(options, store)


def _run(options: argparse.Namespace, store: CellStore) -> None:
    folder = options.data or Path(os.environ[ENVIRONMENT]) / "inductiveqe"
    chosen = (options.ratio, options.model, options.preset)
    if options.all:
        chosen = (RATIOS, MODELS, QUERY_PRESETS)
    show: Callable[[Any], str] = query_summary
    if options.curve is not None:
        path = options.results.with_name(CURVES)
        store, show = CellStore(path, (*KEYS, "length"), CURVE_FIELDS), query_curves
        selection = cells(*chosen, options.seed, folder, steps=options.curve)
    elif options.entities:
        path = options.results.with_name(ENTITIES)
        store, show = CellStore(path, ENTITY_KEYS, ENTITY_FIELDS), entity_table
        limits = (options.most_valid, options.most_test, path.with_suffix(".models"))
        selection = entity_cells(*chosen, options.seed, folder, options.method, *limits)
    elif options.tune:
        selection = tuning_cells(*chosen[:2], options.seed, folder)
    else:
        selection = heuristic_cells(chosen[0], folder)
        if not options.baselines:
            selection = [*cells(*chosen, options.seed, folder), *selection]
    store.check()
    for ratio in chosen[0]:
        check_queries(folder, ratio)
    again = options.again or options.baselines
    run_cells(selection, store, jobs=options.jobs, threads=options.threads, again=again)
    print(show(store.records()))
