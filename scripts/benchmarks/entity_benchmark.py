"""Times queries over entities: against the scores of the links that they need, and by memory."""

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.benchmark_cases import power_law_multigraph
from benchmarks.measuring import interleave, time_call, with_peak
from sheafprop.data import Vocabulary
from sheafprop.inductive.section_scorer import CandidateScorer
from sheafprop.kge import KGEModel, build_model
from sheafprop.pretrained import SheafModel, StoredModel
from sheafprop.pretrained.blocks import RowBlocks
from sheafprop.query import EntityScorer, LinkProbabilities, QueryBatch

NUM_RELATIONS = 237
#: Entities and facts of the model whose single query is time_call.
LARGE = (100_000, 1_000_000)
_BEAM = 64
# Scores that the bare rows hold at once, those of the search.
_SCORES = 2**23


class RotateLinks:
    """Scores of links by the vectors of a model; remembers the rows that it was asked for."""

    def __init__(self, model: KGEModel) -> None:
        rows = RowBlocks([model.entity_vectors().detach().unsqueeze(1)])
        self.rows = rows
        self.scorer = CandidateScorer(model, model.sheaf(), rows, (1.0,))
        self.asked: dict[tuple[int, bool], list[Tensor]] = {}

    def score_links(self, entities: Tensor, relation: int, inverse: bool) -> Tensor:
        """Scores of all entities at the other end of a relation."""
        self.asked.setdefault((relation, inverse), []).append(entities)
        known = self.rows.select(entities)
        kinds = torch.full_like(entities, relation)
        return self.scorer.scores(known, kinds, "head" if inverse else "tail")


@torch.no_grad()
def beam_cases(
    num_entities: int,
    num_triples: int,
    count: int,
    walks: Callable[[str, int], Tensor],
    clock: Callable[[], float],
) -> list[dict[str, Any]]:
    """2p and ip over entities of RotatE (d = 128 complex), and the bare scores of each distinct
    (entity, relation) that their beams need, once.

    Args:
        num_entities, num_triples: The size of the graph.
        count: Queries.
        walks: Gives so many queries of a structure.
        clock: The time in seconds.
    """
    model = build_model(
        "rotate", num_nodes=num_entities, num_relations=NUM_RELATIONS, hidden_channels=128
    )
    model.reset_parameters(seed=0)
    graph = power_law_multigraph(num_entities, num_triples, NUM_RELATIONS)
    facts = torch.stack([graph.edge_index[0], graph.edge_type, graph.edge_index[1]], dim=1)
    found: list[dict[str, Any]] = []
    for name in ("2p", "ip"):
        batch = QueryBatch.of(name, walks(name, count))
        scores = RotateLinks(model)

        def search(batch: QueryBatch = batch, scores: RotateLinks = scores) -> None:
            scores.asked.clear()
            links = LinkProbabilities(facts, num_entities, NUM_RELATIONS, scores, temperature=10.0)
            for _ in EntityScorer(links, _BEAM).truths(batch):
                pass

        _, peak = with_peak(search)
        needed = {key: torch.cat(parts).unique() for key, parts in scores.asked.items()}
        computed = sum(len(part) for parts in scores.asked.values() for part in parts)
        bare = RotateLinks(model)

        def rows(needed: dict[Any, Tensor] = needed, bare: RotateLinks = bare) -> None:
            for (relation, inverse), entities in needed.items():
                for part in entities.split(max(1, _SCORES // num_entities)):
                    bare.score_links(part, relation, inverse)

        # A turn of each takes a minute on a busy machine.
        functions: dict[str, Callable[[], Any]] = {"search": search, "rows": rows}
        median = interleave(functions, rounds=2, warm=True, clock=clock)
        found.append(
            {
                "name": f"{name} over entities, RotatE, d = 128 complex",
                "queries": count,
                "distinct_rows": sum(map(len, needed.values())),
                "rows_computed": computed,
                "seconds": median["search"],
                "row_seconds": median["rows"],
                "ratio": median["search"] / median["rows"],
                "peak_bytes": peak,
                "threads": torch.get_num_threads(),
            }
        )
    return found


def single_case(num_entities: int, num_triples: int, clock: Callable[[], float]) -> dict[str, Any]:
    """One 2p query at a time on a loaded model (RotatE, d = 64 complex)."""
    model = build_model(
        "rotate", num_nodes=num_entities, num_relations=NUM_RELATIONS, hidden_channels=64
    )
    model.reset_parameters(seed=0)
    graph = power_law_multigraph(num_entities, num_triples, NUM_RELATIONS)
    facts = torch.stack([graph.edge_index[0], graph.edge_type, graph.edge_index[1]], dim=1)
    entities = Vocabulary([f"e{i}" for i in range(num_entities)], kind="entities")
    relations = Vocabulary([f"r{i}" for i in range(NUM_RELATIONS)], kind="relations")
    loaded = SheafModel(StoredModel.from_training(model, entities, relations, facts))
    head, first, _ = facts[:: max(1, num_triples // 8)][:8].unbind(1)
    queries = [
        f"via(r{(r + 1) % NUM_RELATIONS}, via(r{r}, e{u}))"
        for u, r in zip(head.tolist(), first.tolist(), strict=True)
    ]
    loaded.answer(queries[0])
    # Each is asked once: the model keeps the rows that a query needs.
    calls = [partial(loaded.answer, query) for query in queries[1:]]
    seconds = [time_call(call, clock=clock)[1] for call in calls]
    return {
        "name": f"one 2p query, {num_entities:,} entities, RotatE, d = 64 complex",
        "queries": 1,
        "seconds": statistics.median(seconds),
        "most_seconds": max(seconds),
        "threads": torch.get_num_threads(),
    }
