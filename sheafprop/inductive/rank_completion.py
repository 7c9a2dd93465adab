import copy
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from sheafprop.data.inductive_data import InductiveData
from sheafprop.errors import DataError
from sheafprop.inductive.episode_model import EpisodeModel
from sheafprop.inductive.episode_scorer import (
    EpisodeScorer,
    Scorer,
    WithVectors,
    score_by_episodes,
)
from sheafprop.inductive.feature_map import FeatureMap
from sheafprop.inductive.inductive_propagation import InductivePropagation
from sheafprop.inductive.propagation_search import inference_filter
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.inductive.proximity_scorer import (
    LogProximity,
    ProximityScorer,
    ProximitySettings,
    add_proximity,
    proximity_is_cheap,
)
from sheafprop.kge.base import KGEModel
from sheafprop.ranking import EdgeTypeHeuristic, RankingResult, evaluate
from sheafprop.ranking.edge_type_heuristic import HEURISTIC
from sheafprop.ranking.ranking_result import label_queries, strata_metrics

PROXIMITY = "proximity alone"
FILTERED_PROXIMITY = "proximity after the edge-type filter"
PEERS = "proximity and peers alone"
MEAN = "mean of messages, one step"
NO_FEATURES = "without features"

NO_PROXIMITY = "the graph is large: proximity is ranked only where model.proximity is set"


