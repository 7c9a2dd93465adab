"""What is watched, the best checkpoint, patience, and the model folder, without any report."""

import math
import os
import warnings

import pytest
import torch

from sheafprop import SheafModel
from sheafprop.errors import DataError
from sheafprop.files import StorageError
from sheafprop.training import (
    BestCheckpoint,
    InductiveDataModule,
    Patience,
    SaveModel,
    SheafCompletion,
)
from sheafprop.training.callbacks import choose_monitor
from sheafprop.training.checkpoint_state import AtomicCheckpointIO
from tests.toy import toy_data
from tests.training.test_sheaf_completion import fit, module, trainer


@pytest.mark.parametrize(
    ("without", "monitor", "mode"),
    [
        ((), "val/mrr", "max"),
        (("train_valid",), "val/mrr", "max"),
        (("valid",), "val/transductive/mrr", "max"),
        (("valid", "train_valid"), "train/loss", "min"),
    ],
)
def test_the_nearest_validation_there_is_decides(without, monitor, mode):
    found = choose_monitor(toy_data(without=without))
    assert found[:2] == (monitor, mode)
    assert ("none" in found[2] or "no validation" in found[2]) == ("valid" in without)


def test_a_checkpoint_that_cannot_be_put_in_place_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint({"epoch": 1, "weight": torch.ones(3)}, path)

    def refuse(source, target):
        raise PermissionError(13, "refused", target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        with pytest.raises(StorageError):
            AtomicCheckpointIO().save_checkpoint({"epoch": 2}, path)
    stored = AtomicCheckpointIO().load_checkpoint(path)
    assert stored["epoch"] == 1
    assert torch.equal(stored["weight"], torch.ones(3))
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]


def test_the_best_checkpoint_is_the_best_and_never_one_that_is_not_a_number(tmp_path, monkeypatch):
    values = [0.2, math.nan, 0.7, 0.4, math.nan]

    def score(self, batch, batch_idx):
        self.log("val/mrr", torch.tensor(values[self.current_epoch]), batch_size=1)

    monkeypatch.setattr(SheafCompletion, "validation_step", score)
    _, run = fit(tmp_path, 5, toy_data(without=("train_valid",)))
    stored = torch.load(tmp_path / "checkpoints" / "best.ckpt", weights_only=True)
    assert stored["epoch"] == 2
    assert float(run.checkpoint_callback.best_model_score) == pytest.approx(0.7)


def test_a_moved_state_names_the_files_of_its_folder(tmp_path):
    _, run = fit(tmp_path / "old", 2)
    state = run.checkpoint_callback.state_dict()
    moved = BestCheckpoint(dirpath=tmp_path / "new" / "checkpoints")
    moved.load_state_dict(state)
    assert moved.best_model_path == str(tmp_path / "new" / "checkpoints" / "best.ckpt")
    assert moved.last_model_path == str(tmp_path / "new" / "checkpoints" / "last.ckpt")
    assert list(moved.best_k_models) == [moved.best_model_path]
    assert moved.best_model_score == run.checkpoint_callback.best_model_score


def test_patience_stops_a_run_that_does_not_improve(tmp_path):
    _, run = fit(tmp_path, 50, callbacks=[Patience(checks=2)], lr=1e-9)
    assert run.current_epoch < 10


def test_patience_lets_a_falling_loss_go_on(tmp_path):
    data = toy_data(without=("valid", "train_valid"))
    _, run = fit(tmp_path, 8, data, callbacks=[Patience(checks=2)])
    assert run.early_stopping_callback.monitor == "train/loss"
    assert run.current_epoch == 8


def test_the_checks_that_are_set_now_hold_after_loading():
    old, new = Patience(checks=2), Patience(checks=7)
    old.wait_count = 1
    new.load_state_dict(old.state_dict())
    assert (new.wait_count, new.patience) == (1, 7)


def test_the_best_weights_and_the_choice_are_saved_and_taken_by_test(tmp_path, monkeypatch):
    model, run = fit(tmp_path, 4, callbacks=[SaveModel()])
    stored = torch.load(tmp_path / "checkpoints" / "best.ckpt", weights_only=True)
    folder = SheafModel.load(tmp_path)
    for name, value in folder.kge.state_dict().items():
        assert torch.equal(value, stored["state_dict"][f"kge.{name}"])
    assert folder.settings == model.selection.settings.to_dict()
    assert stored["sheafprop"]["selection"] == model.selection.to_dict()
    assert model.training_record["best_epoch"] == stored["epoch"] + 1
    assert model.training_record["stopped"] == "all epochs were run"
    loaded = SheafCompletion.load_from_checkpoint(tmp_path / "checkpoints" / "best.ckpt")
    assert loaded.selection == model.selection
    data = InductiveDataModule.from_data(toy_data(), batch_size=16)
    monkeypatch.setattr(SheafCompletion, "choose_propagation", lambda self: 1 / 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.test(loaded, datamodule=data, ckpt_path="best", verbose=False)
    assert loaded.results


def test_without_a_checkpoint_the_last_weights_are_saved(tmp_path):
    model, run = module(), trainer(tmp_path, 2, callbacks=[SaveModel()], enable_checkpointing=False)
    with pytest.warns(UserWarning, match="no checkpoint was kept"):
        run.fit(model, datamodule=InductiveDataModule.from_data(toy_data(), batch_size=16))
    folder = SheafModel.load(tmp_path)
    assert torch.equal(folder.kge.node_emb.weight, model.model.node_emb.weight)
    assert model.training_record["monitor"] == "none"


@pytest.mark.parametrize("options", [dict(max_epochs=0), dict(fast_dev_run=True)])
def test_without_training_there_is_no_model(tmp_path, options):
    run = trainer(tmp_path, 1, callbacks=[SaveModel(), BestCheckpoint()], **options)
    data = InductiveDataModule.from_data(toy_data(), batch_size=16)
    if "max_epochs" in options:
        with pytest.raises(DataError, match="nothing was trained"):
            run.fit(module(), datamodule=data)
    else:
        run.fit(module(), datamodule=data)
    assert not (tmp_path / "model").exists()
