import os

import pytest
import torch

from sheafprop.files import StorageError
from sheafprop.training.atomic_checkpoint_io import AtomicCheckpointIO


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
