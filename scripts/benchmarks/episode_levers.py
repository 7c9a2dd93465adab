"""What may be added to the episodes, on entity-disjoint parts of the training graphs alone.

Every lever is compared with a preset as it is: on the part that is set apart, a quarter of the
triples is hidden in several draws, and both rank the hidden ones. The gain in MRR + Hits@10
(pessimistic ties) is paired by query, and its standard error is clustered by triple. A lever is
kept where the mean gain over the three families is at least two standard errors.
"""

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from benchmarks.cells import Cell, CellStore, add_running_options, combine, run_cells
from benchmarks.command_line import report_errors
from benchmarks.completion_cell import load_data, train_model
from benchmarks.episode_search import split_training_graph
from benchmarks.episode_variants import (
    ColumnWeights,
    NearEpisodes,
    SeveralDiffusions,
    train_variant,
)
from benchmarks.presets import (
    EPISODES,
    FAMILIES,
    VERSIONS,
    Config,
    completion_config,
    config_hash,
)
from benchmarks.proximity_weights import HiddenQueries, fit_weights, score_hidden
from sheafprop.data.inductive_data import InductiveData
from sheafprop.files import write_text
from sheafprop.inductive.episode_model import EpisodeModel, EpisodeSettings
from sheafprop.inductive.episode_scorer import EpisodeScorer, Scorer, WithVectors
from sheafprop.inductive.free_system import FreeSystem
from sheafprop.inductive.inductive_propagation import InductivePropagation
from sheafprop.inductive.proximity_scorer import (
    ProximitySettings,
    rank_own_last_,
    relations_with_loops,
)
from sheafprop.inductive.training_graph import split_training_triples
from sheafprop.kge import KGEModel, build_model
from sheafprop.nn.start import RelationPrototypes
from sheafprop.report.tables import NOTHING, markdown_table
from sheafprop.training.episode_training import train_episodes
from sheafprop.training.sheaf_completion import SheafCompletion

KEYS = ("dataset", "split", "config_hash", "setting")
FIELDS = ("gain", "error", "hits@10", "mrr")

#: Draws of hidden triples that judge, and that weights are fitted to.
_DRAWS = 4
_BASE = "preset"
#: Diffusion steps of vectors beside the episodes.
_STEPS = 3
#: Shares of peers in the weight of proximity, and factors of that weight.
_PEERS = (0.0, 0.25, 0.5, 0.75)
_FACTORS = (1, 0.9, 0.6)
#: Values of ``observed`` and ``count_weight``.
_OBSERVED: tuple[tuple[Literal["frequency", "number"], float], ...] = (
    ("number", 1.0),
    ("number", 2.0),
    ("frequency", 0.5),
)
#: Shares of hidden triples of which those of isolated entities are not ranked.
_HIDDEN = (0.2, 0.3, 0.5)


