"""Selects the weights of proximity on the triples that select the propagation."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

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
FREQUENCIES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4)
TELEPORTS = (0.15, 0.4, 0.7)
LEFT_OUT = (
    "the graph is large, so proximity was left out: set model.proximity.share (with episodes "
    "model.proximity.weight) to a number to use it"
)
TOO_LARGE = "the graph is large, so weights of proximity that are 'auto' are 0"
# Numbers of a table of scores, at most: so many queries are ranked together.
_MOST = 2**21
_Weight = float | Literal["auto"]
_NAMES = ("weight", "share", "peers", "frequency", "teleport")


@dataclass(frozen=True)
class ProximitySearch:
    r"""Proximity in the scores of a run, with fixed weights or weights that it selects.

    A weight is a number, or ``"auto"`` to select it after training, when the propagation has been
    selected: by the same triples and the sum of the same metric and MRR, since Hits@k alone often
    hardly depends on them. ``weight`` and ``share`` are selected among
    0, .1, .2, .3, .4, .6, .8 and 1.2, ``peers`` among 0 and .25 and ``teleport`` among .15, .4 and
    .7, these together with ``weight`` if there are episodes, with ``share`` otherwise; then
    ``frequency`` among 0, .05, .1, .2, .3 and .4. Ties are broken by smaller values. If there are
    no triples to select on, the defaults of :class:`ProximitySettings` are used. If the walks of
    these triples would take more than a few seconds, what is ``"auto"`` is left out; if only those
    of all teleport probabilities would, the default probability is used.

    Args:
        weight (float or str): As in :class:`ProximitySettings`, or ``"auto"``.
        share (float or str): As there, or ``"auto"``.
        peers (float or str): As there, or ``"auto"``.
        frequency (float or str): As there, or ``"auto"``.
        own_last (bool): As there.
        teleport (float or str): As there, or ``"auto"``.
        num_iterations (int): As there.

    Raises:
        ValueError: If a value is out of its range.
    """

    weight: _Weight = ProximitySettings.weight
    share: _Weight = ProximitySettings.share
    peers: _Weight = ProximitySettings.peers
    frequency: _Weight = ProximitySettings.frequency
    own_last: bool = ProximitySettings.own_last
    teleport: _Weight = ProximitySettings.teleport
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
        """Which of the scores with ``weight`` and with ``share`` it selects something for."""
        asked = {
            "weight": (self.weight, self.peers, self.teleport),
            "share": (self.share, self.peers, self.teleport, self.frequency),
        }
        return tuple(name for name, values in asked.items() if AUTO in values)

    def fits(self, selected: Mapping[str, Any] | None, episodes: EpisodeModel | None) -> bool:
        """Whether the field ``proximity`` of a selection is what :meth:`select` would add now."""
        if selected is None or selected["episodes"] != (episodes is not None):
            return False
        return ProximitySearch(**selected["search"]) == self  # also of an older version

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
        elif not self._is_cheap(drawn, 1):
            left = self._with(weight=0.0, share=0.0, peers=0.0, frequency=0.0).settings()
            walks = left.share > 0 or (episodes is not None and left.weight > 0)
            found["chosen"] = left.to_dict() if walks or left.frequency else None
            found["note"] = TOO_LARGE if walks else LEFT_OUT
        else:
            mapped = feature_map if drawn.on == "validation" else None
            settings = search.limit(selection.settings)
            propagation = InductivePropagation(model, drawn.data, settings, mapped)
            vectors = propagation.scorer()
            tried = self
            if not self._is_cheap(drawn, len(TELEPORTS)):
                tried = self._with(teleport=ProximitySettings.teleport)
            chosen: dict[str, float] = {}
            for name in ("share",) if episodes is None else ("weight", "share"):
                grid, frequencies = tried._grid(name, chosen)
                if len(grid) == 1 and not frequencies:
                    chosen = grid[0]
                    continue
                scorer: Scorer = vectors
                log_walk = None
                if name == "weight" and episodes is not None:
                    mapped = propagation.feature_map
                    scorer = score_by_episodes(
                        episodes, drawn.data, vectors, seed=seed, feature_map=mapped
                    )
                    log_walk = episodes.log_walk
                units = self.settings(weight=1.0, share=1.0, frequency=float(self.frequency != 0))
                ranker = _Ranker(units, name, scorer, log_walk, drawn, data.train.triples)
                trials = tried._rank(ranker, grid, search.metric)
                more = [_best(trials) | {"frequency": one} for one in frequencies]
                trials += tried._rank(ranker, more, search.metric) if more else []
                chosen = _best(trials)
                found["curve"] += [trial.row for trial in trials]
            found["chosen"] = tried.settings(**chosen).to_dict()
        seconds = selection.seconds + time.perf_counter() - begin
        return replace(selection, proximity=found, seconds=seconds)

    def _is_cheap(self, drawn: SelectionTriples, walks: int) -> bool:
        steps = walks * self.num_iterations
        return proximity_is_cheap(drawn.triples, drawn.data.inference.num_edges, steps)

    def _with(self, **values: float) -> "ProximitySearch":
        """The search with numbers for some of the values that it would select."""
        asked: dict[str, Any] = {k: v for k, v in values.items() if getattr(self, k) == AUTO}
        return replace(self, **asked)

    def _grid(
        self, name: str, chosen: Mapping[str, float]
    ) -> tuple[list[dict[str, float]], tuple[float, ...]]:
        """The values to try for a score, in view of those that are chosen already, small ones
        first; and the frequencies to try with the best of them."""

        def values(key: str, grid: tuple[float, ...]) -> tuple[float, ...]:
            own = chosen.get(key, getattr(self, key))
            return grid if own == AUTO else (own,)

        teleports, all_peers = values("teleport", TELEPORTS), values("peers", PEERS)
        grid = [
            {**chosen, name: weight, "peers": peers, "teleport": teleport}
            for teleport in teleports
            for peers in all_peers
            for weight in values(name, WEIGHTS)
            # Without a weight, there is no walk.
            if weight or (peers, teleport) == (all_peers[0], teleports[0])
        ]
        return grid, FREQUENCIES[1:] if name == "share" and self.frequency == AUTO else ()

    def _rank(self, ranker: "_Ranker", grid: list[dict[str, float]], metric: str) -> list["_Trial"]:
        settings = [self.settings(**one) for one in grid]
        shown = [ranker.name, "peers", "teleport"]
        shown += ["frequency"] if ranker.name == "share" else []
        trials = []
        for one, own, result in zip(grid, settings, ranker.rank(settings), strict=True):
            metrics = result.metrics("full")
            row = {key: getattr(own, key) for key in shown}
            row |= {key: metrics[key] for key in MAIN_METRICS}
            trials.append(_Trial(one, metrics[metric] + metrics["mrr"], row))
        return trials


class _Trial(NamedTuple):
    """Values that were tried, what they are judged by, and their row in the curve."""

    values: dict[str, float]
    value: float
    row: dict[str, Any]


def _best(trials: list[_Trial]) -> dict[str, float]:
    # The first of the best has the smallest values.
    return max(trials, key=lambda trial: trial.value).values


def selected_weights(selected: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The weights that were selected on validation, by the field ``proximity`` of a selection."""
    if selected is None or selected["on"] != "validation":
        return ()
    return ProximitySearch(**selected["search"]).selects


