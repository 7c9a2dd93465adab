"""Selects the weights of proximity on the triples that select the propagation."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from sheafprop.data.inductive_data import InductiveData
from sheafprop.inductive.episode_model import EpisodeModel
from sheafprop.inductive.episode_scorer import Scorer, score_by_episodes
from sheafprop.inductive.feature_map import FeatureMap
from sheafprop.inductive.inductive_propagation import InductivePropagation
from sheafprop.inductive.propagation_search import PropagationSearch, Selection, SelectionTriples
from sheafprop.inductive.proximity_scorer import (
    LogProximity,
    ProximityScorer,
    ProximitySettings,
    add_proximity,
    proximity_is_cheap,
)
from sheafprop.kge.base import KGEModel, Side
from sheafprop.ranking import RankCounts, RankingResult, evaluate
from sheafprop.ranking.protocols import MAIN_METRICS

AUTO: Literal["auto"] = "auto"
#: The values that "auto" tries.
WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.2)
PEERS = (0.0, 0.25)
LEFT_OUT = (
    "the graph is large, so proximity was left out: set model.proximity.share (with episodes "
    "model.proximity.weight) to a number to use it"
)
TOO_LARGE = "the graph is large, so weights of proximity that are 'auto' are 0"
# Numbers of a table of scores, at most: so many queries are ranked together.
_MOST = 2**22
_Weight = float | Literal["auto"]
_NAMES = ("weight", "share", "peers")


@dataclass(frozen=True)
class ProximitySearch:
    r"""Proximity in the scores of a run, with fixed weights or weights that it selects.

    A weight is a number, or ``"auto"`` to select it after training, when the propagation has been
    selected: by the same triples and the sum of the same metric and MRR, since Hits@k alone often
    hardly depends on them. ``weight`` and ``share`` are selected among
    0, .1, .2, .3, .4, .6, .8 and 1.2, and ``peers`` among 0 and .25, together with ``weight`` if
    there are episodes, with ``share`` otherwise. Ties are broken by smaller weights. If there are
    no triples to select on, the defaults of :class:`ProximitySettings` are used. If the walks of
    these triples would take more than a few seconds, proximity is left out.

    Args:
        weight (float or str): As in :class:`ProximitySettings`, or ``"auto"``.
        share (float or str): As there, or ``"auto"``.
        peers (float or str): As there, or ``"auto"``.
        own_last (bool): As there.
        teleport (float): As there.
        num_iterations (int): As there.

    Raises:
        ValueError: If a value is out of its range.
    """

    weight: _Weight = ProximitySettings.weight
    share: _Weight = ProximitySettings.share
    peers: _Weight = ProximitySettings.peers
    own_last: bool = ProximitySettings.own_last
    teleport: float = ProximitySettings.teleport
    num_iterations: int = ProximitySettings.num_iterations

    def __post_init__(self) -> None:
        for name in _NAMES:
            value = getattr(self, name)
            if isinstance(value, str) and value != AUTO:
                raise ValueError(f"'{name}' must be a number or 'auto' (got {value!r})")
        self.settings()

    @classmethod
    def of(
        cls, given: "ProximitySearch | ProximitySettings | Mapping[str, Any]"
    ) -> "ProximitySearch":
        """Returns the search of ``given``: settings, plain values, or a search."""
        if isinstance(given, ProximitySearch):
            return given
        return cls(**(given.to_dict() if isinstance(given, ProximitySettings) else given))

    def to_dict(self) -> dict[str, Any]:
        """Returns the search as plain values."""
        return asdict(self)

    def settings(self, **chosen: float) -> ProximitySettings:
        """Returns the settings with the weights that were selected; defaults for the others."""
        fixed = {name: value for name, value in asdict(self).items() if value != AUTO}
        return ProximitySettings(**(fixed | chosen))

    @property
    def is_fixed(self) -> bool:
        """Whether there is no weight to select."""
        return not self.selects

    @property
    def selects(self) -> tuple[str, ...]:
        """The weights that it selects, alone or by their peers: of ``weight`` and ``share``."""
        names = ("weight", "share")
        return tuple(name for name in names if AUTO in (getattr(self, name), self.peers))

    def fits(self, selected: Mapping[str, Any] | None, episodes: EpisodeModel | None) -> bool:
        """Whether the field ``proximity`` of a selection is what :meth:`select` would add now."""
        asked = {"search": self.to_dict(), "episodes": episodes is not None}
        return selected is not None and all(selected[name] == asked[name] for name in asked)

    def settings_of(self, selected: Mapping[str, Any] | None) -> ProximitySettings | None:
        """Returns the settings by the field ``proximity`` of a selection, None for no proximity."""
        if self.is_fixed or selected is None:
            return self.settings()
        chosen = selected["chosen"]
        return None if chosen is None else ProximitySettings(**chosen)

    @torch.no_grad()
    def select(
        self,
        model: KGEModel,
        data: InductiveData,
        search: PropagationSearch,
        selection: Selection,
        *,
        episodes: EpisodeModel | None = None,
        seed: int = 0,
        feature_map: FeatureMap | None = None,
    ) -> Selection:
        """Returns a selection of the propagation with that of the weights.

        Args:
            model (KGEModel): The trained model.
            data (InductiveData): The graphs; see :meth:`PropagationSearch.select`.
            search (PropagationSearch): The search of the propagation, with the metric and the
                numbers of triples and random sections.
            selection (Selection): Its result. The field ``proximity`` is added, as plain values:
                ``search`` and ``episodes``, for which this was selected; ``on`` and ``count``, as
                in :class:`Selection`; the settings ``chosen``, None for no proximity; ``curve``,
                one row per setting tried; ``note``, if the graph is too large to try.
            episodes (EpisodeModel, optional): Relations trained by episodes.
            seed (int): Seed of the random sections of episodes.
            feature_map (FeatureMap, optional): The map from features to vectors.
        """
        begin = time.perf_counter()
        found: dict[str, Any] = {
            "search": self.to_dict(),
            "episodes": episodes is not None,
            "curve": [],
        }
        drawn = search.draw(data)
        if drawn is not None:
            drawn = replace(drawn, triples=drawn.triples.to(model.node_emb.weight.device))
        found["on"] = "defaults" if drawn is None else drawn.on
        found["count"] = 0 if drawn is None else len(drawn.triples)
        if drawn is None:
            found["chosen"] = self.settings().to_dict()
        elif not proximity_is_cheap(
            drawn.triples, drawn.data.inference.num_edges, self.num_iterations
        ):
            zeros = {name: 0.0 for name in _NAMES if getattr(self, name) == AUTO}
            left = self.settings(**zeros)
            used = left.share > 0 or (episodes is not None and left.weight > 0)
            found |= {"chosen": left.to_dict() if used else None}
            found["note"] = TOO_LARGE if used else LEFT_OUT
        else:
            mapped = feature_map if drawn.on == "validation" else None
            settings = search.limit(selection.settings)
            propagation = InductivePropagation(model, drawn.data, settings, mapped)
            vectors = propagation.scorer()
            scorers: list[tuple[str, Scorer, Tensor | None]] = [("share", vectors, None)]
            if episodes is not None:
                mapped = propagation.feature_map
                scored = score_by_episodes(
                    episodes, drawn.data, vectors, seed=seed, feature_map=mapped
                )
                scorers.insert(0, ("weight", scored, episodes.log_walk))
            chosen: dict[str, float] = {}
            for name, scorer, log_walk in scorers:
                chosen, curve = self._select_one(
                    name, chosen, scorer, log_walk, drawn, data.train.triples, search.metric
                )
                found["curve"] += curve
            found["chosen"] = self.settings(**chosen).to_dict()
        seconds = selection.seconds + time.perf_counter() - begin
        return replace(selection, proximity=found, seconds=seconds)

    def _select_one(
        self,
        name: str,
        chosen: dict[str, float],
        scorer: Scorer,
        log_walk: Tensor | None,
        drawn: SelectionTriples,
        trained: Tensor,
        metric: str,
    ) -> tuple[dict[str, float], list[dict[str, Any]]]:
        """Adds the best value of one weight, and of peers, to those that are chosen; also returns
        a row for each setting tried."""
        graph = drawn.data.inference
        observed = graph.triples.to(drawn.triples.device)
        tried = self._tries(name, chosen)
        if len(tried) == 1:
            return tried[0], []
        near = LogProximity.of_settings(self.settings(), observed, graph.num_nodes or 0, log_walk)
        wanted = [self.settings(**one) for one in tried]
        ranked = rank_settings(scorer, near, name, wanted, drawn, trained)
        metrics = [result.metrics("full") for result in ranked]
        curve = [
            {name: one[name], "peers": one["peers"]} | {key: row[key] for key in MAIN_METRICS}
            for one, row in zip(tried, metrics, strict=True)
        ]
        # The first of the best has the smallest weights.
        values = [row[metric] + row["mrr"] for row in metrics]
        return tried[values.index(max(values))], curve

    def _tries(self, name: str, chosen: Mapping[str, float]) -> list[dict[str, float]]:
        """The weights to try, in view of those that are chosen already, small ones first."""

        def values(key: str, grid: tuple[float, ...]) -> tuple[float, ...]:
            own = chosen.get(key, getattr(self, key))
            return grid if own == AUTO else (own,)

        peers = values("peers", PEERS)
        return [
            {**chosen, name: weight, "peers": share}
            for share in peers
            for weight in values(name, WEIGHTS)
            if weight or share == peers[0]  # peers are in units of the weight
        ]


def selected_weights(selected: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The weights that were selected on validation, by the field ``proximity`` of a selection."""
    if selected is None or selected["on"] != "validation":
        return ()
    return ProximitySearch(**selected["search"]).selects


