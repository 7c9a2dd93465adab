"""Episodes and proximity on entity-disjoint splits, made as ``sheafprop split`` makes them.

The public inductive benchmarks are known for a shortcut: their missing triples join entities that
are near each other. Here regions of a whole graph are set apart, so that the share of proximity
alone shows. Settings are those of the presets; the propagation is chosen on validation.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cells import Cell, CellStore, add_running_options, combine, run_cells
from benchmarks.command_line import report_errors
from benchmarks.completion_cell import figures
from benchmarks.episode_cell import rank_proximity, run_episode_cell
from benchmarks.presets import Config, config_hash
from benchmarks.transductive_data import read_parts
from sheafprop.config_files import load_config
from sheafprop.data import assemble, split_graph
from sheafprop.data.inductive_data import InductiveData
from sheafprop.inductive.propagation_search import inference_filter
from sheafprop.ranking import EdgeTypeHeuristic, evaluate
from sheafprop.ranking.edge_type_heuristic import HEURISTIC
from sheafprop.report.tables import markdown_table

KEYS = ("dataset", "seed", "config_hash")
FIELDS = ("model", "protocol", "hits@10", "mrr")

#: Data sets with the most triples that are taken of them.
DATASETS: dict[str, int | None] = {"codex-s": None, "FB15k-237": 60_000}


def load_split(name: str, seed: int) -> InductiveData:
    """A whole graph, split in two parts without a common entity."""
    triples = np.concatenate(read_parts(name))
    split = split_graph(triples, "fully-inductive", max_triples=DATASETS[name], seed=seed)
    return assemble(
        f"{name}, split {seed}",
        "fully-inductive",
        train=split.train,
        train_valid=split.train_valid,
        observed=split.observed,
        valid=split.valid,
        test=split.test,
    )


def run_split(name: str, seed: int, config: Config, *, folder: Path) -> list[dict[str, Any]]:
    """Ranks the test triples of a split by every method."""
    data = load_split(name, seed)
    records = run_episode_cell(config, seed, folder=folder, data=data) + rank_proximity(data)
    heuristic = EdgeTypeHeuristic(
        data.inference.triples, data.inference.num_nodes or 0, data.num_relations
    )
    assert data.test is not None
    scores = heuristic.score_tails, heuristic.score_heads
    result = evaluate(*scores, data.test, inference_filter(data))
    for protocol in ("full", "sampled50"):
        row = {"model": HEURISTIC, "protocol": protocol}
        records.append(row | figures(result.metrics(protocol), protocol))
    counts = {"num_test": len(data.test), "num_train": data.train.num_edges}
    return [record | counts for record in records]


def split_table(records: Sequence[dict[str, Any]], protocol: str = "full") -> str:
    """Hits@10 in percent (MRR) of every method by split, as Markdown."""
    chosen = [r for r in records if r["protocol"] == protocol]
    columns = list(dict.fromkeys((r["dataset"], r["seed"]) for r in chosen))
    rows = []
    for model in dict.fromkeys(r["model"] for r in chosen):
        cells = []
        for column in columns:
            found = [r for r in chosen if (r["dataset"], r["seed"]) == column]
            (row,) = (r for r in found if r["model"] == model)
            cells.append(f"{100 * row['hits@10']:.1f} ({row['mrr']:.3f})")
        rows.append([model, *cells])
    header = [f"{dataset}, split {seed}" for dataset, seed in columns]
    return markdown_table([f"entity-disjoint, {protocol}", *header], rows)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--dataset", nargs="+", choices=DATASETS, default=list(DATASETS), help="graphs (all)")
    add("--seeds", nargs="+", type=int, default=[0], help="seeds of split and training (0)")
    add_running_options(parser, "own_splits.jsonl")
    options = parser.parse_args(arguments)
    store = CellStore(options.results, KEYS, FIELDS)
    config = load_config("preset/episodes/fb237_rotate.yaml")
    with report_errors(parser, "finished cells are kept, and the same command goes on"):
        store.check()
        cells = []
        for seed, name in combine(options.seeds, options.dataset):
            key = {"dataset": name, "seed": seed}
            key["config_hash"] = config_hash(config | {"most": DATASETS[name]})
            cells.append(Cell(key, run_split, (name, seed, config)))
        run_cells(cells, store, jobs=options.jobs, threads=options.threads, again=options.again)
        print(split_table(store.records()))
