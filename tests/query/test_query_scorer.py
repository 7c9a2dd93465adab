import pytest
import torch

from sheafprop.data import Vocabulary
from sheafprop.query import EdgeTypeScorer, QueryBatch, QueryScorer

ENTITIES = Vocabulary(["a", "b", "c"], kind="entities")
RELATIONS = Vocabulary(["r", "s"], kind="relations")


class Backwards(QueryScorer):
    """Scores ten times the anchor, the relation and a third of the entity; last query first."""

    def blocks(self, batch, candidates=None, *, batch_size=None):
        ids = torch.arange(self.num_entities) if candidates is None else candidates
        for rows in torch.arange(len(batch)).flip(0).split(batch_size or 2):
            own = batch.slots[rows].double() @ torch.tensor([10.0, 1.0], dtype=torch.double)
            yield rows, own.unsqueeze(1) + ids / 3


@pytest.mark.parametrize("batch_size", [None, 1, 3])
def test_scores_stand_at_the_places_of_their_queries(batch_size):
    scorer = Backwards(3, 2, ENTITIES, RELATIONS)
    slots = torch.tensor([[2, 1], [0, 3], [1, 0]])
    own = torch.tensor([[21.0], [3.0], [10.0]], dtype=torch.double)
    want = own + torch.arange(3) / 3
    batch = QueryBatch.of("1p", slots)
    assert torch.equal(scorer.score(batch, batch_size=batch_size), want)
    some = torch.tensor([2, 0])
    assert torch.equal(scorer.score(batch, some, batch_size=batch_size), want[:, some])
    texts = ["via(s, c)", "via(inverse(s), a)", "via(r, b)"]
    assert torch.equal(scorer.score(texts, batch_size=batch_size), want)


def test_no_query_has_a_row_of_no_score():
    scorer = Backwards(3, 2, ENTITIES, RELATIONS)
    assert scorer.score([]).shape == (0, 3)
    assert scorer.score([], torch.tensor([1])).shape == (0, 1)


def test_queries_of_several_shapes_keep_their_positions():
    scorer = Backwards(3, 2, ENTITIES, RELATIONS)
    groups = scorer.group(["via(r, a)", "via(s, via(r, a))", "via(r, c)"])
    assert [positions.tolist() for _, positions in groups] == [[0, 2], [1]]
    batch = QueryBatch.of("1p", torch.tensor([[0, 0]]))
    ((same, positions),) = scorer.group(batch)
    assert same is batch
    assert positions.tolist() == [0]


def test_labels_must_fit_and_be_there():
    assert Backwards(3, 2).label(1) == "1"
    assert Backwards(3, 2, ENTITIES).label(1) == "b"
    with pytest.raises(ValueError, match=r"'entities' must hold 4 labels \(got 3\)"):
        Backwards(4, 2, ENTITIES)
    with pytest.raises(ValueError, match=r"'relations' must hold 3 labels \(got 2\)"):
        Backwards(3, 3, ENTITIES, RELATIONS)
    heuristic = EdgeTypeScorer(torch.tensor([[0, 0, 1]]), 3, 1)
    for scorer in (Backwards(3, 2, ENTITIES), heuristic):
        with pytest.raises(ValueError, match="need 'entities' and 'relations'"):
            scorer.score(["via(r, a)"])
    with pytest.raises(ValueError, match="candidate ids from 0 to 2"):
        heuristic.score(QueryBatch.of("1p", torch.tensor([[0, 0]])), torch.tensor([3]))
