"""Counts over shards of the entities and shares of the triples are those of one process."""

import pytest
import torch

from sheafprop.data import KnowledgeGraph
from sheafprop.distributed import RankError, rank_shards, rank_shares, shard_bounds
from sheafprop.errors import DivergenceError
from sheafprop.inductive import section_scorer
from sheafprop.kge import KGE_REGISTRY, build_model
from sheafprop.pretrained.sheaf_model import SheafModel
from sheafprop.pretrained.stored_model import StoredModel
from sheafprop.ranking import TripleFilter, evaluate
from sheafprop.ranking.rank_counts import CandidateShard
from tests.pretrained.models import FACTS, SETTINGS
from tests.toy import ring

N, R = 41, 3
PIECE = 8
#: Fewer entities than ranks, one rank without any, and more.
SIZES = [1, 3, 9, N]


@pytest.fixture(params=[2, 4])
def pool(request):
    return request.getfixturevalue({2: "two_ranks", 4: "four_ranks"}[request.param])


def _case(name, n, dtype):
    """A model with many equal rows, triples to rank and others to leave out."""
    model = build_model(name, num_nodes=n, num_relations=R, hidden_channels=8)
    model.reset_parameters(1)
    model.to(dtype)
    with torch.no_grad():  # ties within a shard and between shards
        rows = model.node_emb.weight
        rows[:] = rows[torch.arange(n) % 7]
    generator = torch.Generator().manual_seed(2)
    triples = torch.stack(
        [torch.randint(bound, (150,), generator=generator) for bound in (n, R, n)], dim=1
    )
    return model, triples[:15], TripleFilter({"known": triples}, n, R)


def _counts(result):
    return {side: torch.stack(list(vars(part).values())) for side, part in result.counts.items()}


@torch.no_grad()
def _scores(model, x, first, end):
    """Scores by pieces, which are the same in one process and in several."""

    def score(known, relation, side):
        pieces = [x[i : min(i + PIECE, end)] for i in range(first, end, PIECE)]
        parts = [model.score_candidates(x[known], relation, part, side) for part in pieces]
        return torch.cat([x.real.new_empty(len(known), 0), *parts], dim=1)

    return lambda h, r: score(h, r, "tail"), lambda r, t: score(t, r, "head")


def _rank(ranks, dtype, batch_size):
    equal = {}
    for name in KGE_REGISTRY:
        for n in SIZES if name == "transe" else SIZES[-1:]:
            model, triples, known = _case(name, n, dtype)
            triples = triples[:6] if batch_size == 1 else triples
            x = model.entity_vectors().detach()
            bounds = shard_bounds(n, ranks, PIECE)
            own, one = _scores(model, x, *bounds), _scores(model, x, 0, n)
            options = {"batch_size": batch_size}
            found = [rank_shards(ranks, *own, triples, known, bounds=bounds, **options)]
            if batch_size == 1:  # else its products have other shapes
                found.append(rank_shares(ranks, *one, triples, known, **options))
            want = _counts(evaluate(*one, triples, known, **options))
            same = all(
                values.equal(want[side])
                for result in found
                for side, values in _counts(result).items()
            )
            equal[name, n] = same, int(want["tail"][1].sum())
    return equal


@pytest.mark.parametrize(("dtype", "batch_size"), [(torch.float32, None), (torch.float64, 1)])
def test_counts_of_every_model_are_those_of_one_process(pool, dtype, batch_size):
    for found in pool.run(_rank, dtype, batch_size):
        assert {name for name, _ in found} == set(KGE_REGISTRY)
        assert [case for case, (same, _) in found.items() if not same] == []
        assert all(ties > 0 for (_, n), (_, ties) in found.items() if n > 7)


def _model(name, form):
    """A small model, or one of so many entities that each rank has its own."""
    size = 2100 if form == "large" else 12
    graph = KnowledgeGraph.from_labels(ring("a", size))
    model = build_model(
        name,
        num_nodes=graph.num_nodes,
        num_relations=graph.num_relations,
        hidden_channels=4,
    )
    model.reset_parameters(3)
    with torch.no_grad():  # ties between the ranks
        model.node_emb.weight[size // 2 :] = model.node_emb.weight[: size // 2]
    stored = StoredModel.from_training(
        model, graph.entities, graph.relations, graph.triples, settings=SETTINGS.to_dict()
    )
    whole = SheafModel(stored).extend(FACTS)
    return whole.with_scores(proximity=0.5) if form == "proximity" else whole


TEST = [("n0", "far", "a3"), ("a2", "skip", "n1"), ("a0", "next", "a1"), ("n2", "next", "n0")]
KNOWN = [("n0", "far", "a4"), ("u", "next", "a1")]


def _rank_model(ranks, name, form):
    section_scorer._NUMBERS = 1  # pieces of 1024 entities, the fewest there are
    result = _model(name, form).rank(TEST, known=KNOWN, ranks=ranks)
    return _counts(result), result.describe()


@pytest.mark.parametrize(
    ("name", "form"), [("transe", "large"), ("transr", "large"), ("rotate", "proximity")]
)
def test_a_model_with_added_entities_ranks_as_in_one_process(two_ranks, monkeypatch, name, form):
    monkeypatch.setattr(section_scorer, "_NUMBERS", 1)
    one = _model(name, form).rank(TEST, known=KNOWN)
    for counts, box in two_ranks.run(_rank_model, name, form):
        assert box == one.describe()
        for side, values in _counts(one).items():
            assert counts[side].equal(values)
            assert form != "large" or (values[2] > 2000).all()


def _differ(ranks):
    test = TEST[: 2 + ranks.rank]
    try:
        _model("transe", "plain").rank(test, ranks=ranks)
    except RankError as error:
        return str(error)


def test_other_triples_on_another_rank_are_refused(two_ranks):
    for message in two_ranks.run(_differ):
        assert "triples and vectors of rank 1 of 2" in message


def _diverge(ranks):
    first, end = shard_bounds(N, ranks)
    scores = torch.zeros(1, N)
    scores[0, 3] = torch.nan
    known = TripleFilter(torch.zeros(0, 3, dtype=torch.long), N, R)
    if first > 3 or end <= 3:
        return None  # the other rank would wait for one that ends
    try:
        evaluate(
            lambda h, r: scores[:, first:end],
            None,
            torch.tensor([[5, 1, 2]]),
            known,
            sides="tail",
            shard=CandidateShard(first, end, lambda x: x, lambda x: x),
        )
    except DivergenceError as error:
        return str(error)


def test_a_score_that_is_nan_names_its_entity(two_ranks):
    found = [message for message in two_ranks.run(_diverge) if message]
    assert len(found) == 1
    assert "NaN score for the query (5, 1, ?)" in found[0]
    assert "for entity 3 " in found[0]
