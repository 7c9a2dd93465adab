"""Times logical queries: against a Schur complement for each, against bare distances, and with
entities between against bare scores."""

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.benchmark_cases import power_law_multigraph
from benchmarks.cells import check_hardware, merge_cases
from benchmarks.entity_benchmark import LARGE, beam_cases, single_case
from benchmarks.measuring import (
    add_runs,
    clock_of,
    interleave,
    measured_here,
    summarize,
    with_peak,
)
from benchmarks.query_files import read_compact_queries
from benchmarks.query_sampling import BackwardWalk
from sheafprop.data.answer_sets import AnswerSets
from sheafprop.data.datasets.grail import ENVIRONMENT
from sheafprop.kge import build_model
from sheafprop.kge.distance import pairwise_distance
from sheafprop.query import (
    CONJUNCTIVE,
    EnergyScorer,
    QueryBatch,
    evaluate_queries,
    structure,
)
from sheafprop.sheaf import DenseSheaf

NUM_ENTITIES, NUM_TRIPLES, NUM_RELATIONS = 10_000, 150_000, 237
# Queries of the loop: it takes the same time for each.
_LOOP = 100
_QUICK = 1_000
# Rows of a block of bare distances: that of the scores.
_ROWS = 2**23 // NUM_ENTITIES
_HARD, _EASY = 10, 100
#: Free vertices between, and entities between.
PARTS = ("energy", "entities")


def schur_scores(sheaf: DenseSheaf, x: Tensor, query: tuple[int, int, int]) -> Tensor:
    """Scores ``[N]`` of all entities for one 2p query without translations.

    The Laplacian of the query's graph, its Schur complement on source and target, and the quadratic
    form of that for every candidate.

    Args:
        sheaf (DenseSheaf): The maps.
        x (Tensor): Vectors ``[N, d]``.
        query (tuple of int): Entity and two relations; from the number of relations on inverse.
    """
    entity, *relations = query
    k, d = sheaf.head.shape[1:]
    coboundary = x.new_zeros(2 * k, 3 * d)
    for edge, relation in enumerate(relations):
        inverse, r = divmod(relation, sheaf.num_relations)
        source, target = (sheaf.tail, sheaf.head) if inverse else (sheaf.head, sheaf.tail)
        rows = slice(edge * k, edge * k + k)
        coboundary[rows, edge * d : edge * d + d] = -source[r]
        coboundary[rows, edge * d + d : edge * d + 2 * d] = target[r]
    laplacian = coboundary.T @ coboundary
    ends = torch.cat([torch.arange(d), torch.arange(2 * d, 3 * d)])
    inner = torch.arange(d, 2 * d)
    coupling = laplacian[inner][:, ends]
    reduced = laplacian[ends][:, ends] - coupling.T @ torch.linalg.solve(
        laplacian[inner][:, inner], coupling
    )
    both = torch.cat([x[entity].expand(x.shape[0], -1), x], dim=1)
    return -((both @ reduced) * both).sum(1).clamp(min=0).sqrt()


@torch.no_grad()
def schur_case(name: str, slots: Tensor) -> dict[str, Any]:
    """2p queries of SE (d = 32) at once, and the same by a Schur complement for each query."""
    model = build_model(
        "se", num_nodes=NUM_ENTITIES, num_relations=NUM_RELATIONS, hidden_channels=32
    )
    model.reset_parameters(seed=0)
    sheaf, x = model.sheaf(), model.entity_vectors()
    assert isinstance(sheaf, DenseSheaf)
    batch, answering = QueryBatch.of("2p", slots), EnergyScorer(sheaf, x)
    queries = [tuple(row) for row in slots[:_LOOP].tolist()]
    # The loop loses the digits of small energies in single precision.
    exact = DenseSheaf(sheaf.head.double(), sheaf.tail.double())
    expected = torch.stack([schur_scores(exact, x.double(), query) for query in queries])
    difference = float((answering.score(batch[:_LOOP]) - expected).abs().max())
    if difference > 1e-4:
        raise AssertionError(f"scores differ from those of the loop by {difference:.2g}")

    def loop() -> None:
        for query in queries:
            schur_scores(sheaf, x, query)

    def together() -> None:
        for _ in answering.blocks(batch):
            pass

    median = interleave({"loop": loop, "together": together}, rounds=3)
    each, ours = median["loop"] / len(queries), median["together"] / len(slots)
    return {
        "name": f"2p of SE, d = 32, {name}",
        "queries": len(slots),
        "distinct_relation_pairs": len(slots[:, 1:].unique(dim=0)),
        "seconds_per_query": ours,
        "loop_seconds_per_query": each,
        "ratio": each / ours,
        "difference": difference,
        "threads": torch.get_num_threads(),
    }


