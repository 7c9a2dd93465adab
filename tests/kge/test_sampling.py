import numpy as np
import pytest
import torch

from sheafprop.kge import NegativeSampler


def graph(num_triples=60, num_nodes=12, num_relations=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.stack(
        [
            torch.randint(high, (num_triples,), generator=generator)
            for high in (num_nodes, num_relations, num_nodes)
        ],
        dim=1,
    )


def as_set(triples):
    return set(map(tuple, triples.tolist()))


@pytest.mark.parametrize("filtered", [False, True])
def test_a_negative_depends_on_seed_epoch_and_triple_alone(filtered):
    triples = graph()
    index = torch.arange(60)

    def build(seed=1):
        known = triples if filtered else None
        return NegativeSampler(12, 3, 5, seed=seed, known_triples=known)

    whole = torch.stack(build()(triples, index, epoch=2))
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    permuted = torch.stack(build()(triples[order], index[order], epoch=2))
    assert torch.equal(permuted, whole[:, order])
    part = torch.stack(build()(triples[17:20], index[17:20], epoch=2))
    assert torch.equal(part, whole[:, 17:20])
    assert not torch.equal(torch.stack(build()(triples, index, epoch=3)), whole)
    assert not torch.equal(torch.stack(build(seed=2)(triples, index, epoch=2)), whole)
    # equal triples at other places of the training set have negatives of their own
    assert not torch.equal(torch.stack(build()(triples, index + 60, epoch=2)), whole)
    # more negatives leave the first ones as they are
    more = NegativeSampler(12, 3, 9, seed=1, known_triples=triples if filtered else None)
    assert torch.equal(torch.stack(more(triples, index, epoch=2))[:, :, :5], whole)


@pytest.mark.parametrize("sides", ["both", "head", "tail"])
def test_exactly_one_end_is_replaced(sides):
    triples = graph()
    sampler = NegativeSampler(12, 3, 7, seed=0, sides=sides)
    head, relation, tail = sampler(triples, torch.arange(60), epoch=0)
    assert head.shape == relation.shape == tail.shape == (60, 7)
    assert head.dtype == torch.int64
    assert torch.equal(relation, triples[:, 1:2].expand(60, 7))
    head_changed = head != triples[:, :1]
    tail_changed = tail != triples[:, 2:]
    assert bool((head_changed ^ tail_changed).all())
    assert torch.equal(head_changed, head_changed[:, :1].expand(60, 7))  # one end for a triple
    at_head = [sampler.replacements(triples, torch.arange(60), e)[1][:, 0] for e in range(10)]
    shares = torch.stack(at_head).double()
    expected = {"both": pytest.approx(0.5, abs=0.08), "head": 1.0, "tail": 0.0}[sides]
    assert float(shares.mean()) == expected
    if sides == "both":  # it changes from epoch to epoch
        assert int((shares.mean(0) % 1 > 0).sum()) > 50


def test_replacements_are_uniform_over_the_other_entities():
    triples = torch.tensor([[3, 0, 5]]).expand(4000, 3)
    head, _, tail = NegativeSampler(8, 1, 2, seed=0)(triples, torch.arange(4000), epoch=0)
    for entity, own in ((head[head != 3], 3), (tail[tail != 5], 5)):
        count = np.bincount(entity.numpy(), minlength=8)
        assert count[own] == 0
        expected = entity.numel() / 7
        chi_square = float(((np.delete(count, own) - expected) ** 2 / expected).sum())
        assert chi_square < 22.5  # the 99.9 % point for 6 degrees of freedom


def test_filtered_negatives_are_never_known_and_others_are_kept():
    triples = graph(num_triples=400)  # most of the 432 possible triples are known
    known = as_set(triples)
    index = torch.arange(400)
    plain = torch.stack(NegativeSampler(12, 3, 4, seed=1)(triples, index, epoch=0), dim=-1)
    sampler = NegativeSampler(12, 3, 4, seed=1, known_triples=triples)
    filtered = torch.stack(sampler(triples, index, epoch=0), dim=-1)
    assert not as_set(filtered.flatten(0, 1)) & known
    was_known = torch.tensor([[tuple(t) in known for t in row] for row in plain.tolist()])
    assert bool(was_known.any())
    assert bool((~was_known).any())
    assert torch.equal(filtered[~was_known], plain[~was_known])


def test_filtered_replacements_are_uniform_over_what_is_left():
    # Of 50 tails only 7, 20 and 33 are no known tails: mostly found by looking through them all.
    tails = torch.tensor([t for t in range(50) if t not in (7, 20, 33)])
    known = torch.stack([torch.zeros_like(tails), torch.zeros_like(tails), tails], dim=1)
    sampler = NegativeSampler(50, 1, 3000, seed=0, sides="tail", known_triples=known)
    _, _, tail = sampler(known[:1], torch.zeros(1, dtype=torch.long), epoch=0)
    entity, count = tail.unique(return_counts=True)
    assert entity.tolist() == [7, 20, 33]
    assert float(((count - 1000) ** 2 / 1000).sum()) < 13.8  # 99.9 %, 2 degrees of freedom


def test_a_side_without_candidates_gives_way_to_the_other():
    # every entity is a tail of (0, 0, .), so only heads can be replaced
    known = torch.tensor([[0, 0, t] for t in range(6)])
    sampler = NegativeSampler(6, 1, 20, seed=0, known_triples=known)
    head, _, tail = sampler(known, torch.arange(6), epoch=0)
    assert bool((head != 0).all())
    assert torch.equal(tail, known[:, 2:].expand(6, 20))
    with pytest.raises(ValueError, match=r"\(0, 0, 0\) has no negative"):
        NegativeSampler(6, 1, 2, seed=0, sides="tail", known_triples=known)(
            known, torch.arange(6), epoch=0
        )
    everything = torch.cartesian_prod(torch.arange(2), torch.arange(1), torch.arange(2))
    with pytest.raises(ValueError, match="has no negative"):
        NegativeSampler(2, 1, 1, seed=0, known_triples=everything)(
            everything, torch.arange(4), epoch=0
        )


def test_empty_batch_and_empty_filter():
    none = torch.empty(0, 3, dtype=torch.long)
    sampler = NegativeSampler(5, 2, 3, seed=0, known_triples=none)
    assert sampler(none, none[:, 0], epoch=0)[0].shape == (0, 3)
    assert sampler(torch.tensor([[0, 1, 2]]), torch.tensor([0]), epoch=0)[0].shape == (1, 3)


def test_entities_beyond_the_numbers_of_triples_are_sampled_where_none_is_known():
    triples, size = torch.tensor([[2**40, 1, 7], [3, 0, 2**40 - 1]]), 2**40 + 1
    head, relation, tail = NegativeSampler(size, 2, 50, seed=0)(triples, torch.arange(2), epoch=0)
    changed = torch.where(head != triples[:, :1], head, tail)
    assert torch.equal(relation, triples[:, 1:2].expand(2, 50))
    assert 2**39 < int(changed.max()) < size


@pytest.mark.parametrize(
    ("arguments", "config", "message"),
    [
        ((1, 1, 1), {}, r"'num_nodes' >= 2 \(got 1\)"),
        ((5, 0, 1), {}, r"'num_relations'.*got 0"),
        ((5, 1, 0), {}, r"'num_negatives'.*got 0"),
        ((5, 1, 1), {"sides": "relation"}, r"'sides'.*got 'relation'"),
        (
            (2**31, 2, 1),
            {"known_triples": torch.tensor([[0, 1, 2]])},
            r"num_nodes=2147483648, num_relations=2\); sample without 'known_triples'",
        ),
    ],
)
def test_bad_arguments_are_refused(arguments, config, message):
    with pytest.raises(ValueError, match=message):
        NegativeSampler(*arguments, seed=0, **config)
