import math
import warnings
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from lightning.pytorch import Callback, Trainer

from sheafprop.data import assemble
from sheafprop.errors import DataError, DivergenceError
from sheafprop.inductive.inductive_propagation import InductivePropagation
from sheafprop.inductive.propagation_search import PropagationSearch
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.kge import KGE_REGISTRY, LOSS_REGISTRY
from sheafprop.ranking import TripleFilter
from sheafprop.training import BestCheckpoint, InductiveDataModule, Patience, SheafCompletion
from sheafprop.training.batch_loss import BatchLoss
from sheafprop.training.reference import train_reference
from tests.toy import parts, toy_data

SEARCH = PropagationSearch(
    start=("random",), iterations=(1, 4, 8), settings=PropagationSettings(num_random=2)
)


def module(**changes):
    arguments = dict(kge="transe", hidden_channels=8, lr=0.05, propagation=SEARCH, seed=3)
    return SheafCompletion(**(arguments | changes))


def trainer(folder, epochs, **changes):
    arguments = dict(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        default_root_dir=folder,
        callbacks=[BestCheckpoint()],
    )
    return Trainer(**(arguments | changes))


def fit(folder, epochs, data=None, resume=None, *, callbacks=None, **changes):
    model = module(**changes)
    run = trainer(folder, epochs, callbacks=[BestCheckpoint(), *(callbacks or [])])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.fit(
            model,
            datamodule=InductiveDataModule.from_data(data or toy_data(), batch_size=16),
            ckpt_path=resume,
        )
    return model, run


@pytest.mark.parametrize(
    "changes",
    [
        dict(kge="transe"),
        dict(kge="rotate", lr_schedule="cosine", lr_epochs=4),
        dict(kge="rotate", loss="nssa", num_negatives=4),
        dict(kge="transr", loss="margin_ranking", num_negatives=2, optimizer="adagrad"),
        dict(kge="se"),
    ],
    ids=lambda c: "-".join(str(v) for v in c.values()),
)
def test_two_plus_two_epochs_equal_four(tmp_path, changes):
    whole, _ = fit(tmp_path / "whole", 4, **changes)
    fit(tmp_path / "half", 2, **changes)
    last = tmp_path / "half" / "checkpoints" / "last.ckpt"
    resumed, run = fit(tmp_path / "rest", 4, resume=last, **changes)
    assert run.current_epoch == 4
    for (name, a), b in zip(
        whole.model.state_dict().items(), resumed.model.state_dict().values(), strict=True
    ):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("mode", ["semi-inductive", "fully-inductive"])
def test_one_seed_gives_one_result_and_another_seed_another(tmp_path, mode):
    def run(folder, seed):
        data = InductiveDataModule.from_data(toy_data(mode), batch_size=16)
        model = module(seed=seed)
        worker = trainer(tmp_path / folder, 5)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            worker.fit(model, datamodule=data)
            worker.test(model, datamodule=data, verbose=False)
        return model.results, model.model.state_dict()

    (a, weights_a), (b, weights_b), (c, weights_c) = run("a", 1), run("b", 1), run("c", 2)
    assert a == b
    assert all(torch.equal(weights_a[k], weights_b[k]) for k in weights_a)
    assert a != c
    assert not torch.equal(weights_a["rel_emb.weight"], weights_c["rel_emb.weight"])