def run_levers(
    config: Config, split: int, levers: Sequence[str], root: str | None = None, *, folder: Path
) -> list[dict[str, Any]]:
    """Judges every lever on a part of the training graph that shares no entity with the rest."""
    data = split_training_graph(load_data(config, root), split)
    module = SheafCompletion(**(config["model"] | {"seed": 0}))
    settings, near = module.episode_settings, module.proximity
    assert settings is not None
    trained = settings.maps == "trained"
    vectors = trained or "propagated vectors" in levers
    kge = _build_model(config, data, folder, trained=vectors)
    assert near is not None
    assert data.valid is not None
    triples, judge = (
        torch.unique(data.train.triples, dim=0),
        torch.cat([data.inference.triples, data.valid]),
    )
    judge = torch.unique(judge, dim=0)
    may_loop = relations_with_loops(triples, data.num_relations)

    def hidden(
        model: EpisodeModel,
        graph: Tensor,
        share: float,
        walk: ProximitySettings = near,
        **more: Any,
    ) -> list[HiddenQueries]:
        draws = range(_DRAWS)
        return [score_hidden(model, graph, walk, share=share, seed=s, **more) for s in draws]

    episodes, _ = train_episodes(kge, triples, settings)
    parts = hidden(episodes, judge, 0.25)
    values: dict[str, Tensor] = {}
    seconds: dict[str, float] = {}
    more: dict[str, Any] = {}

    def quantiles(weight: Tensor) -> dict[str, list[float]]:
        five = weight.detach().quantile(torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]))
        return {"weights": [round(v, 3) for v in five.tolist()]}

    base: dict[str, str] = {}

    def add(
        name: str,
        parts: list[HiddenQueries],
        weight: Tensor | float,
        begin: float,
        against: str = _BASE,
    ) -> None:
        values[name] = torch.cat([_values(part, weight, may_loop) for part in parts])
        seconds[name] = round(time.process_time() - begin, 1)
        base[name] = against
        if isinstance(weight, Tensor):
            more[name] = quantiles(weight)

    add(_BASE, parts, near.weight, time.process_time())
    for name in levers:
        begin = time.process_time()
        rows = 2 * data.num_relations
        if name == "fitted on the training graph":
            own = hidden(episodes, triples, 0.2)
            add("one weight, " + name, parts, fit_weights(own, rows, prior=0), begin)
            add("weight a relation, " + name, parts, fit_weights(own, rows), begin)
        elif name == "fitted on a part":
            cut = split_training_triples(triples, kge.num_nodes)
            inner = train_variant(EpisodeModel, kge, cut.part, settings, cut.part_entities)
            own = hidden(inner, cut.other, 0.2)
            add("one weight, " + name, parts, fit_weights(own, rows, prior=0), begin)
            add("one weight by rank, " + name, parts, _best_weight(own, may_loop), begin)
            for prior in (0.25, 0.5, 1.0):
                label = f"weight a relation ({prior}), {name}"
                add(label, parts, fit_weights(own, rows, prior=prior), begin)
        elif name == "trained in the episode":
            joint = train_variant(lambda *a: NearEpisodes(*a, near=near), kge, triples, settings)
            assert isinstance(joint, NearEpisodes)
            add("weight a relation, " + name, hidden(joint, judge, 0.25), 0.0, begin)
            more["weight a relation, " + name] = quantiles(joint.log_near.exp())
        elif name == "two diffusions":
            two = train_variant(SeveralDiffusions, kge, triples, settings)
            add(name, hidden(two, judge, 0.25), near.weight, begin)
        elif name == "peers":
            for share in _PEERS:
                both = hidden(episodes, judge, 0.25, replace(near, peers=share))
                for factor in _FACTORS:
                    label = f"share {share}, {factor} of the weight, {name}"
                    if share or factor != 1:
                        add(label, both, factor * near.weight, begin)
        elif name == "other walks":
            walks = [replace(near, teleport=teleport) for teleport in (0.05, 0.3)]
            for walk in (*walks, replace(near, num_iterations=4)):
                label = f"teleport {walk.teleport}, {walk.num_iterations} steps, {name}"
                add(label, hidden(episodes, judge, 0.25, walk), near.weight, begin)
        elif name == "walk by relation":
            walking, _ = train_episodes(kge, triples, replace(settings, walk_steps=60))
            walked = hidden(walking, judge, 0.25)
            for factor in (1, 1.25):
                add(f"{factor} of the weight, {name}", walked, factor * near.weight, begin)
            for share in (0.15, 0.25):
                both = hidden(walking, judge, 0.25, replace(near, peers=share))
                label = f"peers {share}, 0.9 of the weight, {name}"
                add(label, both, 0.9 * near.weight, begin)
        elif name == "observed answers":
            for observed, start in _OBSERVED:
                changed = replace(settings, observed=observed, count_weight=start)
                counted, _ = train_episodes(kge, triples, changed)
                label = f"{observed} from {start}, {name}"
                add(label, hidden(counted, judge, 0.25), near.weight, begin)
        elif name == "connected triples":
            for share in _HIDDEN:
                changed = replace(settings, rank_isolated=False, hidden_share=share)
                connected, _ = train_episodes(kge, triples, changed)
                label = f"{share} hidden, {name}"
                add(label, hidden(connected, judge, 0.25), near.weight, begin)
        elif name == "propagated vectors":
            for share in (0.1, 0.2, 0.35):
                beside = partial(_with_vectors, module, kge, triples, share)
                summed = hidden(episodes, judge, 0.25, beside=beside)
                add(f"share {share}, {name}", summed, near.weight, begin)
        elif name == "another seed":
            other = train_variant(EpisodeModel, kge, triples, settings, seed=1)
            add(name, hidden(other, judge, 0.25), near.weight, begin)
        elif name == "twice the columns":
            width = 2 * config["model"]["hidden_channels"]
            wider = config | {"model": config["model"] | {"hidden_channels": width}}
            wide = _build_model(wider, data, folder / "wide", trained=trained)
            model = train_variant(EpisodeModel, wide, triples, settings)
            add(f"{width} columns, {name}", hidden(model, judge, 0.25), near.weight, begin)
        elif name == "weights a column":
            for label, score, diffusion in (
                ("of the score", True, False),
                ("of the diffusion", False, True),
                ("of both", True, True),
            ):
                build = partial(ColumnWeights, score=score, diffusion=diffusion)
                weighed = train_variant(build, kge, triples, settings)
                add(f"{label}, {name}", hidden(weighed, judge, 0.25), near.weight, begin)
        elif name == "quaternions":
            twice = _twice(settings)
            turned = _build_model(config, data, folder / "su2e", trained=trained, kge="su2e")
            model = train_variant(EpisodeModel, turned, triples, twice)
            add(name, hidden(model, judge, 0.25), near.weight, begin)
        elif name == "random maps":
            # Phases and quaternions drawn alike, also where the preset starts at trained maps.
            drawn = replace(settings, maps="random")
            phases = train_variant(EpisodeModel, kge, triples, drawn)
            label = f"phases, {name}"
            add(label, hidden(phases, judge, 0.25), near.weight, begin)
            turned = _build_model(config, data, folder, trained=False, kge="su2e")
            model = train_variant(EpisodeModel, turned, triples, _twice(drawn))
            parts = hidden(model, judge, 0.25)
            add(f"quaternions, {name}", parts, near.weight, begin)
            add(f"quaternions against phases, {name}", parts, near.weight, begin, label)
        else:
            raise ValueError(name)
    triple = torch.cat([part.triple for part in parts])
    records = []
    for name, value in values.items():
        gain, error = paired_gain(value.sum(1) - values[base[name]].sum(1), triple)
        mrr, hits = value.mean(0).tolist()
        records.append(
            {"setting": name, "gain": gain, "error": error, "hits@10": hits, "mrr": mrr}
            | {"triples": len(torch.unique(triple)), "seconds": seconds[name]}
            | {"against": base[name]}
            | more.get(name, {})
        )
    write_text(folder / "records.json", json.dumps(records))
    return records