class _Ranker:
    """Ranks triples by a score with proximity under several settings.

    Args:
        units (ProximitySettings): Settings whose weights are 1, but 0 for a frequency that no
            setting has.
        name (str): The weight in this score: ``"weight"`` for episodes, else ``"share"``.
        scorer (Scorer): The score without proximity.
        log_walk (Tensor, optional): Weights of relations in the walk; see :class:`LogProximity`.
        drawn (SelectionTriples): The triples.
        trained (Tensor): The training triples, whose loops say which relations have some.
    """

    def __init__(
        self,
        units: ProximitySettings,
        name: str,
        scorer: Scorer,
        log_walk: Tensor | None,
        drawn: SelectionTriples,
        trained: Tensor,
    ):
        self.name, self.drawn, self._log_walk = name, drawn, log_walk
        self._observed = drawn.data.inference.triples.to(drawn.triples.device)
        self._nears: dict[float, LogProximity] = {}
        # The spread of a score is that of other queries.
        graph = self._observed, trained, drawn.data.num_relations
        self._unit = add_proximity(scorer, self._near(units), units, *graph)
        self._block = _Block(scorer, self._nears, self._unit.answers)

    def _near(self, settings: ProximitySettings) -> LogProximity:
        if settings.teleport not in self._nears:
            number = self.drawn.known.num_nodes
            near = LogProximity.of_settings(settings, self._observed, number, self._log_walk)
            self._nears[settings.teleport] = near
        return self._nears[settings.teleport]

    def rank(self, settings: Sequence[ProximitySettings]) -> list[RankingResult]:
        """Ranks the triples; scores and proximities are computed once for all settings."""
        unit, block, known = self._unit, self._block, self.drawn.known
        for own in settings:
            self._near(own)
        scored = [
            ProximityScorer(
                block,
                partial(block.near, own.teleport),
                getattr(own, self.name) * unit.weight,
                peers=own.peers,
                answers=block.frequency,
                frequency=own.frequency * unit.frequency,
                may_loop=unit.may_loop,
            )
            for own in settings
        ]
        size = max(1, _MOST // max(1, known.num_nodes))
        parts: list[list[RankingResult]] = []
        for triples in self.drawn.triples.split(size):
            block.clear()
            parts.append(
                [
                    evaluate(one.score_tails, one.score_heads, triples, known, batch_size=size)
                    for one in scored
                ]
            )
        return [_join(of_setting) for of_setting in zip(*parts, strict=True)]


def _join(parts: tuple[RankingResult, ...]) -> RankingResult:
    counts = {side: RankCounts.cat([p.counts[side] for p in parts]) for side in parts[0].counts}
    return replace(parts[0], triples=torch.cat([p.triples for p in parts]), counts=counts)


class _Block:
    """The scores and proximities of one block of queries, computed when first asked for."""

    def __init__(
        self,
        scorer: Scorer,
        nears: Mapping[float, LogProximity],
        answers: Callable[[Tensor, Side], Tensor] | None,
    ):
        self._scorer, self._nears, self._answers = scorer, nears, answers
        self._tables: dict[tuple[str, float, Side], Tensor] = {}

    def clear(self) -> None:
        """Forgets the block, before the next one."""
        self._tables.clear()

    def _table(
        self, name: str, side: Side, compute: Callable[[], Tensor], teleport: float = 0.0
    ) -> Tensor:
        key = name, teleport, side
        if key not in self._tables:
            self._tables[key] = compute()
        return self._tables[key]

    def score_tails(self, head_index: Tensor, rel_type: Tensor) -> Tensor:
        return self._table("score", "tail", lambda: self._scorer.score_tails(head_index, rel_type))

    def score_heads(self, rel_type: Tensor, tail_index: Tensor) -> Tensor:
        return self._table("score", "head", lambda: self._scorer.score_heads(rel_type, tail_index))

    def near(
        self, teleport: float, entity: Tensor, relation: Tensor, side: Side, peers: float = 0.0
    ) -> Tensor:
        near, query = self._nears[teleport], (entity, relation, side)
        rows = self._table("near", side, lambda: near(*query), teleport)
        if not peers:
            return rows
        return rows + peers * self._table("peers", side, lambda: near.peers(*query), teleport)

    def frequency(self, relation: Tensor, side: Side) -> Tensor:
        assert self._answers is not None
        answers = self._answers
        return self._table("frequency", side, lambda: answers(relation, side))
