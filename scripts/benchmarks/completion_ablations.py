"""What each ingredient of the preset ``best`` is worth, by leaving it out or putting another in.

Figures are Hits@10 on the validation triples alone; no test triple is ranked. Variants of the
propagation share the trained model, variants of the training each train one.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cells import Cell, CellStore, add_running_options, combine, run_cells
from benchmarks.command_line import report_errors
from benchmarks.completion_cell import load_data, train_model
from benchmarks.presets import FAMILIES, MODELS, VERSIONS, Config, completion_config, config_hash
from benchmarks.tables.completion_tables import ablation_table
from sheafprop.config_files import merge
from sheafprop.training.sheaf_completion import SheafCompletion

KEYS = ("dataset", "model", "seed", "trained", "config_hash")
FIELDS = ("ablation", "validation_hits@10")


def _propagation(**changes: Any) -> Config:
    settings = changes.pop("settings", {})
    return {"propagation": changes | ({"settings": settings} if settings else {})}


#: Name of each variant of the propagation, and what it changes in the configuration's ``model``.
PROPAGATION: dict[str, Config] = {
    "as it is": {},
    "one random start": _propagation(start=["random"], settings={"num_random": 1}),
    "random starts without prototypes": _propagation(start=["random"]),
    "prototypes alone": _propagation(start=["prototype"]),
    "4 random starts instead of 16": _propagation(settings={"num_random": 4}),
    "prototype section weighted as the others": _propagation(settings={"prototype_share": 0.06}),
    "free rows not normalised": _propagation(settings={"normalize_output": False}),
    "step size 0.5": _propagation(step_size=[0.5]),
    "limit (4096 steps)": _propagation(iterations=[4096]),
    "degree normalisation": _propagation(settings={"normalization": "degree"}),
    "teleport 0.1": _propagation(settings={"teleport": 0.1}),
    "relations weighted by residual variance": _propagation(settings={"relation_weights": True}),
}
#: The same for variants of the training.
TRAINING: dict[str, Config] = {
    "no label smoothing": {"loss_args": {"label_smoothing": 0.0}},
    "distance instead of its square": {"kge_args": {"squared": False}},
    "entities of any length": {"kge_args": {"entity_constraint": None}},
    "cross entropy of tails alone": {"sides": "tail"},
    "half the dimension": {"hidden_channels": 32},
    "twice the dimension": {"hidden_channels": 128},
    "constant learning rate": {"lr_schedule": "constant"},
    "scale 1": {"loss_args": {"scale": 1.0}},
}


def run_ablation(
    config: Config, trained: str, seed: int, root: str | None = None, *, folder: Path
) -> list[dict[str, Any]]:
    """Trains one variant and selects on validation under every propagation that goes with it."""
    config = merge(config, {"model": TRAINING.get(trained, {})})
    data, module = load_data(config, root), SheafCompletion(**(config["model"] | {"seed": seed}))
    model, seconds = train_model(module, config, data, folder=folder, clock=time.perf_counter)
    variants = {trained: {}} if trained in TRAINING else PROPAGATION
    records = []
    for name, change in variants.items():
        plain = merge(config["model"], change)
        search = SheafCompletion(**(plain | {"seed": seed})).search
        selection = search.select(model, data)
        best = max(selection.curve, key=lambda row: row["hits@10"])
        records.append(
            {
                "ablation": name,
                "validation_hits@10": best["hits@10"],
                "validation_mrr": best["mrr"],
                "iterations": selection.settings.iterations,
                "seconds_train": round(seconds, 2),
                "seconds_select": round(selection.seconds, 2),
            }
        )
    return records


def cells(
    families: Sequence[str],
    versions: Sequence[str],
    model: str,
    seeds: Sequence[int],
    root: str | None = None,
) -> list[Cell]:
    """All variants of the training, the propagation's under the name of the first."""
    found = []
    trained = ("as it is", *TRAINING)
    for seed, family, version, name in combine(seeds, families, versions, trained):
        config = completion_config("best", family, version, model)
        changes = [PROPAGATION] if name == "as it is" else [TRAINING[name]]
        key = {"dataset": f"{family}_{version}", "model": model, "seed": seed, "trained": name}
        key["config_hash"] = config_hash(config | {"changes": changes})
        found.append(Cell(key, run_ablation, (config, name, seed, root)))
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    families = ["fb237", "WN18RR"]
    add("--family", nargs="+", choices=FAMILIES, default=families, help="benchmarks (fb237 WN18RR)")
    add("--version", nargs="+", choices=VERSIONS, default=["v1"], help="their versions (v1)")
    add("--model", choices=MODELS, default="rotate", help="the model (rotate)")
    add("--seeds", nargs="+", type=int, default=[0, 1, 2], help="seeds (0 1 2)")
    add("--data", help="folder of the benchmark's files or archives (default: SHEAFPROP_DATA)")
    add_running_options(parser, "ablations.jsonl")
    add("--report", action="store_true", help="print the table, run nothing")
    options = parser.parse_args(arguments)
    store = CellStore(options.results, KEYS, FIELDS)
    with report_errors(parser, "finished cells are kept, and the same command goes on"):
        if not options.report:
            store.check()
            chosen = (options.family, options.version, options.model, options.seeds)
            limits = {"jobs": options.jobs, "threads": options.threads}
            run_cells(cells(*chosen, options.data), store, again=options.again, **limits)
        if records := store.records():
            print(ablation_table(records))
        else:
            print(f"{options.results} holds no results")
