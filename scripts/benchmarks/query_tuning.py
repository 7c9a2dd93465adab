"""Hyperparameters chosen by the training graph alone, against those chosen by pi and ip queries.

The appendix of Cobb and Gebhart compares the two. Every setting of the space is tried once, on nine
tenths of the training graph. *Transductively* the best is the one that ranks the other triples best
(filtered Hits@10, no propagation); validation queries of one hop choose its number of iterations.
*On pi and ip* it is the one with the best validation Hits@10 on these queries after propagation,
which choose the number of iterations too. Both are then trained on the whole training graph and
ranked on the test queries once.
"""

from dataclasses import replace
from itertools import product
from pathlib import Path

from tqdm.auto import tqdm

from benchmarks.presets import QueryConfig
from benchmarks.query_cell import Record, choose_settings, run_cell, train
from benchmarks.query_task import QueryTask, read_queries
from benchmarks.training import hold_out, rank_triples
from sheafprop.ranking import TripleFilter

#: The criteria by the name of the preset they give, with the queries that choose the iterations.
CRITERIA = {"tuned transductively": ("1p",), "tuned on pi and ip": ("pi", "ip")}
#: The hyperparameters that are tried, each with each.
SPACE = {"lr": (0.01, 0.03, 0.1), "scale": (2.0, 4.0)}


def run_tuning(
    place: Path, ratio: str, config: QueryConfig, seed: int, *, folder: Path
) -> list[Record]:
    """The records of the test queries, with their criterion as their preset."""
    valid = QueryTask(read_queries(place, ratio), "valid", config.inverse_relations)
    part, held = hold_out(valid.completion, seed)
    graph = valid.completion.train
    known = TripleFilter({"train": graph.triples}, graph.num_nodes, valid.completion.num_relations)
    tried = []
    for lr, scale in tqdm(list(product(*SPACE.values())), desc="settings", disable=None):
        own = with_hyperparameters(config, lr, scale)
        model, _ = train(own, part, seed, folder / f"lr {lr}, scale {scale}")
        values = {
            "tuned transductively": rank_triples(model, held, known).metrics("full")["hits@10"],
            "tuned on pi and ip": choose_settings(
                valid, model, replace(own, selection_types=("pi", "ip")), seed
            )[1],
        }
        tried.append({"lr": lr, "scale": scale} | values)
    found = []
    for name, types in CRITERIA.items():
        best = max(tried, key=lambda entry: entry[name])
        own = with_hyperparameters(config, best["lr"], best["scale"])
        own = replace(own, selection_types=types)
        records = run_cell(place, ratio, own, seed, folder=folder / name)
        found += [{"preset": name} | record | {"tried": tried} for record in records]
    return found


def with_hyperparameters(config: QueryConfig, lr: float, scale: float) -> QueryConfig:
    """The configuration with other hyperparameters."""
    loss_args = config.model["loss_args"] | {"scale": scale}
    return replace(config, model=config.model | {"lr": lr, "loss_args": loss_args})
