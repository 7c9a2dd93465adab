"""Optimizers and schedules, by name and injected."""

import math
from typing import ClassVar

import pytest
import torch
from lightning.pytorch import Callback

from sheafprop.kge import TransE
from sheafprop.training import SheafCompletion
from sheafprop.training.optimization import (
    build_optimizer,
    cosine_schedule,
    move_schedule,
    prefer_options,
)
from tests.toy import toy_data
from tests.training.test_sheaf_completion import fit, module


def parameters():
    return [torch.nn.Parameter(torch.ones(2))]


def model():
    return TransE(3, 2, 4)


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


def test_the_cosine_is_that_of_torch():
    def rates(schedule):
        seen = []
        for _ in range(8):
            seen.append(schedule.get_last_lr()[0])
            schedule.optimizer.step()
            schedule.step()
        return seen

    ours, theirs = (torch.optim.SGD(parameters(), lr=0.3) for _ in range(2))
    expected = rates(torch.optim.lr_scheduler.CosineAnnealingLR(theirs, T_max=8))
    assert rates(cosine_schedule(ours, 8)) == pytest.approx(expected)
    assert ours.param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-12)


def test_what_is_set_now_wins_over_what_is_stored():
    old = build_optimizer("sgd", model(), lr=0.3, weight_decay=0.2)
    schedule = cosine_schedule(old, 4)
    for _ in range(2):
        old.step()
        schedule.step()
    checkpoint = {"optimizer_states": [old.state_dict()], "lr_schedulers": [schedule.state_dict()]}
    new = build_optimizer("sgd", model(), lr=0.1, weight_decay=0.0)
    again = cosine_schedule(new, 8)
    prefer_options(checkpoint, new)
    new.load_state_dict(checkpoint["optimizer_states"][0])
    again.load_state_dict(checkpoint["lr_schedulers"][0])
    move_schedule(again, 2)
    assert new.param_groups[0]["weight_decay"] == 0.0
    expected = 0.05 * (1 + math.cos(math.pi * 2 / 8))
    assert new.param_groups[0]["lr"] == again.get_last_lr()[0] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(lr=0.0), "'lr' must be positive"),
        (dict(weight_decay=-0.1), "'weight_decay' must not be negative"),
        (dict(lr_epochs=0), "'lr_epochs' must be an integer of at least 1"),
    ],
)
def test_options_out_of_range_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        module(**changes)


def test_functions_train_as_the_names_do_and_are_not_stored(tmp_path):
    named, _ = fit(tmp_path / "named", 2, optimizer="adagrad")
    given = dict(optimizer=lambda p: torch.optim.Adagrad(p, lr=0.05))
    injected, _ = fit(tmp_path / "injected", 2, **given)
    for a, b in zip(named.parameters(), injected.parameters(), strict=True):
        assert torch.equal(a, b)
    path = tmp_path / "injected" / "checkpoints" / "last.ckpt"
    loaded = SheafCompletion.load_from_checkpoint(path)
    assert "optimizer" not in torch.load(path, weights_only=True)["hyper_parameters"]
    assert torch.equal(loaded.model.node_emb.weight, injected.model.node_emb.weight)
    whole, _ = fit(tmp_path / "whole", 4, **given)
    resumed, _ = fit(tmp_path / "rest", 4, resume=path, **given)
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(ValueError, match=r"with --model\.optimizer 'of a class'"):
        fit(tmp_path / "other", 5, resume=path)


def test_an_injected_schedule_steps_after_every_epoch_also_of_a_resumed_run(tmp_path):
    class Rates(Callback):
        seen: ClassVar[list[float]] = []

        def on_train_epoch_start(self, trainer, *_):
            self.seen.append(trainer.optimizers[0].param_groups[0]["lr"])

    Rates.seen.clear()
    step = dict(lr=0.08, lr_schedule=lambda o: torch.optim.lr_scheduler.StepLR(o, 1, gamma=0.5))
    fit(tmp_path, 2, toy_data(), callbacks=[Rates()], **step)
    last = tmp_path / "checkpoints" / "last.ckpt"
    fit(tmp_path / "rest", 4, toy_data(), callbacks=[Rates()], resume=last, **step)
    assert Rates.seen == pytest.approx([0.08, 0.04, 0.02, 0.01])