@torch.no_grad()
def ranking_cases(num_queries: int) -> list[dict[str, Any]]:
    """Seven types ranked by RotatE (d = 128 complex), and as many bare distance matrices."""
    model = build_model(
        "rotate", num_nodes=NUM_ENTITIES, num_relations=NUM_RELATIONS, hidden_channels=128
    )
    model.reset_parameters(seed=0)
    x = model.entity_vectors()
    answering, candidates = EnergyScorer(model.sheaf(), x), torch.arange(NUM_ENTITIES)
    rows = torch.view_as_real(x).flatten(1).unsqueeze(1)
    g = torch.Generator().manual_seed(0)
    centres = rows[torch.randint(NUM_ENTITIES, (num_queries,), generator=g)] + 0.1
    rng = np.random.default_rng(0)
    found: list[dict[str, Any]] = []
    drawn = np.stack([rng.permutation(NUM_ENTITIES)[: _HARD + _EASY] for _ in range(num_queries)])
    hard, easy = (AnswerSets.from_sets(part) for part in np.split(drawn, [_HARD], axis=1))
    for name in CONJUNCTIVE:
        batch = QueryBatch.of(name, walks(name, num_queries))

        def rank(batch: QueryBatch = batch) -> None:
            evaluate_queries(answering, batch, easy, hard, candidates)

        def distances() -> None:
            for part in centres.split(_ROWS):
                pairwise_distance(part, rows, p=2.0, squared=False, block=1)

        _, peak = with_peak(rank)
        median = interleave({"rank": rank, "distances": distances}, rounds=3)
        found.append(
            {
                "name": f"{name} of RotatE, d = 128 complex",
                "queries": num_queries,
                "seconds": median["rank"],
                "distance_seconds": median["distances"],
                "ratio": median["rank"] / median["distances"],
                "peak_bytes": peak,
                "threads": torch.get_num_threads(),
            }
        )
    total = {
        key: sum(case[key] for case in found) for key in ("queries", "seconds", "distance_seconds")
    }
    peaks = [case["peak_bytes"] for case in found if case["peak_bytes"] is not None]
    return [
        *found,
        {
            "name": "all 7 types",
            **total,
            "ratio": total["seconds"] / total["distance_seconds"],
            "peak_bytes": max(peaks, default=None),
            "threads": torch.get_num_threads(),
        },
    ]


def schur_cases(count: int) -> list[dict[str, Any]]:
    """Queries that share relations as those of a benchmark do, and queries that share none.

    The first are the test queries of FB15k-237 at ratio 550 where the environment variable
    ``SHEAFPROP_DATA`` names a folder with them; only their relations matter.
    """
    g = torch.Generator().manual_seed(0)
    pairs = torch.randperm(4 * NUM_RELATIONS**2, generator=g)[:count]
    relations = torch.stack([pairs // (2 * NUM_RELATIONS), pairs % (2 * NUM_RELATIONS)], dim=1)
    entities = torch.randint(NUM_ENTITIES, (count, 1), generator=g)
    cases = {"no relations shared": torch.cat([entities, relations], dim=1)}
    path = Path(os.environ.get(ENVIRONMENT, "")) / "inductiveqe" / "550.npz"
    if path.is_file():
        queries = torch.from_numpy(read_compact_queries(path).queries["test"]["2p"])
        slots = queries[torch.randperm(len(queries), generator=g)[:count]]
        slots[:, 0] %= NUM_ENTITIES
        cases = {"queries of FB15k-237": slots} | cases
    return [schur_case(name, slots) for name, slots in cases.items()]


def walks(name: str, count: int) -> Tensor:
    """Queries as walks through a skewed graph find them, in random order."""
    graph = power_law_multigraph(NUM_ENTITIES, NUM_TRIPLES, NUM_RELATIONS)
    triples = torch.stack([graph.edge_index[0], graph.edge_type, graph.edge_index[1]], dim=1)
    walk = BackwardWalk(triples.numpy(), NUM_ENTITIES, NUM_RELATIONS)
    rng = np.random.default_rng(0)
    answers = rng.choice(walk.entities, count)
    return torch.from_numpy(walk.queries(structure(name), answers, rng))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the queries")
    parser.add_argument("--only", choices=PARTS, help="one part instead of both")
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="time of the processor of one thread for --only entities, where other programs run",
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results there")
    add_runs(parser)
    options = parser.parse_args(arguments)
    check_hardware(options.json, measured_here()["hardware"])
    count = _QUICK if options.quick else 10_000
    parts = PARTS if options.only is None else (options.only,)
    if options.cpu_time and options.only != "entities":
        raise SystemExit("--cpu-time is for --only entities")
    clock = clock_of(options.cpu_time)
    runs = [_run(parts, count, options.quick, clock) for _ in range(options.runs)]
    facts = measured_here()
    if options.cpu_time:
        facts["note"] = "queries over entities by the time of the processor, beside other programs"
    cases = [summarize(found) | facts for found in zip(*runs, strict=True)]
    for case in cases:
        numbers = (f"{k}={v:.4g}" for k, v in case.items() if isinstance(v, float | int))
        print(case["name"], *numbers, sep="  ")
    if options.json is not None:
        merge_cases(options.json, cases)


def _run(
    parts: Sequence[str], count: int, quick: bool, clock: Callable[[], float]
) -> list[dict[str, Any]]:
    found = schur_cases(count) + ranking_cases(count) if "energy" in parts else []
    if "entities" in parts:
        found += beam_cases(NUM_ENTITIES, NUM_TRIPLES, count, walks, clock)
        entities, triples = (number // (10 if quick else 1) for number in LARGE)
        found.append(single_case(entities, triples, clock))
    return found
