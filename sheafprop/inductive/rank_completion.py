import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from sheafprop.data.inductive_data import InductiveData
from sheafprop.errors import DataError
from sheafprop.inductive.inductive_propagation import InductivePropagation
from sheafprop.inductive.propagation_search import inference_filter
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.kge.base import KGEModel
from sheafprop.ranking import EdgeTypeHeuristic, RankingResult, evaluate
from sheafprop.ranking.edge_type_heuristic import HEURISTIC


@dataclass
class CompletionResult:
    """How well methods rank the test triples of an inference graph.

    Args:
        rows (list of dict): A row for each method and protocol: ``method``, ``protocol``,
            ``metrics``, and ``mark`` where a figure must not be compared.
        protocols (dict): The text of each protocol's box.
        seconds (dict): Wall time of propagation and of ranking its result.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    protocols: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def add(
        self, method: str, result: RankingResult, protocols: Sequence[str], mark: str | None = None
    ) -> None:
        """Adds the figures of a ranking under some protocols."""
        for protocol in protocols:
            entry = {
                "method": method,
                "protocol": protocol,
                "metrics": result.metrics(protocol),  # type: ignore[arg-type]
            }
            self.rows.append(entry if mark is None else entry | {"mark": mark})
            self.protocols.setdefault(protocol, result.describe(protocol))  # type: ignore[arg-type]


def rank_completion(
    model: KGEModel,
    data: InductiveData,
    settings: PropagationSettings,
    *,
    protocols: Sequence[str] = ("full", "sampled50"),
    selected: bool = True,
    seed: int = 0,
    further: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> CompletionResult:
    r"""Propagates into the inference graph and ranks its test triples, once.

    Beside it rank baselines that cost nothing: the start and random vectors without propagation,
    and the edge-type heuristic.

    Args:
        model (KGEModel): The trained model.
        data (InductiveData): The graphs and the test triples.
        settings (PropagationSettings): The chosen propagation.
        protocols (sequence of str): ``"full"``, ``"sampled50"``, ``"merged"``.
        selected (bool): Whether the settings were chosen on the validation triples, which marks
            figures of ``"merged"``.
        seed (int): Seed of the random vectors.
        further (mapping): More methods by name, with ``score_tails`` and ``score_heads``.
        progress (bool): Whether to show progress bars on standard error.

    Raises:
        DataError: If there are no test triples, or no validation triples under ``"merged"``.
    """
    if data.test is None:
        raise DataError(f"{data.name}: there are no test triples to rank")
    if "merged" in protocols and data.valid is None:
        raise DataError("the protocol 'merged' ranks validation triples too, and there are none")
    test = data.test.to(model.node_emb.weight.device)
    out = CompletionResult()
    begin = time.perf_counter()
    propagation = InductivePropagation(model, data, settings)
    scorer = propagation.scorer(propagation.vectors())
    out.seconds["propagate"] = time.perf_counter() - begin

    name = type(model).__name__
    plain = [p for p in protocols if p != "merged"]
    methods: dict[str, Any] = {f"{name} + sheaf propagation": scorer}
    if settings.start != "random":
        start = propagation.scorer(propagation.vectors(0))
        methods[f"{name}, {settings.start} start (no propagation)"] = start
    random = InductivePropagation(
        model, data, PropagationSettings(start="random", num_random=1, seed=seed)
    )
    methods[f"{name}, random vectors (no propagation)"] = random.scorer(random.vectors(0))
    methods[HEURISTIC] = EdgeTypeHeuristic(
        data.inference.triples, data.inference.num_nodes, data.num_relations
    )
    known = inference_filter(data)
    labels = None if data.inference.entities is None else data.inference.entities.labels
    dropped = int(data.report.get("unseen_entities_test", {}).get("triples", 0))
    dropped += int(data.report.get("dropped_triples", {}).get("test", 0))
    for number, (method, functions) in enumerate((methods | dict(further or {})).items()):
        begin = time.perf_counter()
        scores = functions.score_tails, functions.score_heads
        result = evaluate(
            *scores,
            test,
            known,
            num_dropped=dropped,
            test_set="test",
            progress=progress,
            entity_labels=labels,
        )
        if number == 0:
            out.seconds["rank"] = time.perf_counter() - begin
        out.add(method, result, plain)
        if "merged" in protocols and data.valid is not None:
            both = torch.cat([data.valid.to(test), test])
            result = evaluate(*scores, both, known, num_dropped=dropped, test_set="valid + test")
            chosen = selected and method != HEURISTIC
            out.add(method, result, ["merged"], "selected on half of the test" if chosen else None)
    return out
