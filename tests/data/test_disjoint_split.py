import pytest
import torch

from sheafprop.data.disjoint_split import disjoint_split
from sheafprop.errors import DataError


def two_cliques(size=6):
    """Two cliques that one triple connects, as relation 0 and 1 both."""
    rows = []
    for offset in (0, size):
        for i in range(size):
            for j in range(size):
                if i != j:
                    rows.append((offset + i, (i + j) % 2, offset + j))
    return torch.tensor([*rows, (0, 0, size)])


@pytest.mark.parametrize("seed", range(4))
def test_no_entity_is_on_both_sides_and_every_triple_in_one_part(seed):
    generator = torch.Generator().manual_seed(seed)
    triples = torch.stack(
        [torch.randint(n, (300,), generator=generator) for n in (40, 3, 40)], dim=1
    )
    split = disjoint_split(triples, 40, seed=seed)
    parts = torch.stack([split.train_mask, split.new_mask, split.dropped_mask])
    assert torch.equal(parts.sum(0), torch.ones(300, dtype=torch.long))
    train = triples[split.train_mask][:, [0, 2]].unique()
    new = triples[split.new_mask][:, [0, 2]].unique()
    assert not set(train.tolist()) & set(new.tolist())
    assert bool(split.new_entity_mask[new].all())
    assert not bool(split.new_entity_mask[train].any())
    assert int(split.new_entity_mask.sum()) == round(0.35 * len(triples[:, [0, 2]].unique()))


@pytest.mark.parametrize("seed", range(6))
def test_regions_follow_the_graph(seed):
    split = disjoint_split(two_cliques(), 12, new_fraction=0.5, seed=seed)
    # Half of the entities: one of the cliques as a whole, with only the bridge cut.
    assert int(split.dropped_mask.sum()) == 1
    assert split.new_entity_mask[:6].sum() in (0, 6)


def test_relations_that_lost_their_training_triples_are_dropped():
    triples = torch.cat([two_cliques(), torch.tensor([[7, 5, 8], [1, 6, 2]])])
    for seed in range(6):
        split = disjoint_split(triples, 12, new_fraction=0.5, seed=seed)
        kept = set(triples[split.train_mask][:, 1].tolist())
        assert set(triples[split.new_mask][:, 1].tolist()) <= kept
        lost = triples[split.dropped_mask][:, 1].tolist()
        assert (5 in lost) != (6 in lost)


def test_is_the_same_for_equal_seeds_and_copies_stay_together():
    triples = two_cliques().repeat(2, 1)
    one, other = (disjoint_split(triples, 12, new_fraction=0.4, seed=3) for _ in range(2))
    assert torch.equal(one.new_entity_mask, other.new_entity_mask)
    half = len(triples) // 2
    assert torch.equal(one.train_mask[:half], one.train_mask[half:])


@pytest.mark.parametrize("triples", [[[0, 0, 1]], [[0, 0, 0], [0, 1, 0]]])
def test_refuses_a_graph_that_cannot_be_split(triples):
    with pytest.raises(DataError, match="needs more triples"):
        disjoint_split(torch.tensor(triples), 2)


def test_refuses_fractions_out_of_range():
    with pytest.raises(ValueError, match="new_fraction"):
        disjoint_split(two_cliques(), 12, new_fraction=1.0)