def rank_settings(
    scorer: Scorer,
    near: LogProximity,
    name: str,
    settings: list[ProximitySettings],
    drawn: SelectionTriples,
    trained: Tensor,
) -> list[RankingResult]:
    """Ranks triples by a score with proximity under several settings.

    Scores and proximities are computed once for all settings.

    Args:
        scorer (Scorer): The score without proximity.
        near (LogProximity): Proximity in the observed graph.
        name (str): The weight in this score: ``"weight"`` for episodes, else ``"share"``.
        settings (list of ProximitySettings): Settings that differ in it and in ``peers``.
        drawn (SelectionTriples): The triples.
        trained (Tensor): The training triples, whose loops say which relations have some.
    """
    observed = drawn.data.inference.triples
    block = _Block(scorer, near)
    # The spread of a score is that of other queries.
    one = replace(settings[0], weight=1.0, share=1.0)
    unit = add_proximity(scorer, near, one, observed, trained, drawn.data.num_relations)
    scored = [
        ProximityScorer(
            block,
            block,
            getattr(own, name) * unit.weight,
            peers=own.peers,
            may_loop=unit.may_loop,
        )
        for own in settings
    ]
    size = max(1, _MOST // max(1, drawn.known.num_nodes))
    parts: list[list[RankingResult]] = []
    for triples in drawn.triples.to(near.device).split(size):
        block.clear()
        parts.append(
            [
                evaluate(one.score_tails, one.score_heads, triples, drawn.known, batch_size=size)
                for one in scored
            ]
        )
    return [_join(of_setting) for of_setting in zip(*parts, strict=True)]


def _join(parts: tuple[RankingResult, ...]) -> RankingResult:
    counts = {side: RankCounts.cat([p.counts[side] for p in parts]) for side in parts[0].counts}
    return replace(parts[0], triples=torch.cat([p.triples for p in parts]), counts=counts)


class _Block:
    """The scores and proximities of one block of queries, computed when first asked for."""

    def __init__(self, scorer: Scorer, near: LogProximity):
        self._scorer, self._near = scorer, near
        self._tables: dict[tuple[str, Side], Tensor] = {}

    def clear(self) -> None:
        """Forgets the block, before the next one."""
        self._tables.clear()

    def _table(self, name: str, side: Side, compute: Callable[[], Tensor]) -> Tensor:
        if (name, side) not in self._tables:
            self._tables[name, side] = compute()
        return self._tables[name, side]

    def score_tails(self, head_index: Tensor, rel_type: Tensor) -> Tensor:
        return self._table("score", "tail", lambda: self._scorer.score_tails(head_index, rel_type))

    def score_heads(self, rel_type: Tensor, tail_index: Tensor) -> Tensor:
        return self._table("score", "head", lambda: self._scorer.score_heads(rel_type, tail_index))

    def __call__(self, entity: Tensor, relation: Tensor, side: Side, peers: float = 0.0) -> Tensor:
        rows = self._table("near", side, lambda: self._near(entity, relation, side))
        if not peers:
            return rows
        of_peers = self._table("peers", side, lambda: self._near.peers(entity, relation, side))
        return rows + peers * of_peers
