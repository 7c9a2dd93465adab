import pytest
import torch

from sheafprop.ranking import EdgeTypeHeuristic, evaluate

TRIPLES = torch.tensor([[0, 0, 1], [2, 0, 1], [2, 0, 1], [3, 1, 3]])


def test_scores_entities_seen_on_that_side():
    heuristic = EdgeTypeHeuristic(TRIPLES, num_nodes=5, num_relations=3)
    relation = torch.tensor([0, 1, 2])
    tails = heuristic.score_tails(torch.zeros(3, dtype=torch.long), relation)
    heads = heuristic.score_heads(relation, torch.zeros(3, dtype=torch.long))
    assert tails.tolist() == [[0, 1, 0, 0, 0], [0, 0, 0, 1, 0], [0] * 5]
    assert heads.tolist() == [[1, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0] * 5]
    # From relation 3 on, the ids of inverse relations, which end at the heads.
    ends = heuristic.is_seen(torch.arange(6))
    assert ends.dtype == torch.bool
    assert ends.equal(torch.cat([tails, heads]).bool())


def test_ranks_with_ties():
    heuristic = EdgeTypeHeuristic(TRIPLES, num_nodes=5, num_relations=3)
    triples = torch.tensor([[4, 0, 1], [4, 0, 0], [1, 2, 4]])
    result = evaluate(heuristic.score_tails, heuristic.score_heads, triples, num_nodes=5)
    # One entity is a known tail of relation 0; relation 2 has none, so that all five tie.
    assert result.ranks("tail").tolist() == [1.0, 3.5, 3.0]
    assert result.ranks("head").tolist() == [4.0, 4.0, 3.0]


def test_empty_graph_bad_ids_and_repr():
    heuristic = EdgeTypeHeuristic(TRIPLES[:0], num_nodes=5, num_relations=3)
    assert heuristic.score_heads(torch.tensor([1]), torch.tensor([0])).tolist() == [[0] * 5]
    with pytest.raises(ValueError, match="got 3, but there are 3"):
        heuristic.score_heads(torch.tensor([3]), torch.tensor([0]))
    with pytest.raises(ValueError, match="got 3, but there are 2"):
        EdgeTypeHeuristic(TRIPLES, num_nodes=2, num_relations=3)
    assert repr(heuristic) == "EdgeTypeHeuristic(num_nodes=5, num_relations=3)"
