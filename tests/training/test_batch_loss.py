"""Losses of batches against single scores."""

import pytest
import torch

from sheafprop.kernels.backend import use_backend
from sheafprop.kge import KGE_REGISTRY
from sheafprop.ranking import TripleFilter
from sheafprop.training.batch_loss import BatchLoss
from sheafprop.training.reference import train_reference
from tests.nn.test_plain_devices import PlainDevice
from tests.toy import toy_data
from tests.training.test_sheaf_completion import fit, module


def test_negatives_and_starts_follow_seed_and_epoch():
    seeds = (1, 2)
    triples, number = torch.tensor([[0, 0, 1], [1, 0, 2]]), torch.arange(2)
    modules = [module(loss="margin_ranking", seed=seed) for seed in seeds]
    assert [m.search.settings.seed for m in modules] == list(seeds)
    model = modules[0].build(50, 1)
    losses = [float(m.batch_loss(model, triples, number, e)) for m in modules for e in (0, 1)]
    assert len(set(losses)) == 4
    assert losses[0] == float(modules[0].batch_loss(model, triples, number, 0))


@pytest.mark.parametrize("kge", ["transe", "rotate", "se"])
def test_cross_entropy_asks_for_both_ends_equally_or_for_the_tail_alone(kge):
    triples, number = torch.tensor([[0, 0, 1], [1, 0, 2], [3, 1, 0]]), torch.arange(3)
    both, tail = (module(kge=kge, sides=sides) for sides in ("both", "tail"))
    model = both.build(7, 2)
    head, relation, target = triples.T
    x = model.entity_vectors()
    losses = [
        torch.nn.functional.cross_entropy(model.score_tails(x, head, relation), target),
        torch.nn.functional.cross_entropy(model.score_heads(x, relation, target), head),
    ]
    assert torch.allclose(both.batch_loss(model, triples, number, 0), sum(losses) / 2)
    assert torch.allclose(tail.batch_loss(model, triples, number, 0), losses[0])
    with pytest.raises(ValueError, match=r"'sides' must be one of 'both', 'tail' \(got 'head'\)"):
        module(sides="head")


@pytest.mark.parametrize("kge", ["transe", "se"])
def test_cross_entropy_compares_with_the_batch_and_what_is_drawn(kge, monkeypatch):
    triples, number = torch.tensor([[0, 0, 9], [1, 0, 2], [9, 1, 0]]), torch.arange(3)
    some = module(kge=kge, num_candidates=2, sides="tail")
    model = some.build(40, 2)
    seen = []
    loss_over_entities = type(model).loss_over_entities

    def watched(self, loss, x, *rest):
        # Which rows of the table these are: all of them differ.
        seen.append((x.unsqueeze(1) == self.entity_vectors()).all(2).nonzero()[:, 1])
        return loss_over_entities(self, loss, x, *rest)

    monkeypatch.setattr(type(model), "loss_over_entities", watched)
    losses = [some.batch_loss(model, triples, number + shift, 0) for shift in (0, 0, 7)]
    losses.append(some.batch_loss(model, triples, number, 1))
    for ids, loss in zip(seen, losses, strict=True):
        assert set(ids.tolist()) >= {0, 1, 2, 9}
        assert 4 < len(ids) <= 6
        scores = model.score_tails(model.entity_vectors(), triples[:, 0], triples[:, 1])[:, ids]
        target = torch.searchsorted(ids, triples[:, 2].contiguous())
        assert torch.allclose(loss, torch.nn.functional.cross_entropy(scores, target))
    # The draw follows the triples and the epoch.
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])
    assert not torch.equal(seen[0], seen[3])
    every = [
        module(kge=kge, num_candidates=count).batch_loss(model, triples, number, 0)
        for count in (None, 40)
    ]
    assert torch.equal(*every)
    with pytest.raises(ValueError, match="'num_candidates' must be an integer of at least 1"):
        module(num_candidates=0)


@pytest.mark.parametrize("count", [None, 3])
@pytest.mark.parametrize("kge", ["rotate", "se", "transr", "transh", "pairre"])
def test_other_true_answers_can_be_excluded(kge, count, monkeypatch):
    known = torch.tensor([[0, 0, 9], [0, 0, 2], [0, 0, 30], [9, 1, 0], [5, 1, 0], [0, 1, 9]])
    known = torch.cat([known, known[[0, 1, 3]]])  # a triple that is given twice is one
    batch, number = known[[1, 3]], torch.arange(2)
    some = module(kge=kge, num_candidates=count, leave_out_known=True)
    model, seen = some.build(40, 2), []
    loss_over_entities = type(model).loss_over_entities

    def watched(self, loss, x, *rest):
        seen.append((x.unsqueeze(1) == self.entity_vectors()).all(2).nonzero()[:, 1])
        return loss_over_entities(self, loss, x, *rest)

    monkeypatch.setattr(type(model), "loss_over_entities", watched)
    loss = some.batch_loss(model, batch, number, 0, TripleFilter(known, 40, 2))
    (ids,), x, losses = seen, model.entity_vectors(), []
    for head, relation, tail in batch.tolist():
        for side in ("tail", "head"):
            triple = torch.tensor([head, relation, tail]).expand(len(ids), 3).clone()
            triple[:, 2 if side == "tail" else 0] = ids
            true = tail if side == "tail" else head
            others = {tuple(t) for t in known.tolist()} - {(head, relation, tail)}
            kept = torch.tensor([tuple(t) not in others for t in triple.tolist()])
            scores = model.score_triples(x, *triple[kept].T).unsqueeze(0)
            place = (ids[kept] == true).nonzero()[0]
            losses.append(torch.nn.functional.cross_entropy(scores, place))
    assert len(ids) < 40 if count else len(ids) == 40
    assert torch.allclose(loss, torch.stack(losses).mean())


def test_training_excludes_the_triples_of_its_graph(tmp_path, monkeypatch):
    data, seen = toy_data(), []
    batch_loss = BatchLoss.__call__

    def watched(self, model, triples, number, epoch, known=None, size=None):
        seen.append(known)
        return batch_loss(self, model, triples, number, epoch, known, size)

    monkeypatch.setattr(BatchLoss, "__call__", watched)
    fit(tmp_path / "0", 1, data)
    assert set(seen) == {None}
    seen.clear()
    model, _ = fit(tmp_path / "1", 1, data, leave_out_known=True)
    assert {known.num_triples for known in seen} == {len(data.train.triples)}
    seen.clear()
    train_reference(model.copy(), data, max_epochs=1, batch_size=16)
    assert {known.num_triples for known in seen} == {len(data.inference.triples)}
    with pytest.raises(ValueError, match=r"only to the cross entropy \(got 'nssa'\)"):
        module(loss="nssa", leave_out_known=True)


@pytest.mark.parametrize("loss", ["cross_entropy", "cross_entropy, drawn", "margin_ranking"])
@pytest.mark.parametrize("kge", KGE_REGISTRY)
def test_gradients_on_devices_that_add_no_complex_rows(kge, loss):
    name, _, drawn = loss.partition(", ")
    own = module(kge=kge, loss=name, num_candidates=3 if drawn else None)
    model, grads = own.build(9, 2), []
    triples, number = torch.tensor([[0, 0, 1], [1, 0, 2], [3, 1, 0]]), torch.arange(3)
    for plain in (False, True):
        model.zero_grad()
        if plain:
            with use_backend("torch"), PlainDevice():
                own.batch_loss(model, triples, number, 0).backward()
        else:
            own.batch_loss(model, triples, number, 0).backward()
        grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
