from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sheafprop.data import hold_out_mask, semi_inductive_split
from sheafprop.data.splits import disjoint_split, divide_triples
from sheafprop.errors import DataError


def random_triples(num_entities, num_relations, num_triples, seed=0):
    generator = torch.Generator().manual_seed(seed)
    columns = [
        torch.randint(high, (num_triples,), generator=generator)
        for high in (num_entities, num_relations, num_entities)
    ]
    return torch.stack(columns, dim=1)


def masks_of(split):
    return torch.stack(
        [
            split.train_mask,
            split.observed_mask,
            split.valid_mask,
            split.test_mask,
            split.dropped_mask,
        ]
    )


def check_split(triples, num_entities, split):
    """Everything that is promised of every split, in plain Python."""
    masks = masks_of(split)
    assert masks.sum(dim=0).tolist() == [1] * len(triples)
    rows = [tuple(row) for row in triples.tolist()]
    new = {i for i, flag in enumerate(split.new_entity_mask.tolist()) if flag}
    assert split.new_entity_mask.shape == (num_entities,)
    part = {}
    for row, mask in zip(rows, masks.t().tolist(), strict=True):
        number = mask.index(True)
        assert part.setdefault(row, number) == number  # copies stay together
        if number == 0:
            assert not {row[0], row[2]} & new
        elif number < 4:
            assert {row[0], row[2]} & new
    trained = {end for row, number in part.items() if number == 0 for end in (row[0], row[2])}
    observed = {end for row, number in part.items() if number == 1 for end in (row[0], row[2])}
    usable = {end for row, number in part.items() if number < 4 for end in (row[0], row[2])}
    assert usable - new <= trained
    assert new <= observed
    relations = {row[1] for row, number in part.items() if number == 0}
    assert {row[1] for row, number in part.items() if 0 < number < 4} <= relations
    assert not {row[1] for row, number in part.items() if number == 4} & relations
    return part


@pytest.mark.parametrize("seed", range(3))
def test_split_of_a_dense_graph_has_the_asked_sizes(seed):
    triples = random_triples(100, 10, 3000)
    split = semi_inductive_split(triples, 100, seed=seed)
    part = Counter(check_split(triples, 100, split).values())
    assert int(split.new_entity_mask.sum()) == 25
    touching = part[1] + part[2] + part[3]
    assert part[1] == round(0.8 * touching)
    assert abs(part[2] - part[3]) <= 1
    assert part[4] == 0


@pytest.mark.parametrize("seed", range(3))
def test_entities_without_training_triples_count_towards_the_fraction(seed):
    triples = random_triples(400, 3, 450)  # sparse: most entities have one or two triples
    used = len(triples[:, [0, 2]].unique())
    split = semi_inductive_split(triples, 500, seed=seed)
    check_split(triples, 500, split)
    new = int(split.new_entity_mask.sum())
    assert 0.25 * used - 5 <= new <= 0.25 * used + 1
    assert not split.new_entity_mask[400:].any()


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 4), st.integers(0, 9)), min_size=1, max_size=40
    ),
    st.integers(0, 5),
    st.sampled_from([0.1, 0.25, 0.6]),
)
def test_promises_hold_for_any_graph(rows, seed, fraction):
    triples = torch.tensor(rows)
    try:
        split = semi_inductive_split(triples, 10, new_fraction=fraction, seed=seed)
    except DataError:
        # Refused only where new entities would cost the last training triple.
        assert len(set(rows)) < 10 or fraction == 0.6
        return
    check_split(triples, 10, split)
    assert split.new_entity_mask.any()


def test_rare_relations_keep_their_training_triple():
    triples = random_triples(60, 3, 1500)
    rare = torch.tensor([[i, 3 + i, i + 1] for i in range(10)])
    triples = torch.cat([triples, rare])
    for seed in range(5):
        split = semi_inductive_split(triples, 60, seed=seed)
        assert not split.dropped_mask.any()
        assert len(triples[split.train_mask][:, 1].unique()) == 13
        assert int(split.new_entity_mask.sum()) == 15


def test_relations_that_cannot_be_kept_are_dropped():
    # Each relation has one triple, and together they cover all entities: three quarters of them
    # cannot become new unless relations go.
    triples = torch.cat(
        [random_triples(8, 1, 60), torch.tensor([[2 * i, 1 + i, 2 * i + 1] for i in range(4)])]
    )
    split = semi_inductive_split(triples, 8, new_fraction=0.75, seed=0)
    check_split(triples, 8, split)
    assert split.dropped_mask.any()


