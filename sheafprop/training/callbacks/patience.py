from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping

from sheafprop.training.monitor import choose_monitor


class Patience(EarlyStopping):
    """Stops training once validation has not improved for some checks.

    It watches what :class:`BestCheckpoint` watches.

    Args:
        checks (int): Validations without improvement that are waited for.
        min_delta (float): Smallest change that counts as an improvement.
    """

    def __init__(self, checks: int = 5, min_delta: float = 0.0):
        super().__init__(monitor="", patience=checks, min_delta=min_delta, mode="max")

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.monitor, self.mode, _ = choose_monitor(trainer.datamodule.data)  # type: ignore[attr-defined]
        sign = -1 if self.mode == "min" else 1
        self.min_delta = sign * abs(self.min_delta)
        if not torch.isfinite(self.best_score):
            self.best_score = torch.tensor(-sign * float("inf"))
        self._check_on_train_epoch_end = self.monitor == "train/loss"
        super().setup(trainer, pl_module, stage)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # A run that was killed after its last validation ends as it would have ended.
        if self.wait_count >= self.patience:
            trainer.should_stop = True

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the state of a checkpoint, but waits for as many checks as are set now."""
        super().load_state_dict(state_dict | {"patience": self.patience})
