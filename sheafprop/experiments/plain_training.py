"""Training for experiments: our modules and a trainer with nothing around them."""

from typing import Any

from lightning.pytorch import Trainer

from sheafprop.data.inductive_data import InductiveData
from sheafprop.kge import KGEModel
from sheafprop.training.inductive_data_module import InductiveDataModule
from sheafprop.training.sheaf_completion import SheafCompletion


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
    trainer.fit(module, datamodule=InductiveDataModule.from_data(data, batch_size=batch_size))
    return module.model.cpu().eval()