def test_training_learns_the_ring_and_propagation_carries_it(tmp_path):
    data = InductiveDataModule.from_data(toy_data("fully-inductive"), batch_size=16)
    model = module(
        kge="rotate",
        kge_args={"squared": True},
        loss_args={"scale": 3.0, "label_smoothing": 0.1},
        hidden_channels=16,
    )
    run = trainer(tmp_path, 60, check_val_every_n_epoch=20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.fit(model, datamodule=data)
        run.test(model, datamodule=data, verbose=False)
    mrr = {(r["method"], r["protocol"]): r["metrics"] for r in model.results}
    full = {method: m["mrr"] for (method, protocol), m in mrr.items() if protocol == "full"}
    assert full["RotatE + sheaf propagation"] > 0.6
    assert (
        full["RotatE + sheaf propagation"] > full["RotatE, random vectors (no propagation)"] + 0.2
    )
    assert full["RotatE + sheaf propagation"] > full["edge-type heuristic"] + 0.2


@pytest.mark.parametrize(
    ("without", "monitor"),
    [
        ((), "val/mrr"),
        (("valid",), "val/transductive/mrr"),
        (("valid", "train_valid"), "train/loss"),
        (("train_valid",), "val/mrr"),
    ],
)
def test_trains_with_whatever_validation_there_is(tmp_path, without, monitor):
    data = toy_data(without=without)
    model, run = fit(tmp_path, 3, data, callbacks=[Patience(checks=2)])
    assert run.checkpoint_callback.monitor == monitor
    assert run.early_stopping_callback.monitor == monitor
    assert (tmp_path / "checkpoints" / "best.ckpt").is_file()
    assert torch.isfinite(run.checkpoint_callback.best_model_score)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.test(
            model, datamodule=InductiveDataModule.from_data(data), verbose=False, ckpt_path="best"
        )
    assert model.selection.on == ("defaults" if "valid" in without else "validation")
    assert model.results[0]["metrics"]["count"] == 2 * len(data.test)


def test_patience_stops_a_run_that_does_not_improve(tmp_path):
    _, run = fit(tmp_path, 50, callbacks=[Patience(checks=2)], lr=1e-9)
    assert run.current_epoch < 10


def test_patience_lets_a_falling_loss_go_on(tmp_path):
    data = toy_data(without=("valid", "train_valid"))
    _, run = fit(tmp_path, 8, data, callbacks=[Patience(checks=2)])
    assert run.early_stopping_callback.monitor == "train/loss"
    assert run.current_epoch == 8


def test_without_test_triples_the_test_says_so(tmp_path):
    data = toy_data(without=("test",))
    model, run = fit(tmp_path, 1, data)
    with pytest.raises(DataError, match="no test triples"):
        run.test(model, datamodule=InductiveDataModule.from_data(data), verbose=False)


def test_a_loss_that_is_not_finite_stops_with_step_and_cause(tmp_path):
    with pytest.raises(DivergenceError, match=r"step \d+ \(epoch \d+\).*learning rate"):
        fit(tmp_path, 50, lr=1e30, optimizer="sgd", kge_args={"entity_constraint": None})
    for file in (tmp_path / "checkpoints").glob("*.ckpt"):
        stored = torch.load(file, weights_only=True)
        assert all(torch.isfinite(v).all() for v in stored["state_dict"].values())


def test_checkpoints_are_plain_and_real(tmp_path):
    fit(tmp_path, 1, kge="rotate")
    stored = torch.load(tmp_path / "checkpoints" / "best.ckpt", weights_only=True)
    assert not any(v.is_complex() for v in stored["state_dict"].values())
    again = SheafCompletion(**stored["hyper_parameters"])
    assert again.hparams == stored["hyper_parameters"]


def test_a_checkpoint_of_another_graph_is_refused(tmp_path):
    fit(tmp_path, 1)
    with pytest.raises(ValueError, match="not the 24 of this training graph"):
        fit(
            tmp_path / "other",
            2,
            toy_data("fully-inductive"),
            resume=tmp_path / "checkpoints" / "best.ckpt",
        )


def test_entities_stay_on_the_sphere_and_relations_are_free(tmp_path):
    model, _ = fit(tmp_path, 3, kge="transe", lr=0.5)
    length = torch.linalg.vector_norm(model.model.entity_vectors(), dim=1)
    assert torch.allclose(length, torch.ones_like(length), atol=1e-5)
    relations = torch.linalg.vector_norm(model.model.rel_emb.weight, dim=1)
    assert not torch.allclose(relations, torch.ones_like(relations), atol=1e-2)


def test_merged_is_marked_when_validation_chose(tmp_path):
    data = InductiveDataModule.from_data(toy_data(), batch_size=16)
    model = module(protocols=("full", "merged"))
    run = trainer(tmp_path, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.fit(model, datamodule=data)
        run.test(model, datamodule=data, verbose=False)
    merged = [r for r in model.results if r["protocol"] == "merged"]
    assert merged[0]["mark"] == "selected on half of the test"
    assert merged[0]["metrics"]["count"] == 2 * (len(data.data.valid) + len(data.data.test))
    assert "mark" not in merged[-1]


def test_every_model_and_loss_trains(tmp_path):
    for name in KGE_REGISTRY:
        for loss in LOSS_REGISTRY:
            model, _ = fit(tmp_path / f"{name}-{loss}", 1, kge=name, loss=loss, num_negatives=2)
            assert torch.isfinite(model.model.node_emb.weight).all()


def test_reference_is_trained_on_the_inference_graph_on_request(tmp_path):
    data = InductiveDataModule.from_data(toy_data("fully-inductive"), batch_size=16)
    model = module(reference=True, kge="rotate", lr_schedule="cosine")
    run = trainer(tmp_path, 20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.fit(model, datamodule=data)
        run.test(model, datamodule=data, verbose=False)
    full = {r["method"]: r["metrics"]["mrr"] for r in model.results if r["protocol"] == "full"}
    reference = full["RotatE trained on the inference graph (reference)"]
    assert reference > full["RotatE, random vectors (no propagation)"]


@pytest.mark.parametrize("kge", ["rotate", "transe", "se"])
def test_the_reference_obeys_the_constraint_and_sees_observed_triples_only(tmp_path, kge):
    """After every step, not only at the start: a model that trains by itself is the yardstick."""
    data = toy_data("fully-inductive")
    model, _ = fit(tmp_path, 1, data, kge=kge, lr=0.5)
    reference = model.copy()
    train_reference(reference, data, max_epochs=3, batch_size=16)
    length = torch.linalg.vector_norm(reference.model.entity_vectors(), dim=1)
    assert torch.allclose(length, torch.ones_like(length), atol=1e-5)
    # The same as the module's own training on a graph that has only the observed triples.
    alone = toy_data("fully-inductive", without=("valid", "test", "train_valid"))
    alone = replace(alone, train=data.inference)
    trained, _ = fit(tmp_path / "alone", 3, alone, kge=kge, lr=0.5)
    for a, b in zip(reference.model.parameters(), trained.model.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_the_reference_follows_the_schedule(tmp_path, schedule):
    data = toy_data("fully-inductive")
    more = dict(lr=0.5, lr_schedule=schedule, lr_epochs=4)
    model, _ = fit(tmp_path, 1, data, **more)
    alone = toy_data("fully-inductive", without=("valid", "test", "train_valid"))
    trained, _ = fit(tmp_path / "alone", 3, replace(alone, train=data.inference), **more)
    reference = model.copy()
    train_reference(reference, data, max_epochs=3, batch_size=16)
    for a, b in zip(reference.model.parameters(), trained.model.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_training_seconds_add_up_over_resumed_runs(tmp_path):
    whole, _ = fit(tmp_path / "whole", 2)
    path = tmp_path / "whole" / "checkpoints" / "last.ckpt"
    stored = torch.load(path, weights_only=True)
    assert 0 < stored["sheafprop"]["seconds"] <= whole.seconds["train"] < 1000
    stored["sheafprop"]["seconds"] = 1000.0
    torch.save(stored, path)
    resumed, _ = fit(tmp_path / "rest", 4, resume=path)
    assert 1000 < resumed.seconds["train"] < 2000


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
        scores = model.score_tails(model.entity_vectors(), triples[:, 0], triples[:, 1], ids)
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
def test_other_true_answers_can_be_left_out(kge, count, monkeypatch):
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


def test_training_leaves_out_the_triples_of_its_graph(tmp_path, monkeypatch):
    data, seen = toy_data(), []
    batch_loss = BatchLoss.__call__

    def watched(self, model, triples, number, epoch, known=None):
        seen.append(known)
        return batch_loss(self, model, triples, number, epoch, known)

    monkeypatch.setattr(BatchLoss, "__call__", watched)
    fit(tmp_path / "0", 1, data)
    assert set(seen) == {None}
    seen.clear()
    model, _ = fit(tmp_path / "1", 1, data, leave_out_known=True)
    assert {known.num_triples for known in seen} == {len(data.train.triples)}
    seen.clear()
    train_reference(model.copy(), data, max_epochs=1, batch_size=16)
    assert {known.num_triples for known in seen} == {len(data.inference.triples)}
    with pytest.raises(ValueError, match=r"for the cross entropy \(the loss is 'nssa'\)"):
        module(loss="nssa", leave_out_known=True)


def test_the_schedule_starts_at_the_full_rate_and_ends_at_zero(tmp_path):
    class Rates(Callback):
        seen: ClassVar[list[float]] = []

        def on_train_batch_start(self, trainer, *_):
            self.seen.append(trainer.optimizers[0].param_groups[0]["lr"])

    data, rates = toy_data(), Rates()
    rates.seen.clear()
    _, run = fit(tmp_path, 2, data, callbacks=[rates], lr=0.1, lr_schedule="cosine")
    total = 2 * -(-len(data.train.triples) // 16)
    expected = [0.05 * (1 + math.cos(math.pi * step / total)) for step in range(total)]
    assert rates.seen == pytest.approx(expected)
    assert run.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-12)


def test_transductive_ranks_are_filtered_by_training_and_validation_triples(tmp_path):
    """Several validation triples answer one query, and count as no mistake of each other."""
    label_triples = parts("semi-inductive") | {
        "train_valid": [("a0", "next", f"a{i}") for i in (4, 5, 6, 8, 9, 10, 12, 13)]
    }
    del label_triples["valid"], label_triples["test"]
    data = assemble("ring", "semi-inductive", **label_triples)
    model, run = fit(tmp_path, 1, data)
    x = model.model.entity_vectors().detach()
    known = set(map(tuple, torch.cat([data.train.triples, data.train_valid]).tolist()))
    reciprocal = []
    for h, r, t in data.train_valid.tolist():
        for side in ("tail", "head"):
            triples = [(h, r, e) if side == "tail" else (e, r, t) for e in range(len(x))]
            true = t if side == "tail" else h
            scores = model.model.score_triples(x, *torch.tensor(triples).T).tolist()
            others = [s for e, s in enumerate(scores) if e != true and triples[e] not in known]
            reciprocal.append(1 / (1 + sum(s > scores[true] for s in others)))
    found = run.callback_metrics["val/transductive/mrr"]
    assert float(found) == pytest.approx(sum(reciprocal) / len(reciprocal), abs=1e-4)


def test_the_seed_draws_the_parameters():
    first, again, other = (module(seed=seed).build(5, 2) for seed in (1, 1, 2))
    assert torch.equal(first.node_emb.weight, again.node_emb.weight)
    assert not torch.equal(first.node_emb.weight, other.node_emb.weight)


def test_held_out_triples_change_no_vector(tmp_path):
    """Neither training nor propagation sees what is to be predicted, only the filter does."""
    found = []
    for without in ((), ("test",), ("valid", "test", "train_valid")):
        data = toy_data("fully-inductive", without=without)
        model, _ = fit(tmp_path / str(len(without)), 2, data)
        vectors = InductivePropagation(model.model, data, SEARCH.settings).vectors(4)
        found.append((model.model.entity_vectors().detach(), vectors))
    for trained, propagated in found[1:]:
        assert torch.equal(trained, found[0][0])
        assert torch.equal(propagated, found[0][1])


def test_the_best_checkpoint_is_the_best_and_never_one_that_is_not_a_number(tmp_path, monkeypatch):
    values = [0.2, math.nan, 0.7, 0.4, math.nan]

    def score(self, batch, batch_idx):
        self.log("val/mrr", torch.tensor(values[self.current_epoch]), batch_size=1)

    monkeypatch.setattr(SheafCompletion, "validation_step", score)
    _, run = fit(tmp_path, 5, toy_data(without=("train_valid",)))
    stored = torch.load(tmp_path / "checkpoints" / "best.ckpt", weights_only=True)
    assert stored["epoch"] == 2
    assert float(run.checkpoint_callback.best_model_score) == pytest.approx(0.7)


@pytest.mark.parametrize("kge", ["rotate", "transe"])
def test_weights_that_mean_nothing_are_never_kept(tmp_path, kge):
    with pytest.raises(DivergenceError, match="learning rate"):
        fit(tmp_path, 3, kge=kge, lr=1e30)
    assert not list(tmp_path.rglob("best.ckpt"))


def test_the_random_baseline_follows_the_seed(tmp_path):
    found = []
    for seed in (1, 2):
        data = InductiveDataModule.from_data(toy_data("fully-inductive"), batch_size=16)
        model = module(seed=seed, kge="rotate", lr=1e-9)
        run = trainer(tmp_path / str(seed), 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run.fit(model, datamodule=data)
            run.test(model, datamodule=data, verbose=False)
        found += [r["metrics"] for r in model.results if "random vectors" in r["method"]][:1]
    assert found[0]["mean_rank"] != found[1]["mean_rank"]


def test_protocols_are_checked(tmp_path):
    with pytest.raises(ValueError, match="at least one"):
        module(protocols=())
    data = InductiveDataModule.from_data(toy_data(without=("valid",)), batch_size=16)
    model = module(protocols=("merged",))
    run = trainer(tmp_path, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.fit(model, datamodule=data)
        with pytest.raises(DataError, match="merged"):
            run.test(model, datamodule=data, verbose=False)
