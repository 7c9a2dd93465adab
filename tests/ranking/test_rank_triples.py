import math

import pytest
import torch
from torch_geometric.nn.kge import TransE

from sheafprop.errors import DivergenceError
from sheafprop.ranking import TripleFilter, evaluate, rank_counts

NUM_NODES, NUM_RELATIONS = 30, 4


class Table:
    """Fixed scores of few distinct values for every query; counts what it is asked."""

    def __init__(self, seed=0):
        generator = torch.Generator().manual_seed(seed)
        shape = (NUM_NODES, NUM_RELATIONS, NUM_NODES)
        self.tails = torch.randint(6, shape, generator=generator).float()
        self.heads = torch.randint(6, shape, generator=generator).float()
        self.asked = []

    def score_tails(self, head_index, rel_type):
        self.asked += zip(head_index.tolist(), rel_type.tolist(), strict=True)
        return self.tails[head_index, rel_type]

    def score_heads(self, rel_type, tail_index):
        return self.heads[tail_index, rel_type]


def graph(seed=0):
    generator = torch.Generator().manual_seed(seed)
    triples = torch.randint(NUM_NODES, (500, 3), generator=generator)
    triples[:, 0] %= 7  # few heads: queries with many true tails
    triples[:, 1] %= NUM_RELATIONS
    return triples


def direct_counts(table, triples, triple_filter, side):
    """Every triple on its own row, no grouping."""
    head, relation, tail = triples.unbind(1)
    if side == "tail":
        pairs = triple_filter.tails(head, relation) if triple_filter else None
        return rank_counts(table.score_tails(head, relation), tail, pairs)
    pairs = triple_filter.heads(relation, tail) if triple_filter else None
    return rank_counts(table.score_heads(relation, tail), head, pairs)


@pytest.mark.parametrize("batch_size", [1, 7, None])
@pytest.mark.parametrize("filtered", [False, True])
def test_equals_ranking_every_triple_alone(batch_size, filtered):
    table, known = Table(), graph()
    triples = known[::3]
    triple_filter = TripleFilter(known, NUM_NODES, NUM_RELATIONS) if filtered else None
    expected = {
        side: direct_counts(table, triples, triple_filter, side) for side in ("head", "tail")
    }
    table.asked.clear()
    result = evaluate(
        table.score_tails,
        table.score_heads,
        triples,
        triple_filter,
        num_nodes=NUM_NODES,
        batch_size=batch_size,
    )
    for side in ("head", "tail"):
        for name in ("better", "ties", "candidates"):
            assert getattr(result.counts[side], name).equal(getattr(expected[side], name))
    distinct = {(h, r) for h, r, _ in triples.tolist()}
    assert sorted(table.asked) == sorted(distinct)  # every distinct query is scored once
    assert len(distinct) < len(triples) / 2


def test_the_order_of_triples_does_not_matter():
    table, triples = Table(), graph()[:80]
    triple_filter = TripleFilter(triples, NUM_NODES, NUM_RELATIONS)
    order = torch.randperm(80, generator=torch.Generator().manual_seed(3))
    first = evaluate(table.score_tails, table.score_heads, triples, triple_filter)
    second = evaluate(table.score_tails, table.score_heads, triples[order], triple_filter)
    assert first.ranks("head")[order].equal(second.ranks("head"))
    assert first.ranks("tail")[order].equal(second.ranks("tail"))
    assert first.metrics("sampled50") == pytest.approx(second.metrics("sampled50"))


@pytest.mark.parametrize(("batch_size", "bound"), [(None, 2**23), (3, 3 * 2**20)])
def test_scores_held_at_once_are_bounded(batch_size, bound):
    num_nodes, sizes = 2**20, []

    def score_tails(head_index, rel_type):
        scores = torch.zeros(head_index.numel(), num_nodes)
        sizes.append(scores.numel())
        return scores

    triples = torch.tensor([[head, 0, 5] for head in range(20)])
    result = evaluate(
        score_tails, None, triples, num_nodes=num_nodes, sides="tail", batch_size=batch_size
    )
    assert max(sizes) == bound
    assert sum(sizes) == 20 * num_nodes
    assert result.counts["tail"].ties.tolist() == [num_nodes - 1] * 20


def test_pyg_is_our_raw_ranking_of_tails():
    torch.manual_seed(0)
    model = TransE(NUM_NODES, NUM_RELATIONS, 8)
    triples = graph()[:50]

    def score_tails(head_index, rel_type):
        tails = torch.arange(NUM_NODES).repeat(head_index.numel())
        head, relation = (v.repeat_interleave(NUM_NODES) for v in (head_index, rel_type))
        return model(head, relation, tails).view(-1, NUM_NODES)

    mean_rank, mrr, hits = model.test(*triples.unbind(1), batch_size=NUM_NODES, log=False)
    ours = evaluate(score_tails, None, triples, num_nodes=NUM_NODES, sides="tail").metrics("full")
    assert ours["mean_rank"] == pytest.approx(mean_rank + 1, rel=1e-6)  # theirs starts at 0
    assert ours["mrr"] == pytest.approx(mrr, rel=1e-5)
    assert ours["hits@10"] == pytest.approx(hits)
    assert 0 < hits < 1


