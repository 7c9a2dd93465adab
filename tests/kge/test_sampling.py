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


def test_a_negative_depends_on_seed_epoch_and_triple_alone():
    triples = graph()
    index = torch.arange(60)

    def build(seed=1):
        return NegativeSampler(12, 5, seed=seed)

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
    more = NegativeSampler(12, 9, seed=1)
    assert torch.equal(torch.stack(more(triples, index, epoch=2))[:, :, :5], whole)


@pytest.mark.parametrize("sides", ["both", "head", "tail"])
def test_exactly_one_end_is_replaced(sides):
    triples = graph()
    sampler = NegativeSampler(12, 7, seed=0, sides=sides)
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
    head, _, tail = NegativeSampler(8, 2, seed=0)(triples, torch.arange(4000), epoch=0)
    for entity, own in ((head[head != 3], 3), (tail[tail != 5], 5)):
        count = np.bincount(entity.numpy(), minlength=8)
        assert count[own] == 0
        expected = entity.numel() / 7
        chi_square = float(((np.delete(count, own) - expected) ** 2 / expected).sum())
        assert chi_square < 22.5  # the 99.9 % point for 6 degrees of freedom


def test_empty_batch():
    none = torch.empty(0, 3, dtype=torch.long)
    sampler = NegativeSampler(5, 3, seed=0)
    assert sampler(none, none[:, 0], epoch=0)[0].shape == (0, 3)
    assert sampler(torch.tensor([[0, 1, 2]]), torch.tensor([0]), epoch=0)[0].shape == (1, 3)


def test_entities_beyond_the_numbers_of_triples_are_sampled_where_none_is_known():
    triples, size = torch.tensor([[2**40, 1, 7], [3, 0, 2**40 - 1]]), 2**40 + 1
    head, relation, tail = NegativeSampler(size, 50, seed=0)(triples, torch.arange(2), epoch=0)
    changed = torch.where(head != triples[:, :1], head, tail)
    assert torch.equal(relation, triples[:, 1:2].expand(2, 50))
    assert 2**39 < int(changed.max()) < size


@pytest.mark.parametrize(
    ("arguments", "config", "message"),
    [
        ((1, 1), {}, r"'num_nodes' >= 2 \(got 1\)"),
        ((5, 0), {}, r"'num_negatives'.*got 0"),
        ((5, 1), {"sides": "relation"}, r"'sides'.*got 'relation'"),
    ],
)
def test_bad_arguments_are_refused(arguments, config, message):
    with pytest.raises(ValueError, match=message):
        NegativeSampler(*arguments, seed=0, **config)
