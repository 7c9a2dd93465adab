import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from sheafprop.pretrained.model_folder import save_model_folder
from sheafprop.training.atomic_checkpoint_io import AtomicCheckpointIO
from sheafprop.training.callbacks.best_checkpoint import BestCheckpoint
from sheafprop.training.checkpoint_state import KEY, count_epochs
from sheafprop.training.monitor import choose_monitor
from sheafprop.training.sheaf_completion import SheafCompletion
from sheafprop.training.trainer_checks import nothing_trained


class SaveModel(Callback):
    """Chooses the propagation after ``fit`` and saves the model folder, ``model`` in the run's.

    The weights are the best ones, of :class:`BestCheckpoint`, or without it the last ones. The
    checkpoint gets the choice too, so that ``test`` takes what ``fit`` chose.

    Raises:
        DataError: If nothing was trained.
    """

    def __init__(self) -> None:
        self._best: tuple[str, dict[str, Any]] | None = None

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, SheafCompletion)
        self._best = None
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        if not trainer.global_step:
            raise nothing_trained()
        if not trainer.is_global_zero:
            return
        monitor, _, sentence = choose_monitor(pl_module.data)
        last_epoch = best_epoch = trainer.fit_loop.epoch_progress.current.ready
        best = _find_best(trainer)
        if best is None:
            warnings.warn("no checkpoint was kept, so the weights of the last epoch are used")
        else:
            stored = torch.load(best.best_model_path, weights_only=True, map_location="cpu")
            pl_module.load_state_dict(stored["state_dict"])
            best_epoch = count_epochs(stored)
            self._best = best.best_model_path, stored
        if best is None or best.best_model_score is None:
            monitor, sentence = "none", "nothing: the last epoch is taken, as none was validated"
        with torch.no_grad():
            selection = pl_module.choose_propagation()
        pl_module.training_record = {
            "epochs": last_epoch,
            "best_epoch": best_epoch,
            "monitor": monitor,
            "chosen_by": sentence,
            "stopped": _why_stopped(trainer),
            "seconds": pl_module.seconds.get("train", 0.0),
        }
        train = pl_module.data.train
        assert train.entities is not None
        assert train.relations is not None
        save_model_folder(
            Path(trainer.default_root_dir) / "model",
            model=pl_module.model,
            entities=train.entities,
            relations=train.relations,
            train=train,
            settings=selection.settings.to_dict(),
            metrics={"training": pl_module.training_record, "selection": selection.to_dict()},
            overwrite=True,
        )

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Stores the choice in the checkpoint, last of all: it marks a run that has finished."""
        if stage != "fit" or self._best is None:
            return
        assert isinstance(pl_module, SheafCompletion)
        assert pl_module.selection is not None
        path, stored = self._best
        stored[KEY] = stored.get(KEY, {}) | {"selection": pl_module.selection.to_dict()}
        stored["hyper_parameters"]["propagation"] = pl_module.hparams["propagation"]
        AtomicCheckpointIO().save_checkpoint(stored, path)
        self._best = None


def _find_best(trainer: Trainer) -> BestCheckpoint | None:
    """The callback that kept the best weights, if there is one."""
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, BestCheckpoint) and callback.best_model_path:
            return callback
    return None


def _why_stopped(trainer: Trainer) -> str:
    for callback in trainer.early_stopping_callbacks:
        if callback.stopped_epoch:
            return f"validation had not improved for {callback.patience} checks"
    return "all epochs were run"