def _with_vectors(
    module: SheafCompletion,
    kge: KGEModel,
    triples: Tensor,
    share: float,
    observed: Tensor,
    episodes: EpisodeScorer,
    seed: int,
) -> Scorer:
    """The scores of episodes and, at a share of their spread, those of propagated vectors."""
    x, count = kge.entity_vectors().detach(), episodes.graph.observed.num_nodes
    edges = observed[:, [0, 2]].T, observed[:, 1]
    known = torch.zeros(count, dtype=torch.bool)
    labels = [str(i) for i in range(count)]
    system = FreeSystem(x.new_zeros(count, 1, x.shape[1]), known, *edges, labels)
    settings = replace(module.search.settings, iterations=_STEPS, seed=seed)
    ends = triples[:, [0, 2]].T, triples[:, 1]
    prototypes = RelationPrototypes.from_triples(x, *ends, kge.num_relations)
    propagation = InductivePropagation.from_system(
        kge, system, settings, sheaf=kge.sheaf(), prototypes=prototypes
    )
    return WithVectors(episodes, propagation.scorer(), share, observed)


def _twice(settings: EpisodeSettings) -> EpisodeSettings:
    """The settings for real columns in the place of complex ones."""
    width = settings.hidden_channels
    return settings if width is None else replace(settings, hidden_channels=2 * width)


def _build_model(
    config: Config, data: InductiveData, folder: Path, *, trained: bool, kge: str = "rotate"
) -> KGEModel:
    """A model with the settings of the preset and as many real columns; trained, if its maps are
    more than a kind and a size."""
    width = config["model"]["hidden_channels"] * (2 if kge == "su2e" else 1)
    module = SheafCompletion(
        **(config["model"] | {"kge": kge, "hidden_channels": width, "seed": 0})
    )
    if trained:
        return train_model(module, config, data, folder=folder)[0]
    sizes = {"num_nodes": data.train.num_nodes, "num_relations": data.num_relations}
    return build_model(kge, **sizes, hidden_channels=width, squared=True)


def _values(part: HiddenQueries, weight: Tensor | float, may_loop: Tensor) -> Tensor:
    """Reciprocal ranks and Hits@10 ``[B, 2]`` under pessimistic ties."""
    own = weight[part.query].unsqueeze(1) if isinstance(weight, Tensor) else weight
    scores = part.score + own * part.near
    relation = part.query % len(may_loop)
    half = len(part.answer) // 2
    entity = part.answer.roll(half)  # the answer of one side is the other's entity
    known = scores.isneginf()
    scores = scores.masked_fill(known, scores[~known].min() - 1)
    rank_own_last_(scores, entity, ~may_loop[relation])
    scores = scores.masked_fill(known, -torch.inf)
    true = scores.gather(1, part.answer.unsqueeze(1))
    rank = (scores >= true).sum(1)
    return torch.stack([1 / rank, (rank <= 10).float()], dim=1)