@dataclass
class CompletionResult:
    """The rankings of the test triples of an inference graph by several methods.

    Args:
        rows (list of dict): One row per method and protocol: ``method``, ``protocol``,
            ``metrics``, ``strata`` (counts and metrics of subsets of the queries), and ``mark`` if
            a figure is not comparable.
        protocols (dict): The description of each protocol.
        seconds (dict): Wall time of propagation and of ranking.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    protocols: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def add(
        self,
        method: str,
        result: RankingResult,
        protocols: Sequence[str],
        strata: Mapping[str, Any],
        mark: str | None = None,
    ) -> None:
        """Adds the metrics of ``result`` under several protocols."""
        for protocol in protocols:
            entry = {
                "method": method,
                "protocol": protocol,
                "metrics": result.metrics(protocol),  # type: ignore[arg-type]
                "strata": strata_metrics(result, strata, protocol),
            }
            self.rows.append(entry if mark is None else entry | {"mark": mark})
            self.protocols.setdefault(protocol, result.describe(protocol))  # type: ignore[arg-type]


def rank_completion(
    model: KGEModel,
    data: InductiveData,
    settings: PropagationSettings,
    *,
    episodes: EpisodeModel | None = None,
    proximity: ProximitySettings | None = None,
    protocols: Sequence[str] = ("full", "sampled50"),
    selected: bool = True,
    selected_weights: Collection[str] = (),
    seed: int = 0,
    further: Mapping[str, Any] | None = None,
    progress: bool = True,
    feature_map: FeatureMap | None = None,
    rank: Callable[..., RankingResult] = evaluate,
) -> CompletionResult:
    r"""Propagates into the inference graph and ranks its test triples once.

    The first row is the complete method, with episodes and proximity if they are given. The next
    rows ablate these, the frequency of answers and features one by one (where proximity has no
    weight, ``own_last`` goes with the frequency). They are followed by baselines that need no
    training: the start and random vectors without propagation, one step of messages from the known
    entities, the edge-type heuristic, and proximity with and without that heuristic, always with
    the default teleport probability and number of steps. On large graphs, proximity is ranked only
    if ``proximity`` has a weight for it; a note reports this.

    Args:
        model (KGEModel): The trained model.
        data (InductiveData): The graphs and the test triples.
        settings (PropagationSettings): The selected settings.
        episodes (EpisodeModel, optional): Relations trained by episodes.
        proximity (ProximitySettings, optional): Settings of the proximity added to the scores.
        protocols (sequence of str): ``"full"``, ``"sampled50"``, ``"merged"``, ``"strict"``.
        selected (bool): Whether the settings were selected on the validation triples, in which case
            results under ``"merged"`` are marked.
        selected_weights (collection of str): The weights of proximity that were, too: ``"weight"``
            and ``"share"``, as in :class:`~sheafprop.inductive.ProximitySettings`.
        seed (int): Seed of the random vectors.
        further (mapping): Further methods by name, with ``score_tails`` and ``score_heads``.
        progress (bool): Whether to show progress bars on standard error.
        feature_map (FeatureMap, optional): The map from features to vectors. (default: fitted if
            the data have features)
        rank (callable): Ranks triples, with the arguments of :func:`~sheafprop.ranking.evaluate`.

    Raises:
        DataError: If there are no test triples, or no validation triples for ``"merged"``.
    """
    if data.test is None:
        raise DataError(f"{data.name}: there are no test triples to rank")
    if "merged" in protocols and data.valid is None:
        raise DataError("the protocol 'merged' ranks validation triples too, and there are none")
    device = model.node_emb.weight.device
    test = data.test.to(device)
    out = CompletionResult()
    begin = time.perf_counter()
    propagation = InductivePropagation(model, data, settings, feature_map)
    scorer = propagation.scorer()
    labels = None if data.inference.entities is None else data.inference.entities.labels
    name = type(model).__name__
    own: dict[str, Scorer] = {f"{name} + sheaf propagation": scorer}
    plain = data if data.features is None else replace(data, features=None)
    without = propagation
    if plain is not data:
        without = InductivePropagation(model, plain, settings)
        own[f"{name} + sheaf propagation, {NO_FEATURES}"] = without.scorer()
    if episodes is not None:
        trained = score_by_episodes(
            episodes.to(device), data, scorer, seed=seed, feature_map=propagation.feature_map
        )
        own = {f"{name} + episodes": trained} | own
    out.seconds["propagate"] = time.perf_counter() - begin

    graph = data.inference.triples.to(device), data.inference.num_nodes or 0
    near = walk = alone = None
    walks = proximity_is_cheap(test, data.inference.num_edges)
    if proximity is not None:
        near = walk = LogProximity.of_settings(proximity, *graph)
        if episodes is not None and episodes.log_walk is not None:
            walk = LogProximity.of_settings(proximity, *graph, episodes.log_walk)
        walks |= proximity.share > 0 or (episodes is not None and proximity.weight > 0)
    if walks:
        # The baselines' walk is the same in all runs.
        usual = ProximitySettings()
        same = proximity is not None and _walk(proximity) == _walk(usual)
        alone = near if same else LogProximity.of_settings(usual, *graph)
    methods: dict[str, Any] = {}
    by_selection = set()  # baselines do not depend on it, nor do episodes alone
    for method, one in own.items():
        by_episodes = isinstance(one, EpisodeScorer | WithVectors)
        variants: dict[str, Scorer] = {}
        kind = walk if by_episodes else near
        if proximity is not None and kind is not None:
            given = data.inference.triples, data.train.triples, data.num_relations
            scored = add_proximity(one, kind, proximity, *given)
            with_near = f"{method} + proximity"
            if scored.frequency:
                with_near = with_near if scored.weight else method
                variants[f"{with_near} + frequency"] = scored
                scored = copy.copy(scored)
                scored.frequency = 0.0
            variants[with_near] = scored
            if ("weight" if by_episodes else "share") in selected_weights:
                by_selection |= set(variants)
        variants[method] = one
        methods |= variants
        if one is scorer or isinstance(one, WithVectors) or method.endswith(NO_FEATURES):
            by_selection |= set(variants)
    if settings.start != "random":
        unpropagated = f"{name}, {settings.start} start (no propagation)"
        methods[unpropagated] = without.scorer(0)
        by_selection.add(unpropagated)
    peers = 0.0 if proximity is None else proximity.peers
    free = baselines(model, plain, alone, seed, peers)
    known = inference_filter(data)
    dropped = int(data.report.get("unseen_entities_test", {}).get("triples", 0))
    dropped += int(data.report.get("dropped_triples", {}).get("test", 0))
    notes = () if alone is not None else (NO_PROXIMITY,)
    strata = label_queries(data.inference.triples, test)
    if "merged" in protocols and data.valid is not None:
        both = torch.cat([data.valid.to(test), test])
        strata_of_both = label_queries(data.inference.triples, both)
    for number, (method, functions) in enumerate((methods | free | dict(further or {})).items()):
        begin = time.perf_counter()
        scores = functions.score_tails, functions.score_heads
        common: dict[str, Any] = {"num_dropped": dropped, "entity_labels": labels}
        result = rank(*scores, test, known, test_set="test", progress=progress, **common)
        if number == 0:
            out.seconds["rank"] = time.perf_counter() - begin
            result = replace(result, notes=(*result.notes, *notes))
        out.add(method, result, [p for p in protocols if p != "merged"], strata)
        if "merged" in protocols and data.valid is not None:
            result = rank(*scores, both, known, test_set="valid + test", **common)
            chosen = selected and method in by_selection
            mark = "selected on half of the test" if chosen else None
            out.add(method, result, ["merged"], strata_of_both, mark)
    return out


def _walk(settings: ProximitySettings) -> tuple[float, int]:
    return settings.teleport, settings.num_iterations


def baselines(
    model: KGEModel,
    data: InductiveData,
    near: LogProximity | None,
    seed: int = 0,
    peers: float = 0.0,
) -> dict[str, Scorer]:
    """Returns the baselines of an inference graph by name.

    Args:
        model (KGEModel): The trained model, which draws random vectors.
        data (InductiveData): The graphs, of which only observed triples are used.
        near (LogProximity, optional): Proximity in the observed inference graph. (default: no
            baselines of proximity)
        seed (int): Seed of the random vectors.
        peers (float): Weight of peers in proximity, which adds a baseline; 0 for none.
    """
    name = type(model).__name__
    random = InductivePropagation(
        model, data, PropagationSettings(start="random", num_random=1, seed=seed)
    )
    found: dict[str, Scorer] = {f"{name}, random vectors (no propagation)": random.scorer(0)}
    if bool(data.boundary_mask.any()):
        settings = PropagationSettings(start="zeros", iterations=1, step_size=1.0)
        mean = InductivePropagation(model, data, settings)
        found[f"{name}, {MEAN}"] = mean.scorer()
    heuristic = EdgeTypeHeuristic(
        data.inference.triples, data.inference.num_nodes or 0, data.num_relations
    )
    found[HEURISTIC] = heuristic
    if near is not None:
        found[PROXIMITY] = ProximityScorer(None, near)
        found[FILTERED_PROXIMITY] = ProximityScorer(None, near, filtered_by=heuristic)
        if peers:
            found[PEERS] = ProximityScorer(None, near, peers=peers)
    return found
