"""Trains with batches from two processes that are started afresh, not forked.

These import this file, so what they need not is imported where it is used.
"""

import multiprocessing
import sys
import warnings


def train(folder, num_workers):
    """The entity table after two epochs."""
    from sheafprop.training import InductiveDataModule
    from tests.toy import toy_data
    from tests.training.test_sheaf_completion import module, trainer

    model = module()
    data = InductiveDataModule.from_data(toy_data(), batch_size=12, num_workers=num_workers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer(folder, 2).fit(model, datamodule=data)
    return model.model.node_emb.weight.detach()


if __name__ == "__main__":
    import torch

    multiprocessing.set_start_method("spawn", force=True)
    torch.save(train(sys.argv[1] + "/run", 2), sys.argv[1] + "/weights.pt")