def _best_weight(parts: Sequence[HiddenQueries], may_loop: Tensor) -> float:
    """The weight of a grid with the largest MRR + Hits@10."""
    grid = (0.0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0, 1.2, 1.6)
    sums = [sum(float(_values(p, w, may_loop).sum()) for p in parts) for w in grid]
    return grid[max(range(len(grid)), key=sums.__getitem__)]


def paired_gain(difference: Tensor, triple: Tensor) -> tuple[float, float]:
    """The mean of paired differences, and its standard error clustered by triple."""
    _, place = torch.unique(triple, return_inverse=True)
    mean = difference.double().mean()
    sums = torch.zeros(int(place.max()) + 1, dtype=torch.float64)
    sums.index_add_(0, place, difference.double() - mean)
    return float(mean), float(sums.square().sum().sqrt() / len(difference))


#: The levers, by name.
LEVERS = (
    "peers",
    "other walks",
    "propagated vectors",
    "fitted on the training graph",
    "fitted on a part",
    "trained in the episode",
    "two diffusions",
    "another seed",
    "twice the columns",
    "walk by relation",
    "observed answers",
    "connected triples",
    "weights a column",
    "quaternions",
    "random maps",
)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--family", nargs="+", choices=FAMILIES, default=list(FAMILIES), help="benchmarks (all)")
    add("--version", nargs="+", choices=VERSIONS, default=["v2", "v3"], help="versions (v2 v3)")
    add("--splits", nargs="+", type=int, default=[0], help="seeds of the splits (0)")
    add("--levers", nargs="+", choices=LEVERS, default=list(LEVERS), help="levers (all)")
    add("--preset", choices=EPISODES, default="isolated", help="what they change (isolated)")
    add("--data", help="folder of the benchmark's files or archives (default: SHEAFPROP_DATA)")
    add("--table", action="store_true", help="print what the file holds, and run nothing")
    add_running_options(parser, "episode_levers.jsonl")
    options = parser.parse_args(arguments)
    store = CellStore(options.results, KEYS, FIELDS)
    with report_errors(parser, "finished cells are kept, and the same command goes on"):
        if not options.table:
            cells = []
            for split, version, family in combine(options.splits, options.version, options.family):
                config = completion_config(options.preset, family, version, "rotate")
                key = {"dataset": f"{family}_{version}", "split": split}
                key["config_hash"] = config_hash(config | {"levers": options.levers})
                cells.append(Cell(key, run_levers, (config, split, options.levers, options.data)))
            store.check()
            run_cells(cells, store, jobs=options.jobs, threads=options.threads, again=options.again)
        print(lever_table(store.records()))


def lever_table(records: Sequence[dict[str, Any]]) -> str:
    """The gain of every lever in points of MRR + Hits@10, as Markdown: over all, by family."""
    datasets = list(dict.fromkeys(r["dataset"] for r in records))
    columns = list(dict.fromkeys(name.rpartition("_")[0] for name in datasets))
    rows = []
    for name in dict.fromkeys(r["setting"] for r in records):
        if name == _BASE:
            continue
        own, number = {}, 0
        for dataset in datasets:
            # One record a split: a lever may have been measured among others before.
            mine = (r for r in records if (r["dataset"], r["setting"]) == (dataset, name))
            splits = {r["split"]: (r["gain"], r["error"]) for r in mine}
            if splits:
                own[dataset] = _mean(list(splits.values()))
                number += len(splits)
        families: dict[str, list[tuple[float, float]]] = {}
        for dataset, found in own.items():
            families.setdefault(dataset.rpartition("_")[0], []).append(found)
        means = {family: _mean(part) for family, part in families.items()}
        each = [_points(*means[c]) if c in means else NOTHING for c in columns]
        rows.append([name, _points(*_mean(list(means.values()))), *each, str(number)])
    return markdown_table(["lever", "mean of the families", *columns, "splits"], rows)


def _mean(gains: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The mean of gains and its standard error, taking their errors as independent."""
    number = len(gains)
    return sum(g for g, _ in gains) / number, math.hypot(*(e for _, e in gains)) / number


def _points(gain: float, error: float) -> str:
    return f"{100 * gain:+.2f} ± {100 * error:.2f}"
