"""Settings of the episodes, chosen on entity-disjoint parts of the training graphs alone.

The training graph is split in two parts without a common entity. The model and its episodes are
trained on one; a quarter of the triples of the other are ranked, after diffusion on its rest.
Inference graphs, their validation triples and their test triples are not looked at. The settings
with the largest MRR + Hits@10 (pessimistic ties), in the mean over the splits, are those of the
presets.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.cells import Cell, CellStore, add_running_options, combine, run_cells
from benchmarks.command_line import integer, report_errors
from benchmarks.completion_cell import load_data, train_model
from benchmarks.presets import FAMILIES, VERSIONS, Config, completion_config, config_hash
from sheafprop.data import KnowledgeGraph, Vocabulary, hold_out_mask
from sheafprop.data.inductive_data import InductiveData
from sheafprop.files import write_text
from sheafprop.inductive.episode_model import EpisodeSettings
from sheafprop.inductive.episode_scorer import EpisodeScorer, Scorer, score_spread
from sheafprop.inductive.inductive_propagation import InductivePropagation
from sheafprop.inductive.propagation_search import inference_filter
from sheafprop.inductive.proximity_scorer import (
    LogProximity,
    ProximityScorer,
    relations_with_loops,
)
from sheafprop.inductive.proximity_search import WEIGHTS
from sheafprop.inductive.training_graph import split_training_triples
from sheafprop.kge import KGEModel
from sheafprop.ranking import evaluate
from sheafprop.training.episode_training import train_episodes
from sheafprop.training.sheaf_completion import SheafCompletion

KEYS = ("dataset", "split", "config_hash")
FIELDS = ("setting", "weight", "hits@10", "mrr")

HELD_SHARE = 0.25

_NUMBER = {"observed": "number", "count_weight": 0.0, "rank_isolated": True}
_SHORT = _NUMBER | {"num_steps": 100, "hidden_share": 0.5, "lr": 0.01}
_LONG = _NUMBER | {
    "times": (4, 16),
    "maps": "random",
    "hidden_channels": 32,
    "own_maps": True,
    "counts": True,
    "num_steps": 150,
    "hidden_share": 0.3,
    "lr": 0.03,
}
_FREQUENCY = {"counts": True, "walk_steps": 60, "observed": "frequency", "count_weight": 0.5}
_CONNECTED = {"rank_isolated": False}
#: What the variants of a family start from: the recipe of the prototype.
CENTRE: dict[str, Config] = {"fb237": _SHORT, "nell": _SHORT, "WN18RR": _LONG}
#: One change at a time.
CHANGES: dict[str, dict[str, Config]] = {
    "fb237": {
        "centre": {},
        "50 steps": {"num_steps": 50},
        "200 steps": {"num_steps": 200},
        "400 steps": {"num_steps": 400},
        "hidden .3": {"hidden_share": 0.3},
        "hidden .7": {"hidden_share": 0.7},
        "k 2": {"times": (2,)},
        "k 4": {"times": (4,)},
        "k 2, 5": {"times": (2, 5)},
        "lr .02": {"lr": 0.02},
        "own maps": {"own_maps": True},
        "counts": {"counts": True},
        "counts, walk": {"counts": True, "walk_steps": 60},
        "frequency, walk": _FREQUENCY,
        "connected, hidden .2": _FREQUENCY | _CONNECTED | {"hidden_share": 0.2},
        "connected, hidden .3": _FREQUENCY | _CONNECTED | {"hidden_share": 0.3},
        "connected, hidden .5": _FREQUENCY | _CONNECTED,
        "connected, hidden .3, 60 steps": _FREQUENCY
        | _CONNECTED
        | {"hidden_share": 0.3, "num_steps": 60},
        "random maps, d 64": {"maps": "random", "hidden_channels": 64},
        "4 random sections": {"num_training_random": 4},
        "counts, own maps": {"counts": True, "own_maps": True},
        "counts, k 2, 5": {"counts": True, "times": (2, 5)},
        "counts, own maps, k 2, 5": {"counts": True, "own_maps": True, "times": (2, 5)},
        "counts, own maps, k 2, 5, 200 steps": {
            "counts": True,
            "own_maps": True,
            "times": (2, 5),
            "num_steps": 200,
        },
    },
    "WN18RR": {
        "centre": {},
        "75 steps": {"num_steps": 75},
        "300 steps": {"num_steps": 300},
        "hidden .2": {"hidden_share": 0.2},
        "hidden .5": {"hidden_share": 0.5},
        "k 8": {"times": (8,)},
        "k 3, 10, 30": {"times": (3, 10, 30)},
        "k 4, 24": {"times": (4, 24)},
        "lr .015": {"lr": 0.015},
        "shared maps": {"own_maps": False},
        "no counts": {"counts": False},
        "walk": {"walk_steps": 60},
        "frequency, walk": _FREQUENCY,
        "connected, hidden .2": _CONNECTED | {"hidden_share": 0.2},
        "connected, hidden .3": _CONNECTED,
        "connected, hidden .5": _CONNECTED | {"hidden_share": 0.5},
        "connected, hidden .3, 100 steps": _CONNECTED | {"num_steps": 100},
        "d 64": {"hidden_channels": 64},
        "trained maps": {"maps": "trained", "hidden_channels": None},
    },
}
CHANGES["nell"] = CHANGES["fb237"]


def split_training_graph(data: InductiveData, seed: int) -> InductiveData:
    """Two parts of the training graph without a common entity, as a fully inductive data set."""
    train = data.train
    assert train.entities is not None
    parts = split_training_triples(train.triples, len(train.entities), seed=seed)
    part = _graph(parts.part, parts.part_entities, train)
    other = _graph(parts.other, parts.other_entities, train)
    held = hold_out_mask(other.triples, fraction=HELD_SHARE, seed=seed)
    count = other.num_nodes or 0
    return InductiveData(
        name=f"{data.name}, split {seed} of the training graph",
        mode="fully-inductive",
        train=part,
        train_valid=None,
        inference=KnowledgeGraph.from_triples(
            other.triples[~held], entities=other.entities, relations=other.relations
        ),
        boundary_mask=torch.zeros(count, dtype=torch.bool),
        boundary_source=torch.full((count,), -1),
        valid=other.triples[held],
        test=None,
    )


def _graph(triples: torch.Tensor, ids: torch.Tensor, of: KnowledgeGraph) -> KnowledgeGraph:
    assert of.entities is not None
    return KnowledgeGraph.from_triples(
        triples,
        entities=Vocabulary(of.entities.labels_of(ids), kind="entities"),
        relations=of.relations,
    )


def run_search(
    config: Config,
    family: str,
    split: int,
    settings: dict[str, Config],
    root: str | None = None,
    *,
    base: str | None = "propagation",
    folder: Path,
) -> list[dict[str, Any]]:
    """Trains one model on a part of the training graph, and its episodes under every setting.

    There are also records of the model without episodes, named ``base``, unless that is None.
    """
    data = split_training_graph(load_data(config, root), split)
    module = SheafCompletion(**(config["model"] | {"seed": 0}))
    model, _ = train_model(module, config, data, folder=folder)
    near = LogProximity(data.inference.triples, data.inference.num_nodes or 0)
    records = [] if base is None else _base_records(base, module, model, data, near)
    for name, change in settings.items():
        done = folder / f"{name}.json"
        if not done.is_file():
            begin = time.process_time()
            chosen = EpisodeSettings(**(CENTRE[family] | change))
            episodes, _ = train_episodes(model, data.train.triples, chosen)
            assert data.inference.entities is not None
            scorer = EpisodeScorer(episodes, data.inference.triples, data.inference.entities.labels)
            seconds = time.process_time() - begin
            walk = near
            if episodes.log_walk is not None:
                graph = data.inference.triples, data.inference.num_nodes or 0
                walk = LogProximity(*graph, log_weight=episodes.log_walk)
            found = _rank(name, scorer, data, walk, 1.0, {"seconds": round(seconds, 2)})
            write_text(done, json.dumps(found))
        records += json.loads(done.read_text("utf-8"))
    return records


def _base_records(
    name: str, module: SheafCompletion, model: KGEModel, data: InductiveData, near: LogProximity
) -> list[dict[str, Any]]:
    """The model without episodes; its weights of proximity are shares of its scores' spread."""
    settings = module.search.settings
    best: list[dict[str, Any]] = []
    for count in (2, 3, 4, 6, 8, 12, 16, 24, 32):
        propagation = InductivePropagation(model, data, replace(settings, iterations=count))
        scorer = propagation.scorer()
        spread = score_spread(scorer, data.inference.triples)
        rows = _rank(name, scorer, data, near, spread, {"iterations": count})
        if not best or _value(rows) > _value(best):
            best = rows
    return best


