"""Trains with batches from two processes that are started afresh, not forked."""

import multiprocessing
import sys
import warnings
from pathlib import Path

import torch

from sheafprop.training import InductiveDataModule
from tests.toy import toy_data
from tests.training.test_sheaf_completion import module, trainer


def train(folder: Path, num_workers: int) -> torch.Tensor:
    """The entity table after two epochs."""
    model = module()
    data = InductiveDataModule.from_data(toy_data(), batch_size=12, num_workers=num_workers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer(folder, 2).fit(model, datamodule=data)
    return model.model.node_emb.weight.detach()


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    torch.save(train(Path(sys.argv[1]), 2), Path(sys.argv[1]) / "weights.pt")
