import math
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import Trainer

from sheafprop import progress
from sheafprop.kge import build_model
from sheafprop.training import (
    InductiveDataModule,
    SheafCompletion,
    StepBudget,
    budget,
    count_candidates,
    count_training_steps,
)
from sheafprop.training.batch_loss import BatchLoss
from sheafprop.training.budget import TrainingLines
from tests.toy import toy_data


def trainer(**arguments):
    plain = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return Trainer(accelerator="cpu", **(plain | arguments))


def test_larger_graphs_get_more_steps_and_fewer_epochs():
    steps = [count_training_steps(m, 1024) for m in (1000, 10_000, 100_000, 1_000_000)]
    assert steps == sorted(set(steps))
    epochs = [s * 1024 / m for s, m in zip(steps, (1000, 10_000, 100_000, 1_000_000), strict=True)]
    assert epochs == sorted(epochs, reverse=True)
    assert count_training_steps(10_000, 256) > count_training_steps(10_000, 1024)
    with pytest.raises(ValueError, match="batch_size"):
        count_training_steps(10, 0)


@pytest.mark.parametrize("size", [16, 4096])
@pytest.mark.parametrize("checks", [1, 4])
def test_whole_epochs_of_which_the_last_is_validated(size, checks):
    run, data = trainer(max_epochs=-1), toy_data()
    StepBudget(checks).apply(run, data, size)
    batches = math.ceil(data.train.num_edges / size)
    wanted = count_training_steps(data.train.num_edges, size)
    assert abs(run.max_epochs * batches - wanted) <= run.check_val_every_n_epoch * batches
    assert run.max_epochs % run.check_val_every_n_epoch == 0
    assert 1 <= run.max_epochs // run.check_val_every_n_epoch <= max(checks + 1, 1)


def test_short_trainings_are_validated_once(monkeypatch):
    data, checks = toy_data(), {}
    for name, steps in (("short", 10_000), ("long", 5)):
        monkeypatch.setattr(budget, "_STEPS_OF_CHECK", steps)
        run = trainer(max_epochs=-1)
        StepBudget(3).apply(run, data, 16)
        checks[name] = run.max_epochs / run.check_val_every_n_epoch
    assert checks == {"short": 1, "long": 3}


@pytest.mark.parametrize("end", [{"max_epochs": 3}, {"max_epochs": -1, "max_steps": 7}])
def test_a_given_end_holds(end):
    run = trainer(check_val_every_n_epoch=9, **end)
    StepBudget().apply(run, toy_data(), 16)
    assert run.max_epochs == end["max_epochs"]
    assert run.max_steps == end.get("max_steps", -1)
    assert run.check_val_every_n_epoch == 9


def test_a_run_that_goes_on_has_the_same_end():
    run, module = trainer(max_epochs=-1), InductiveDataModule.from_data(toy_data(), batch_size=16)
    run.datamodule = module
    StepBudget().setup(run, None, "fit")
    epochs = run.max_epochs
    assert epochs > 0
    for stage in ("fit", "test"):
        StepBudget().setup(run, None, stage)
        assert run.max_epochs == epochs


def test_small_tables_are_compared_as_a_whole(monkeypatch):
    assert count_candidates(1000, 10**9) is None
    assert count_candidates(2000, 10**9) == 800
    assert count_candidates(100_000, 10**6) == 2048
    monkeypatch.setattr(budget, "_SMALL_TABLE", 12)
    monkeypatch.setattr(budget, "_SMALL_EPOCH", 0)
    data = toy_data()
    model = build_model(
        "rotate", num_nodes=data.train.num_nodes, num_relations=3, hidden_channels=4
    )
    model.reset_parameters(0)
    triples = data.train.triples[:2]
    number = torch.arange(2)
    size = data.train.num_edges
    few = count_candidates(data.train.num_nodes, size)
    assert 0 < few < data.train.num_nodes
    losses = {
        count: BatchLoss(num_candidates=count, seed=1)(model, triples, number, 0, None, size)
        for count in ("auto", few, None)
    }
    assert losses["auto"] == losses[few]
    assert losses["auto"] != losses[None]
    monkeypatch.setattr(budget, "_SMALL_TABLE", 24)
    assert (
        BatchLoss(num_candidates="auto", seed=1)(model, triples, number, 0, None, size)
        == losses[None]
    )


def test_epochs_of_few_comparisons_have_all_entities():
    most = budget._SMALL_EPOCH
    for count in (2048, 8192):
        assert count_candidates(count, most // count) is None
        assert count_candidates(count, most // count + 1) == min(2048, math.ceil(0.4 * count))


def test_training_gives_the_size_of_its_graph_to_the_choice_of_candidates(monkeypatch):
    data, seen = toy_data(), []

    def count(num_nodes, num_triples):
        seen.append((num_nodes, num_triples))

    monkeypatch.setattr("sheafprop.training.batch_loss.count_candidates", count)
    module = SheafCompletion("rotate", hidden_channels=4, num_candidates="auto")
    trainer(max_epochs=1, limit_val_batches=0).fit(
        module, datamodule=InductiveDataModule.from_data(data, batch_size=16)
    )
    assert set(seen) == {(data.train.num_nodes, data.train.num_edges)}


def test_training_writes_lines_where_no_bar_is_seen(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    lines = TrainingLines()
    run = SimpleNamespace(
        estimated_stepping_batches=80, is_global_zero=True, global_step=0, callback_metrics={}
    )
    lines.on_train_start(run, None)
    for step in range(1, 5):
        now[0], run.global_step = 20.0 * step, 10 * step
        run.callback_metrics = {"train/loss": torch.tensor(0.5)}
        lines.on_train_batch_end(run, None, None, 0)
    assert capsys.readouterr().err == (
        "training: 20 of 80 (steps), 40 s, about 120 s left, loss 0.500\n"
        "training: 40 of 80 (steps), 80 s, about 80 s left, loss 0.500\n"
    )
