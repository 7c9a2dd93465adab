import json
import math
import time
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from itertools import product
from typing import Any

from torch import Tensor

from sheafprop.checks import check_integer, count_noun
from sheafprop.data.inductive_data import InductiveData
from sheafprop.errors import DataError
from sheafprop.inductive.feature_map import FeatureMap
from sheafprop.inductive.inductive_propagation import InductivePropagation
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.inductive.training_graph import draw_triples, training_graph_as_new
from sheafprop.kge.base import KGEModel
from sheafprop.nn.start import Start
from sheafprop.progress import progress_bar
from sheafprop.ranking import TripleFilter, evaluate
from sheafprop.ranking.protocols import MAIN_METRICS


def inference_filter(data: InductiveData) -> TripleFilter:
    """Filters all known true triples of the inference graph of ``data``, including test triples.

    If the training graph is part of it, the held-out triples of that graph are included.
    """
    parts = {"observed": data.inference.triples, "valid": data.valid, "test": data.test}
    if data.mode == "semi-inductive" and data.train_valid is not None:
        parts["held out of training"] = data.train_valid
    return TripleFilter(parts, data.inference.num_nodes, data.num_relations)


@dataclass(frozen=True)
class Selection:
    """The result of a search.

    Args:
        settings: The selected settings.
        on: ``"validation"`` (the validation triples of the inference graph), ``"training graph"``
            (see :func:`~sheafprop.inductive.training_graph_as_new`), or ``"defaults"`` if there
            were no triples to select on.
        metric: The metric of the selection.
        value: The value of the metric for the selected settings, None for ``"defaults"``.
        count: Number of triples used.
        curve: One row per configuration tried, with its metrics.
        seconds: Wall time of the search.
        unpropagated: One row per start without propagation, for comparison; never selected.
        available: Number of triples from which ``count`` were sampled, None if all were used.
        proximity: What :meth:`ProximitySearch.select` added, None if it was not called.
    """

    settings: PropagationSettings
    on: str
    metric: str
    value: float | None
    count: int
    curve: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    unpropagated: list[dict[str, Any]] = field(default_factory=list)
    available: int | None = None
    proximity: dict[str, Any] | None = None

    @property
    def tried(self) -> int:
        """The number of configurations tried."""
        return len(self.curve)

    def describe_triples(self) -> str:
        """Describes the triples of the selection, for messages."""
        text = count_noun(self.count, "validation triple")
        if self.available is not None:
            text = f"{self.count:,} of {count_noun(self.available, 'validation triple')}"
        if self.on == "training graph":
            text += " of the training graph with its entities taken as new,"
        return text

    def to_dict(self) -> dict[str, Any]:
        """Returns the selection as plain values."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "settings"}
        chosen = self.settings.to_dict() | {"num_sections": self.settings.num_sections}
        return plain | {"protocol": "full", "tried": self.tried, "chosen": chosen}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "Selection":
        """Creates a selection from the values of :meth:`to_dict`."""
        own = {f.name: plain[f.name] for f in fields(cls) if f.name in plain}
        chosen = {key: value for key, value in plain["chosen"].items() if key != "num_sections"}
        return cls(settings=PropagationSettings(**chosen), **own)


@dataclass(frozen=True)
class SelectionTriples:
    """The triples on which settings are selected.

    Args:
        on (str): Where they are from, as in :class:`Selection`.
        data (InductiveData): The graphs in which they are ranked.
        triples (Tensor): The triples, ``[m, 3]``.
        available (int, optional): The number of triples from which these were sampled; None if
            these are all.
    """

    on: str
    data: InductiveData
    triples: Tensor
    available: int | None

    @cached_property
    def known(self) -> TripleFilter:
        """The known triples, to filter."""
        return inference_filter(self.data)


@dataclass(frozen=True)
class PropagationSearch:
    r"""Selects the start, the step size and the number of iterations on validation triples.

    Every pair of start and step size is propagated once, and the vectors after each listed number
    of iterations are ranked (protocol ``full``). Unless the search is ``quick``, each start is also
    ranked without propagation, for comparison. The other settings are fixed.

    If the inference graph has no validation triples, the training graph with entities that are
    treated as new is used, see :func:`~sheafprop.inductive.training_graph_as_new`. If it is too
    small, the first start and step size and the iterations of ``settings`` are used.

    Args:
        start: Starts to try.
        step_size: Step sizes to try.
        iterations: Iteration counts to try, ascending.
        metric: ``"mrr"`` or ``"hits@k"``. Ties are broken by fewer iterations.
        settings: Everything else.
        max_triples: Triples that decide, at most: a seeded choice of them, the same in every run.
            The others only filter. Validations during training rank a quarter of them. None for
            all.
        patience: Counts in a row that may stay behind the best one before the rest of the list is
            left untried. A later start or step size begins with the count before the best one. None
            to try the whole list every time.
        max_random: Random sections that are propagated to search, at most: cheaper, and what is
            tried ranks a little worse than it will. The chosen settings keep their own number.
            None for that number.
    """

    start: tuple[Start, ...] = ("mixed", "random")
    step_size: tuple[float, ...] = (0.9,)
    iterations: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64)
    metric: str = "mrr"
    settings: PropagationSettings = PropagationSettings()  # noqa: RUF009 (frozen)
    max_triples: int | None = None
    patience: int | None = None
    max_random: int | None = None

    def __post_init__(self) -> None:
        for name in ("start", "step_size", "iterations"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
            if not getattr(self, name):
                raise ValueError(f"'{name}' needs at least one value to try (got none)")
        if list(self.iterations) != sorted(set(self.iterations)):
            raise ValueError(f"'iterations' must ascend (got {list(self.iterations)})")
        if self.metric not in MAIN_METRICS:
            raise ValueError(
                f"'metric' must be one of {', '.join(MAIN_METRICS)} (got {self.metric!r})"
            )
        for name in ("max_triples", "patience", "max_random"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1)

    def to_dict(self) -> dict[str, Any]:
        """Returns the search as plain values, without unset limits."""
        plain = json.loads(json.dumps(asdict(self)))
        limits = ("max_triples", "patience", "max_random")
        return {key: v for key, v in plain.items() if key not in limits or v is not None}

    def draw(self, data: InductiveData, *, quick: bool = False) -> SelectionTriples | None:
        """Returns the triples that select, None if there are none.

        Args:
            data: The graphs; see :meth:`select`.
            quick: Whether a quarter of ``max_triples`` is enough.
        """
        on = "validation"
        if data.valid is None or not len(data.valid):
            on = "training graph"
            try:
                data = training_graph_as_new(data)
            except DataError:
                return None
        triples, available = data.valid, None
        if triples is None or not len(triples):
            return None
        limit = self.max_triples
        if quick and limit is not None:
            limit = math.ceil(limit / 4)
        if limit is not None and len(triples) > limit:
            available, triples = len(triples), draw_triples(triples, limit)
        return SelectionTriples(on, data, triples, available)

    def limit(self, settings: PropagationSettings) -> PropagationSettings:
        """Returns settings with at most ``max_random`` random sections, to search."""
        number = min(settings.num_random, self.max_random or settings.num_random)
        return replace(settings, num_random=number)

    def select(
        self,
        model: KGEModel,
        data: InductiveData,
        *,
        quick: bool = False,
        progress: bool = False,
        feature_map: FeatureMap | None = None,
    ) -> Selection:
        """Runs the search.

        Args:
            model: The trained model.
            data: The graphs. ``data.valid`` selects, or the training graph if it is None;
                ``data.test`` is only used to filter.
            quick: Whether to try only the first start and step size and, if ``patience`` is set,
                only every third number of iterations.
            progress: Whether to show progress on standard error.
            feature_map: The map from features to vectors of the training graph. (default: fitted if
                the data have features)
        """
        begin = time.perf_counter()
        starts = self.start[:1] if quick else self.start
        steps = self.step_size[:1] if quick else self.step_size
        drawn = self.draw(data, quick=quick)
        if drawn is None:
            chosen = replace(self.settings, start=starts[0], step_size=steps[0])
            return Selection(chosen, "defaults", self.metric, None, 0)
        on, data, known = drawn.on, drawn.data, drawn.known
        valid = drawn.triples.to(model.node_emb.weight.device)
        # Features are fitted once; those of the whole training graph know its new entities.
        mapped = feature_map if on == "validation" else None
        best: tuple[float, PropagationSettings] | None = None
        curve: list[dict[str, Any]] = []
        unpropagated: list[dict[str, Any]] = []
        bar = progress_bar(
            len(starts) * len(steps) * len(self.iterations),
            desc=f"choosing iterations on {on}",
            shown=progress,
        )
        with bar:
            for start, step_size in product(starts, steps):
                settings = replace(self.settings, start=start, step_size=step_size)
                propagation = InductivePropagation(model, data, self.limit(settings), mapped)
                mapped = propagation.feature_map
                counts = self._counts(None if best is None else best[1].iterations, quick)
                bar.update(len(self.iterations) - len(counts))
                behind, tried = 0, 0
                if not quick and step_size == steps[0] and counts[0] > 0:
                    counts = (0, *counts)
                for count, scorer in propagation.scorers(counts):
                    result = evaluate(scorer.score_tails, scorer.score_heads, valid, known)
                    metrics = result.metrics("full")
                    row = {
                        "start": start,
                        "step_size": step_size,
                        "iterations": count,
                        **{k: metrics[k] for k in MAIN_METRICS},
                    }
                    if count not in self.iterations:
                        unpropagated.append(row)
                        continue
                    curve.append(row)
                    value, behind, tried = metrics[self.metric], behind + 1, tried + 1
                    if best is None or value > best[0]:
                        behind = 0
                    if best is None or (value, -count) > (best[0], -best[1].iterations):
                        best = value, replace(settings, iterations=count)
                    bar.update()
                    if self.patience is not None and behind >= self.patience:
                        break
                bar.update(len(counts) - (counts[0] not in self.iterations) - tried)
        assert best is not None
        value, chosen = best
        seconds = time.perf_counter() - begin
        return Selection(
            chosen,
            on,
            self.metric,
            value,
            len(valid),
            curve,
            seconds,
            unpropagated,
            drawn.available,
        )

    def _counts(self, best: int | None, quick: bool) -> tuple[int, ...]:
        """The counts to try, in view of the best one of an earlier start or step size."""
        if self.patience is None:
            return self.iterations
        if quick:
            return self.iterations[::3]
        if best is None:
            return self.iterations
        return self.iterations[max(0, self.iterations.index(best) - 1) :]
