import pytest
import torch

from sheafprop.query import EdgeTypeScorer, QueryBatch


def test_heuristic_asks_whether_the_entity_was_seen_at_the_last_relations():
    triples = torch.tensor([[0, 0, 1], [2, 1, 3], [0, 1, 1]])
    heuristic = EdgeTypeScorer(triples, 5, 2)
    for name, slots, seen in (
        ("1p", [4, 0], {1}),
        ("1p", [4, 3], {0, 2}),
        ("2p", [4, 0, 1], {1, 3}),
        ("2i", [0, 0, 0, 1], {1}),
        ("2u", [0, 0, 0, 1], {1, 3}),
        ("ip", [0, 0, 0, 0, 2], {0}),
        ("2in", [0, 1, 0, 0], {1, 3}),
    ):
        scores = heuristic.score(QueryBatch.of(name, torch.tensor([slots])))
        assert set(scores[0].nonzero().flatten().tolist()) == seen, name
    some = heuristic.score(QueryBatch.of("1p", torch.tensor([[4, 0]])), torch.tensor([3, 1]))
    assert some.tolist() == [[0, 1]]
    assert repr(heuristic) == "EdgeTypeScorer(num_nodes=5, num_relations=2)"


def test_blocks_cover_all_queries_once():
    heuristic = EdgeTypeScorer(torch.tensor([[0, 0, 1], [2, 1, 3], [0, 1, 1]]), 5, 2)
    slots = torch.stack([torch.arange(20) % 5, torch.arange(20) % 4, torch.arange(20) // 5], 1)
    batch = QueryBatch.of("2p", slots)
    whole = heuristic.score(batch)
    parts = list(heuristic.blocks(batch, batch_size=7))
    assert torch.cat([rows for rows, _ in parts]).tolist() == list(range(20))
    assert torch.cat([scores for _, scores in parts]).equal(whole)
    assert heuristic.score(batch[:0]).shape == (0, 5)
    with pytest.raises(ValueError, match="relation ids go from 0 to 3"):
        list(heuristic.blocks(QueryBatch.of("1p", torch.tensor([[0, 4]]))))
