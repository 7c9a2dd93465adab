import hashlib
import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.query_files import read_compact_queries

from sheafprop.query import STRUCTURES, GraphExecutor, QueryBatch, QueryShape, easy_and_hard
from tests.query.entity_cases import random_tree

FOLDER = Path(os.environ.get("SHEAFPROP_DATA", "")) / "inductiveqe"
RATIOS = ("106", "113", "122", "134", "150", "175", "217", "300", "550")


def naive(shape, ids, triples, num_relations, domain):
    """The answers by Python sets; consumes the ids."""
    if shape.operator == "anchor":
        return {ids.pop(0)}
    inner = [naive(branch, ids, triples, num_relations, domain) for branch in shape.branches]
    if shape.operator == "via":
        inverse, relation = divmod(ids.pop(0), num_relations)
        pairs = ((t, h) if inverse else (h, t) for h, r, t in triples if r == relation)
        return {end for start, end in pairs if start in inner[0]}
    if shape.operator == "not":
        return set(domain) - inner[0]
    return set.intersection(*inner) if shape.operator == "and" else set.union(*inner)


def trees(rng):
    """Trees with negations anywhere, also those that relations are walked from."""
    for depth in (2, 3, 4) * 8:
        tree = random_tree(rng, depth, everything_but=bool(rng.integers(2)))
        yield QueryShape("via", (tree,)) if rng.integers(2) else tree


@pytest.mark.parametrize("density", [20, 200, 2000])
def test_answers_are_those_of_sets(density):
    rng = np.random.default_rng(density)
    n, r = 40, 5
    triples = rng.integers([0, 0, 0], [n, r, n], size=(density, 3))
    domain = np.sort(rng.choice(n, 30, replace=False))
    mixed = torch.from_numpy(rng.permutation(np.concatenate([domain, domain[:5]])))
    executor = GraphExecutor(torch.from_numpy(triples), n, r, mixed)
    for shape in (*STRUCTURES.values(), *trees(rng)):
        slots = np.stack(
            [rng.integers(n if kind == "entity" else 2 * r, size=9) for kind in shape.slot_kinds], 1
        )
        answers = executor.answers(QueryBatch(shape, torch.from_numpy(slots)))
        assert len(answers) == 9
        for row, found in zip(slots, answers, strict=True):
            want = naive(shape, row.tolist(), triples.tolist(), r, domain.tolist())
            assert found.tolist() == sorted(want)


def test_large_sets_take_the_other_way():
    """Many sources of one relation are looked up in the relation, not the other way round."""
    n = 3000
    star = torch.tensor([[0, 0, t] for t in range(1, n)] + [[t, 1, t // 7] for t in range(1, n)])
    answers = GraphExecutor(star, n, 2).answers(QueryBatch.of("2p", torch.tensor([[0, 0, 1]])))
    assert answers[0].tolist() == sorted({t // 7 for t in range(1, n)})
    back = GraphExecutor(star, n, 2).answers(QueryBatch.of("2p", torch.tensor([[0, 0, 2]])))
    assert back[0].tolist() == [0]


def test_hard_answers_are_those_that_only_the_full_graph_gives():
    observed = torch.tensor([[0, 0, 1], [1, 1, 2]])
    full = torch.cat([observed, torch.tensor([[0, 0, 3], [3, 1, 4]])])
    easy, hard = easy_and_hard(
        GraphExecutor(observed, 5, 2),
        GraphExecutor(full, 5, 2),
        QueryBatch.of("2p", torch.tensor([[0, 0, 1], [2, 3, 2]])),
    )
    assert [part.tolist() for part in easy] == [[2], [0]]
    assert [part.tolist() for part in hard] == [[4], []]


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_and_no_queries(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        executor = GraphExecutor(torch.tensor([[0, 0, 1]]), 2, 1)
        assert len(executor.answers(QueryBatch.of("2i", torch.zeros(0, 4).long()))) == 0
        found = executor.answers(QueryBatch.of("1p", torch.tensor([[0, 0]] * 50)))
        assert found.values.tolist() == [1] * 50
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (lambda: GraphExecutor(torch.tensor([[0, 0, 2]]), 2, 1), "tail entity ids from 0 to 1"),
        (lambda: GraphExecutor(torch.tensor([[0, 1, 1]]), 2, 1), "relation ids from 0 to 0"),
        (
            lambda: GraphExecutor(torch.tensor([[0, 0, 1]]), 2, 1, torch.tensor([2])),
            "domain ids from 0 to 1",
        ),
    ],
)
def test_what_does_not_fit_is_refused(build, problem):
    with pytest.raises(ValueError, match=problem):
        build()


def test_repr():
    executor = GraphExecutor(torch.tensor([[0, 0, 1], [0, 0, 1]]), 2, 1)
    assert repr(executor) == "GraphExecutor(1 triples, num_entities=2, num_relations=1)"


def digest(easy, hard):
    out = hashlib.sha256()
    wide = [part.values.astype("<u2") for part in (easy, hard)]
    for row in range(len(easy)):
        for part, values in zip((easy, hard), wide, strict=True):
            own = values[part.start[row] : part.start[row + 1]]
            out.update(struct.pack("<I", own.size) + own.tobytes())
    return out.hexdigest()


# The other ratios take minutes; SHEAFPROP_ALL_RATIOS=1 runs them, too.
@pytest.mark.parametrize("split", ["valid", "test"])
@pytest.mark.parametrize(
    "ratio", RATIOS if os.environ.get("SHEAFPROP_ALL_RATIOS") == "1" else ("550",)
)
def test_answers_of_the_benchmark(ratio, split):
    if not (FOLDER / f"{ratio}.npz").is_file():
        pytest.skip("SHEAFPROP_DATA names no folder with the query benchmark")
    checks = json.loads((FOLDER / "answer_checks.json").read_text())["ratios"][ratio][split]
    data = read_compact_queries(FOLDER / f"{ratio}.npz")
    graphs = [
        GraphExecutor(part, len(data.entities), len(data.relations), data.candidates(split))
        for part in (data.observed(split), data.full(split))
    ]
    assert set(checks) == set(STRUCTURES) == set(data.queries[split])
    for name, check in checks.items():
        batch = QueryBatch.of(name, torch.from_numpy(data.queries[split][name]))
        easy, hard = easy_and_hard(*graphs, batch)
        counts = {"queries": len(batch), "easy": easy.values.size, "hard": hard.values.size}
        assert counts == {key: check[key] for key in counts}, name
        assert digest(easy, hard) == check["sha256"], name
