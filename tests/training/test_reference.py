"""The reference is what a module's own training on the inference graph gives."""

import warnings
from dataclasses import replace

import pytest
import torch

from sheafprop.training import InductiveDataModule
from sheafprop.training.reference import prepare_reference, train_reference
from tests.toy import toy_data
from tests.training.test_sheaf_completion import fit, module, trainer


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


def test_steps_are_whole_epochs_and_a_schedule_that_has_ended_trains_no_further():
    data = toy_data("fully-inductive")
    batches = -(-data.inference.num_edges // 16)
    ends = []
    for options, changes in [
        (dict(max_epochs=2), {}),
        (dict(max_epochs=-1, max_steps=batches + 1), {}),
        (dict(max_epochs=None, max_steps=2 * batches), {}),
        (dict(max_epochs=5), dict(lr_schedule="cosine", lr_epochs=2)),
    ]:
        reference = module(**changes)
        train_reference(reference, data, batch_size=16, **options)
        assert reference.trainer.global_step == 2 * batches
        ends.append(reference.model.node_emb.weight.detach())
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], ends[2])


def test_a_reference_is_given_the_observed_triples_alone():
    data = toy_data()
    alone, epochs = prepare_reference(module(), data, max_epochs=3, batch_size=8)
    assert alone.train is data.inference
    assert alone.train_valid is alone.valid is alone.test is None
    assert epochs == 3
