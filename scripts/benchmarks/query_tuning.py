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
from typing import Any

import torch
from tqdm.auto import tqdm

from benchmarks.query_cell import Record, chosen_settings, run_cell, trained
from benchmarks.query_presets import QueryConfig
from benchmarks.query_task import QueryTask
from sheafprop.data import KnowledgeGraph, hold_out_mask
from sheafprop.data.datasets.query_data import QueryData
from sheafprop.data.inductive_data import InductiveData
from sheafprop.kge import KGEModel
from sheafprop.ranking import TripleFilter, evaluate

#: The criteria by the name of the preset they give, with the queries that choose the iterations.
CRITERIA = {"tuned transductively": ("1p",), "tuned on pi and ip": ("pi", "ip")}
#: The hyperparameters that are tried, each with each.
SPACE = {"lr": (0.01, 0.03, 0.1), "scale": (2.0, 4.0)}
HELD_OUT = 0.1


def run_tuning(data: QueryData, config: QueryConfig, seed: int) -> dict[str, list[Record]]:
    """The records of the test queries by criterion."""
    valid = QueryTask(data, "valid", config.inverse_relations)
    part, held = without(valid.completion, seed)
    known = TripleFilter(
        {"train": valid.completion.train.triples},
        valid.completion.train.num_nodes,
        valid.completion.num_relations,
    )
    tried = []
    for lr, scale in tqdm(list(product(*SPACE.values())), desc="settings", disable=None):
        own = with_hyperparameters(config, lr, scale)
        model = trained(own, part, seed)
        values = {
            "tuned transductively": hits_of_held_out(model, held, known),
            "tuned on pi and ip": chosen_settings(
                valid, model, replace(own, selection_types=("pi", "ip")), seed
            )[1],
        }
        tried.append({"lr": lr, "scale": scale} | values)
    found = {}
    for name, types in CRITERIA.items():
        best = max(tried, key=lambda entry: entry[name])
        own = with_hyperparameters(config, best["lr"], best["scale"])
        records = run_cell(data, replace(own, selection_types=types), seed)
        found[name] = [record | {"tried": tried} for record in records]
    return found


def with_hyperparameters(config: QueryConfig, lr: float, scale: float) -> QueryConfig:
    """The configuration with other hyperparameters."""
    loss_args = config.model["loss_args"] | {"scale": scale}
    return replace(config, model=config.model | {"lr": lr, "loss_args": loss_args})


def without(data: InductiveData, seed: int) -> tuple[InductiveData, torch.Tensor]:
    """The data with a tenth of the training triples held out, and these triples."""
    triples = data.train.triples
    held = hold_out_mask(triples, fraction=HELD_OUT, seed=seed)
    train = KnowledgeGraph.from_triples(
        triples[~held],
        num_nodes=data.train.num_nodes,
        num_relations=data.num_relations,
        entities=data.train.entities,
        relations=data.train.relations,
    )
    return replace(data, train=train), triples[held]


@torch.no_grad()
def hits_of_held_out(model: KGEModel, held: torch.Tensor, known: TripleFilter) -> float:
    """Filtered Hits@10 of triples of the training graph, both sides."""
    x = model.entity_vectors()

    def tails(head: torch.Tensor, relation: torch.Tensor) -> torch.Tensor:
        return model.score_tails(x, head, relation)

    def heads(relation: torch.Tensor, tail: torch.Tensor) -> torch.Tensor:
        return model.score_heads(x, relation, tail)

    metrics: dict[str, Any] = evaluate(tails, heads, held, known).metrics("full")
    return float(metrics["hits@10"])
