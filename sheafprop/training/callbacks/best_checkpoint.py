from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from sheafprop.training.atomic_checkpoint_io import AtomicCheckpointIO
from sheafprop.training.monitor import choose_monitor


class BestCheckpoint(ModelCheckpoint):
    """Keeps ``checkpoints/best.ckpt`` and ``checkpoints/last.ckpt`` in the run folder.

    The last one is renewed at every validation, whether it is the best or not, and both are
    replaced in one step: whenever a run is killed, it goes on from its last validation. What "best"
    means follows from the data: the inductive validation triples, else the transductive ones, else
    the training loss.

    Args:
        **kwargs: Further arguments of :class:`lightning.pytorch.callbacks.ModelCheckpoint`.
    """

    def __init__(self, **kwargs: Any):
        defaults: dict[str, Any] = {
            "filename": "best",
            "save_last": True,
            "enable_version_counter": False,
        }
        super().__init__(**(defaults | kwargs))

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self.monitor is None:
            data = trainer.datamodule.data  # type: ignore[attr-defined]
            self.monitor, self.mode, _ = choose_monitor(data)
            worst = float("inf") if self.mode == "min" else -float("inf")
            self.kth_value = torch.tensor(worst)
            self._save_on_train_epoch_end = self.monitor == "train/loss"
        strategy = trainer.strategy
        if type(strategy.checkpoint_io) is TorchCheckpointIO:
            strategy.checkpoint_io = AtomicCheckpointIO()
        if self.dirpath is None:
            self.dirpath = str(Path(trainer.default_root_dir) / "checkpoints")
        super().setup(trainer, pl_module, stage)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the state of a checkpoint; its files are those of this folder, also after a move.

        A copy of a run must neither read nor remove the files of the original.
        """
        old, new = state_dict.get("dirpath"), self.dirpath
        if old and new and old != new:

            def moved(value: Any) -> Any:
                if isinstance(value, dict):
                    return {moved(key): score for key, score in value.items()}
                return str(Path(new) / Path(value).name) if value else value

            paths = ("best_model_path", "kth_best_model_path", "last_model_path", "best_k_models")
            state_dict = state_dict | {name: moved(state_dict[name]) for name in paths}
            state_dict["dirpath"] = new
        super().load_state_dict(state_dict)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_epoch_end(trainer, pl_module)
        if self._should_save_on_train_epoch_end(trainer):
            self._save_last(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_validation_end(trainer, pl_module)
        if not self._should_save_on_train_epoch_end(trainer):
            self._save_last(trainer)

    def _save_last(self, trainer: Trainer) -> None:
        """Saves the last state where the base class, since it was not the best one, has not."""
        if not self._should_skip_saving_checkpoint(trainer):
            self._save_last_checkpoint(trainer, self._monitor_candidates(trainer))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return  # the base class would save here all the same
        super().on_train_end(trainer, pl_module)
        if not self.best_model_path and trainer.current_epoch > 0:
            # Training ended before the first validation: the last weights are the best there are.
            self.best_model_path = str(Path(str(self.dirpath)) / f"{self.filename}.ckpt")
            trainer.save_checkpoint(self.best_model_path)
