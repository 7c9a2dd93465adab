"""The model folder and the checkpoint of a training, without any report."""

import warnings

import pytest
import torch

from sheafprop import SheafModel
from sheafprop.errors import DataError
from sheafprop.training import BestCheckpoint, InductiveDataModule, SaveModel, SheafCompletion
from tests.toy import toy_data
from tests.training.test_sheaf_completion import fit, module, trainer


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