def _value(rows: Sequence[dict[str, Any]]) -> float:
    return float(max(row["hits@10"] + row["mrr"] for row in rows))


def _rank(
    name: str,
    scorer: Scorer,
    data: InductiveData,
    near: LogProximity,
    scale: float,
    more: dict[str, Any],
) -> list[dict[str, Any]]:
    assert data.valid is not None
    loops = relations_with_loops(data.train.triples, data.num_relations)
    rows = []
    for weight in WEIGHTS:
        both = ProximityScorer(scorer, near, weight * scale, may_loop=loops)
        result = evaluate(both.score_tails, both.score_heads, data.valid, inference_filter(data))
        metrics = result.metrics("merged")
        figures = {"hits@10": metrics["hits@10_merged"], "mrr": metrics["mrr_merged"]}
        rows.append({"setting": name, "weight": weight} | figures | more)
    return rows


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--family", nargs="+", choices=FAMILIES, default=list(FAMILIES), help="benchmarks (all)")
    add("--version", nargs="+", choices=VERSIONS, default=["v2", "v3"], help="versions (v2 v3)")
    add("--splits", nargs="+", type=int, default=[0, 1], help="seeds of the splits (0 1)")
    add("--settings", nargs="+", help="settings of the grid by name (all)")
    add("--model", default="rotate", help="the model (rotate)")
    add(
        "--width",
        metavar="D",
        type=integer(1),
        help="train models of this dimension instead of the preset's, and rank with episodes alone",
    )
    add(
        "--base-steps",
        metavar="N",
        type=integer(1),
        help="train models for this number of steps instead of the preset's",
    )
    add("--data", help="folder of the benchmark's files or archives (default: SHEAFPROP_DATA)")
    add("--table", action="store_true", help="print what the file holds, and run nothing")
    add_running_options(parser, "episode_search.jsonl")
    options = parser.parse_args(arguments)
    store = CellStore(options.results, KEYS, FIELDS)
    with report_errors(parser, "finished cells are kept, and the same command goes on"):
        if not options.table:
            cells = []
            axes = (options.splits, options.version, options.family)
            for split, version, family in combine(*axes):
                config = completion_config("best", family, version, options.model)
                config["model"].pop("episodes", None)
                config["model"].pop("proximity", None)
                settings = CHANGES[family]
                if options.settings:
                    settings = {k: v for k, v in settings.items() if k in options.settings}
                suffix = ""
                if options.width is not None:
                    config["model"]["hidden_channels"] = options.width
                    suffix += f", d {options.width}"
                if options.base_steps is not None:
                    config["trainer"]["max_steps"] = options.base_steps
                    suffix += f", base {options.base_steps}"
                base = f"propagation{suffix}" if options.width is None else None
                run = partial(run_search, base=base)
                settings = {name + suffix: change for name, change in settings.items()}
                key = {"dataset": f"{family}_{version}", "model": options.model, "split": split}
                key["config_hash"] = config_hash(config | {"settings": settings})
                cells.append(Cell(key, run, (config, family, split, settings, options.data)))
            store.check()
            run_cells(cells, store, jobs=options.jobs, threads=options.threads, again=options.again)
        print(table(store.records()))