def test_nan_names_the_query_and_the_cause():
    table, triples = Table(), torch.tensor([[1, 0, 2], [5, 3, 4]])
    table.heads[4, 3, 20] = math.nan
    with pytest.raises(DivergenceError, match=r"query \(\?, 3, 4\).*most likely"):
        evaluate(table.score_tails, table.score_heads, triples, num_nodes=NUM_NODES)
    result = evaluate(table.score_tails, None, triples, num_nodes=NUM_NODES, sides="tail")
    assert len(result.counts["tail"]) == 2


def test_nan_names_the_entity_whose_scores_are_none():
    table, triples = Table(), torch.tensor([[5, 0, 2], [20, 3, 4]])
    table.tails[:, :, 11] = table.tails[:, :, 20] = math.nan
    labels = [f"e{i}" for i in range(NUM_NODES)]
    arguments = {"num_nodes": NUM_NODES, "sides": "tail", "entity_labels": labels}

    with pytest.raises(
        DivergenceError, match=r"\(5 \('e5'\), 0, \?\).*for entity 11 \('e11'\) and 1 more"
    ):
        evaluate(table.score_tails, None, triples, **arguments)
    table.tails[20] = math.nan
    table.tails[5] = 1.0
    with pytest.raises(DivergenceError, match=r"\(20 \('e20'\), 3, \?\).*every candidate"):
        evaluate(table.score_tails, None, triples, **arguments)


def test_progress_bar_appears_only_when_it_takes_time(capsys):
    table, triples = Table(), graph()[:9]
    evaluate(table.score_tails, table.score_heads, triples, num_nodes=NUM_NODES, progress=True)
    assert "%" not in capsys.readouterr().err


def test_empty_and_bad_input():
    table, triples = Table(), graph()[:9]
    both = (table.score_tails, table.score_heads)
    empty = evaluate(*both, triples[:0], num_nodes=NUM_NODES)
    with pytest.raises(ValueError, match="at least one ranked triple"):
        empty.metrics()
    with pytest.raises(ValueError, match="score_heads for sides='both'"):
        evaluate(table.score_tails, None, triples, num_nodes=NUM_NODES)
    with pytest.raises(ValueError, match="num_nodes for a raw ranking"):
        evaluate(*both, triples)
    with pytest.raises(ValueError, match="got 'all'"):
        evaluate(*both, triples, num_nodes=NUM_NODES, sides="all")
    with pytest.raises(ValueError, match="batch_size >= 1"):
        evaluate(*both, triples, num_nodes=NUM_NODES, batch_size=0)
    with pytest.raises(ValueError, match="num_dropped >= 0"):
        evaluate(*both, triples, num_nodes=NUM_NODES, num_dropped=-1)
    with pytest.raises(ValueError, match=r"but there are 5\)"):
        evaluate(*both, triples, num_nodes=5)
    with pytest.raises(ValueError, match=r"\(9, 31\), one column per entity"):
        evaluate(*both, torch.tensor([[i, 0, 0] for i in range(9)]), num_nodes=31, sides="tail")
    with pytest.raises(ValueError, match="number of entities of the filter, 30"):
        evaluate(*both, triples, TripleFilter(triples, NUM_NODES, NUM_RELATIONS), num_nodes=31)


@pytest.mark.parametrize("filtered", [False, True])
def test_the_order_of_triples_entities_and_relations_changes_rounding_only(filtered):
    table, known = Table(), graph()
    generator = torch.Generator().manual_seed(1)
    node, relation, order = (
        torch.randperm(n, generator=generator) for n in (NUM_NODES, NUM_RELATIONS, len(known))
    )
    other = Table()
    other.tails = table.tails[node][:, relation][:, :, node]
    other.heads = table.heads[node][:, relation][:, :, node]
    moved = torch.stack(
        [
            torch.argsort(node)[known[:, 0]],
            torch.argsort(relation)[known[:, 1]],
            torch.argsort(node)[known[:, 2]],
        ],
        dim=1,
    )[order]
    found = []
    for scorer, triples in ((table, known), (other, moved)):
        triple_filter = TripleFilter(known if scorer is table else moved, NUM_NODES, NUM_RELATIONS)
        found.append(
            evaluate(
                scorer.score_tails,
                scorer.score_heads,
                triples,
                triple_filter if filtered else None,
                num_nodes=NUM_NODES,
            )
        )
    # Ranks are whole or half numbers; a mean of 1000 of them rounds once for each.
    first, again = (result.metrics("full") for result in found)
    assert first.keys() == again.keys()
    for key, value in first.items():
        assert again[key] == pytest.approx(value, rel=2 * len(known) * 2.3e-16), key
