import math

import pytest
import torch

from sheafprop.training import BestCheckpoint, SheafCompletion
from tests.toy import toy_data
from tests.training.test_sheaf_completion import fit


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