def table(records: Sequence[dict[str, Any]]) -> str:
    """For every family and setting the best weight of proximity, best settings first."""
    lines = []
    families = sorted({record["dataset"].rpartition("_")[0] for record in records})
    for family in families:
        own = [r for r in records if r["dataset"].startswith(f"{family}_")]
        cells = {(r["dataset"], r["split"]) for r in own}
        found: dict[tuple[str, float], list[dict[str, Any]]] = {}
        for record in own:
            found.setdefault((record["setting"], record["weight"]), []).append(record)
        means = {
            key: [sum(r[name] for r in rows) / len(rows) for name in ("hits@10", "mrr")]
            for key, rows in found.items()
            if len(rows) == len(cells)
        }
        best: dict[str, tuple[float, float]] = {}
        for (setting, weight), (hits, mrr) in means.items():
            if setting not in best or hits + mrr > best[setting][0]:
                best[setting] = hits + mrr, weight
        lines.append(f"{family}: {len(cells)} splits")
        for setting, (value, weight) in sorted(best.items(), key=lambda item: -item[1][0]):
            plain = means[setting, 0.0]
            hits, mrr = means[setting, weight]
            lines.append(
                f"  {setting:22s} without {100 * plain[0]:5.2f} {plain[1]:.4f}   "
                f"weight {weight:.1f}: {100 * hits:5.2f} {mrr:.4f}   sum {value:.4f}"
            )
    return "\n".join(lines)