def test_each_new_entity_gets_a_triple_back():
    triples = random_triples(50, 2, 400)
    split = semi_inductive_split(triples, 50, observed_fraction=0.01, valid_fraction=0.5)
    check_split(triples, 50, split)
    # Every triple that was given back serves an entity: there are at most as many.
    assert split.observed_mask.sum() <= split.new_entity_mask.sum() + 0.01 * len(triples) + 1


def test_divided_triples_observe_every_new_entity():
    triples = np.array([[0, 0, 1], [1, 0, 2], [2, 0, 3], [3, 0, 4], [9, 0, 4]])
    new = np.array([True] * 5 + [False] * 5)
    # Two of five are observed, and those that 3 and 4 need; 9 is old and needs none.
    assert divide_triples(triples, new, 0.4, 0.2).tolist() == [1, 1, 1, 1, 3]
    assert divide_triples(triples, ~new, 0.4, 0.2).tolist() == [1, 1, 2, 3, 1]


def test_no_more_triples_are_given_back_than_needed():
    # New entities among the tails alone: they are observed as tails, so none needs a triple back.
    triples = torch.cartesian_prod(torch.arange(20), torch.arange(2), torch.arange(20, 40))
    split = semi_inductive_split(triples, 40)
    touching = int((~split.train_mask).sum())
    assert int(split.observed_mask.sum()) == round(0.8 * touching)


def test_split_depends_on_the_seed_alone():
    triples = random_triples(40, 4, 500)
    splits = [masks_of(semi_inductive_split(triples, 40, seed=seed)) for seed in (0, 0, 1)]
    assert torch.equal(splits[0], splits[1])
    assert not torch.equal(splits[0], splits[2])
    torch.manual_seed(5)
    assert torch.equal(splits[0], masks_of(semi_inductive_split(triples, 40, seed=0)))


def test_a_graph_with_nothing_to_train_on():
    star = torch.tensor([[0, 0, i] for i in range(1, 3)])
    with pytest.raises(DataError, match=r"lower 'new_fraction' \(got 0.9\)"):
        semi_inductive_split(star, 3, new_fraction=0.9)
    with pytest.raises(DataError, match=r"cannot be split"):
        semi_inductive_split(torch.tensor([[0, 0, 0], [0, 1, 1]]), 2)
    with pytest.raises(DataError, match=r"cannot be split"):
        semi_inductive_split(star[:0], 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"new_fraction": 0.0}, r"'new_fraction' must be between 0 and 1 \(got 0.0\)"),
        ({"new_fraction": 1}, "new_fraction"),
        ({"observed_fraction": 1.5}, "observed_fraction"),
        ({"valid_fraction": -0.1}, "valid_fraction"),
        ({"observed_fraction": 0.8, "valid_fraction": 0.3}, "must not exceed 1"),
    ],
)
def test_bad_fractions(options, message):
    with pytest.raises(ValueError, match=message):
        semi_inductive_split(random_triples(5, 1, 20), 5, **options)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 7), st.integers(0, 4), st.integers(0, 7)), min_size=1, max_size=60
    ),
    st.integers(0, 5),
    st.sampled_from([0.1, 0.5, 0.99]),
)
def test_hold_out_leaves_every_entity_and_relation(rows, seed, fraction):
    triples = torch.tensor(rows)
    held = hold_out_mask(triples, fraction=fraction, seed=seed)
    kept = triples[~held]
    assert torch.equal(kept[:, [0, 2]].unique(), triples[:, [0, 2]].unique())
    assert torch.equal(kept[:, 1].unique(), triples[:, 1].unique())
    distinct = {tuple(row) for row in triples[held].tolist()}
    assert not distinct & {tuple(row) for row in kept.tolist()}
    assert len(distinct) <= round(fraction * len(set(rows)))


def test_hold_out_of_a_dense_graph():
    triples = random_triples(30, 3, 1000).unique(dim=0)
    held = hold_out_mask(triples, fraction=0.1, seed=4)
    assert int(held.sum()) == round(0.1 * len(triples))
    assert torch.equal(held, hold_out_mask(triples, fraction=0.1, seed=4))
    assert not torch.equal(held, hold_out_mask(triples, fraction=0.1, seed=5))
    with pytest.raises(ValueError, match="fraction"):
        hold_out_mask(triples, fraction=1.0)


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
