"""A cell of the preset ``episodes``: train, learn relations through the diffusion, rank once."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.completion_cell import (
    Record,
    figures,
    load_data,
    times,
    train_model,
)
from sheafprop.data.inductive_data import InductiveData
from sheafprop.inductive.episode_scorer import EpisodeScorer, Scorer
from sheafprop.inductive.inductive_propagation import InductivePropagation
from sheafprop.inductive.propagation_search import inference_filter
from sheafprop.inductive.proximity_scorer import (
    LogProximity,
    ProximityScorer,
    ProximitySettings,
    add_proximity,
)
from sheafprop.inductive.rank_completion import FILTERED_PROXIMITY, PEERS, PROXIMITY
from sheafprop.ranking import EdgeTypeHeuristic, evaluate
from sheafprop.training.episode_training import train_episodes
from sheafprop.training.sheaf_completion import SheafCompletion

_PLAIN = ("full", "sampled50")
#: The share of peers in the preset ``peers``.
_PEERS = 0.5
#: The share of peers beside a walk by relation, and the factor of the weight of proximity.
_BESIDE_WALK = 0.25, 0.9


def run_episode_cell(
    config: dict[str, Any],
    seed: int,
    root: str | None = None,
    *,
    folder: Path,
    data: InductiveData | None = None,
    vectors: bool = True,
) -> list[Record]:
    """Ranks with episodes and proximity, each with and without the other.

    The settings of episodes and proximity are those of the preset, from the training graphs alone,
    so that figures of ``merged`` are compared. The propagation of the rows without episodes is
    chosen on validation, so these have no ``merged``; there are none unless ``vectors``. Where
    proximity has peers, all rows have them. ``data`` stand in the place of the configured ones.
    """
    data = load_data(config, root) if data is None else data
    module = SheafCompletion(**(config["model"] | {"seed": seed}))
    model, training = train_model(module, config, data, folder=folder)
    name, near_settings = config["model"]["kge"], module.proximity
    assert module.episode_settings is not None
    assert near_settings is not None
    assert data.valid is not None
    assert data.test is not None
    assert data.inference.entities is not None
    seconds = {"train": training}
    episodes, record = train_episodes(
        model,
        data.train.triples,
        module.episode_settings,
        seed=seed,
        folder=folder / "episodes",
    )
    seconds["episodes"] = record.seconds
    begin = time.process_time()
    scorer = EpisodeScorer(episodes, data.inference.triples, data.inference.entities.labels, seed)
    seconds["propagate"] = time.process_time() - begin
    near = plain_walk = _near(data, near_settings)
    if episodes.log_walk is not None:
        near = _near(data, near_settings, episodes.log_walk)
    records: list[Record] = []
    peers = bool(near_settings.peers)
    walk = " + proximity + peers" if peers else " + proximity"
    common = times(seconds) | {"num_steps": record.num_steps, "tried": record.tried}
    own: dict[str, Scorer] = {
        f"{name} + episodes{walk}": _beside(scorer, near, near_settings, data)
    }
    if episodes.log_walk is not None and not peers:
        share, factor = _BESIDE_WALK
        both = replace(near_settings, weight=factor * near_settings.weight, peers=share)
        own[f"{name} + episodes + proximity + peers"] = _beside(scorer, near, both, data)
    if not peers:
        own[f"{name} + episodes"] = scorer
    for label, one in own.items():
        begin = time.process_time()
        found = _rank(one, data, (*_PLAIN, "merged"))
        rank = {"seconds_rank": round(time.process_time() - begin, 2)}
        records += [{"model": label} | row | common | rank for row in found]
    if not vectors:
        return records
    begin = time.process_time()
    chosen = module.search.select(model, data).settings
    chosen_seconds = {"train": training, "select": time.process_time() - begin}
    more: Record = {"selected_on": "validation"} | times(chosen_seconds)
    propagation = InductivePropagation(model, data, chosen)
    plain = propagation.scorer()
    rest: dict[str, Scorer] = {name + walk: _beside(plain, plain_walk, near_settings, data)}
    if not peers:
        rest[name] = plain
    for label, one in rest.items():
        records += [{"model": label} | row | more for row in _rank(one, data, _PLAIN)]
    return records


def proximity_records(name: str, root: str | None, *, folder: Path) -> list[Record]:
    """Ranks by proximity alone, after the edge-type filter, and with peers: there is nothing to
    choose."""
    return rank_proximity(load_data({"data": {"dataset": "grail", "name": name}}, root))


def rank_proximity(data: InductiveData) -> list[Record]:
    """The records of the baselines of proximity on some data."""
    near = _near(data, ProximitySettings())
    heuristic = EdgeTypeHeuristic(
        data.inference.triples, data.inference.num_nodes or 0, data.num_relations
    )
    records: list[Record] = []
    scorers = {
        PROXIMITY: ProximityScorer(None, near),
        FILTERED_PROXIMITY: ProximityScorer(None, near, filtered_by=heuristic),
        PEERS: ProximityScorer(None, near, peers=_PEERS),
    }
    for label, scorer in scorers.items():
        found = _rank(scorer, data, (*_PLAIN, "merged"))
        records += [{"model": label} | row for row in found]
    return records


def _near(
    data: InductiveData, settings: ProximitySettings, log_weight: torch.Tensor | None = None
) -> LogProximity:
    count = data.inference.num_nodes or 0
    return LogProximity.of_settings(settings, data.inference.triples, count, log_weight)


def _beside(
    scorer: Scorer, near: LogProximity, settings: ProximitySettings, data: InductiveData
) -> Scorer:
    return add_proximity(
        scorer, near, settings, data.inference.triples, data.train.triples, data.num_relations
    )


def _rank(scorer: Scorer, data: InductiveData, protocols: tuple[str, ...]) -> list[Record]:
    assert data.valid is not None
    assert data.test is not None
    known, scores = inference_filter(data), (scorer.score_tails, scorer.score_heads)
    rows = []
    for merged in (False, True):
        wanted = [p for p in protocols if (p == "merged") == merged]
        if not wanted:
            continue
        triples = torch.cat([data.valid, data.test]) if merged else data.test
        result = evaluate(*scores, triples, known)
        rows += [{"protocol": p} | figures(result.metrics(p), p) for p in wanted]
    return rows
