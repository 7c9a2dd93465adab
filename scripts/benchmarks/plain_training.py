"""Training for experiments: our modules and a trainer with nothing around them."""

import warnings
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from tqdm.auto import tqdm

from sheafprop.data.inductive_data import InductiveData
from sheafprop.kge import KGEModel
from sheafprop.training.inductive_data_module import InductiveDataModule
from sheafprop.training.sheaf_completion import SheafCompletion


class BatchBar(Callback):
    """A progress bar over the batches of training, on a terminal's standard error."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        total = trainer.estimated_stepping_batches
        self.bar = tqdm(total=total, desc="training", unit="batch", disable=None, leave=False)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any
    ) -> None:
        self.bar.update()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.bar.close()


def train_plainly(
    module: SheafCompletion, data: InductiveData, batch_size: int, **changes: Any
) -> KGEModel:
    """Trains on the training graph and returns the model with its last weights, on the CPU.

    Training takes place there too, and nothing is logged, stored or validated, unless further
    arguments of the trainer say so.
    """
    arguments: dict[str, Any] = {
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_model_summary": False,
        "enable_progress_bar": False,
        "num_sanity_val_steps": 0,
        "limit_val_batches": 0,
    }
    trainer = Trainer(**(arguments | changes))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*does not have many workers")
        warnings.filterwarnings("ignore", message=".*LeafSpec")
        trainer.fit(module, datamodule=InductiveDataModule.from_data(data, batch_size=batch_size))
    return module.model.cpu().eval()
