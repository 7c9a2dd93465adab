"""Callbacks that keep the best weights, stop early and save the model."""

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from sheafprop.data.inductive_data import InductiveData
from sheafprop.distributed import ShardedTable
from sheafprop.errors import DataError
from sheafprop.pretrained.model_folder import write_model_folder
from sheafprop.training.checkpoint_state import KEY, AtomicCheckpointIO, count_epochs, no_step_error
from sheafprop.training.sharded_training import remove_unnamed_rows, restore_rows
from sheafprop.training.sheaf_completion import SheafCompletion


class Monitor(NamedTuple):
    """The monitored quantity.

    Args:
        name (str): The name under which it is logged.
        mode (str): ``"max"`` or ``"min"``, the direction of improvement.
        sentence (str): Its description for reports.
    """

    name: str
    mode: str
    sentence: str

    @property
    def worst(self) -> torch.Tensor:
        return torch.tensor(float("-inf" if self.mode == "max" else "inf"))

    @property
    def in_training(self) -> bool:
        """Whether it is available after a training epoch, without validation."""
        return not self.name.startswith("val/")


def choose_monitor(data: InductiveData) -> Monitor:
    """Chooses the quantity to monitor from the available validation triples.

    Used by :class:`BestCheckpoint`, :class:`Patience`, ``sheafprop tune`` and the report.
    """
    if data.valid is not None:
        return Monitor("val/mrr", "max", "MRR of the inference graph's validation triples")
    if data.train_valid is not None:
        return Monitor(
            "val/transductive/mrr",
            "max",
            "MRR of the transductive validation triples, since the inference graph has none",
        )
    return Monitor("train/loss", "min", "the training loss, since there are no validation triples")


class BestCheckpoint(ModelCheckpoint):
    """Keeps ``checkpoints/best.ckpt`` and ``checkpoints/last.ckpt`` in the run folder.

    The last checkpoint is replaced at every validation. Both are replaced atomically, so a killed
    run resumes from its last validation. The best checkpoint is determined by the inductive
    validation triples, without these by the transductive ones, and without any by the training
    loss.

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
            monitor = choose_monitor(trainer.datamodule.data)  # type: ignore[attr-defined]
            self.monitor, self.mode, self.kth_value = monitor.name, monitor.mode, monitor.worst
            self._save_on_train_epoch_end = monitor.in_training
        strategy = trainer.strategy
        if type(strategy.checkpoint_io) is TorchCheckpointIO:
            strategy.checkpoint_io = AtomicCheckpointIO()
        if self.dirpath is None:
            self.dirpath = str(Path(trainer.default_root_dir) / "checkpoints")
        super().setup(trainer, pl_module, stage)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the state of a checkpoint; its paths become those of this folder, also after a
        move.

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
        """Saves the last state if the base class has not, since it was not the best one."""
        if not self._should_skip_saving_checkpoint(trainer):
            self._save_last_checkpoint(trainer, self._monitor_candidates(trainer))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return  # the base class would save here
        super().on_train_end(trainer, pl_module)
        if not self.best_model_path and trainer.current_epoch > 0:
            # Training ended before the first validation, so the last weights are used.
            self.best_model_path = str(Path(str(self.dirpath)) / f"{self.filename}.ckpt")
            trainer.save_checkpoint(self.best_model_path)


class Patience(EarlyStopping):
    """Stops training if validation has not improved for a number of checks.

    It monitors the same value as :class:`BestCheckpoint`.

    Args:
        checks (int): Number of validations without improvement.
        min_delta (float): Smallest change that counts as an improvement.
    """

    def __init__(self, checks: int = 5, min_delta: float = 0.0):
        super().__init__(monitor="", patience=checks, min_delta=min_delta, mode="max")

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        monitor = choose_monitor(trainer.datamodule.data)  # type: ignore[attr-defined]
        self.monitor, self.mode = monitor.name, monitor.mode
        self.min_delta = abs(self.min_delta) * (-1 if self.mode == "min" else 1)
        if not torch.isfinite(self.best_score):
            self.best_score = monitor.worst
        self._check_on_train_epoch_end = monitor.in_training
        super().setup(trainer, pl_module, stage)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # A run that was killed after its last validation stops as it would have.
        if self.wait_count >= self.patience:
            trainer.should_stop = True

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the state of a checkpoint except the number of checks."""
        super().load_state_dict(state_dict | {"patience": self.patience})


class SaveModel(Callback):
    """Selects the propagation settings after ``fit`` and saves the model to the folder ``model`` of
    the run.

    The weights are the best ones of :class:`BestCheckpoint` or, without it, the last ones. The
    checkpoint stores the settings too, so that ``test`` uses those selected by ``fit``.

    Args:
        overwrite (bool): Whether a new training may replace the model of an earlier one in the same
            folder.

    Raises:
        DataError: If nothing was trained, or such a model exists.
    """

    def __init__(self, overwrite: bool = False) -> None:
        self.overwrite = overwrite
        self._best: tuple[str, dict[str, Any]] | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        anew = trainer.ckpt_path is None and not trainer.fast_dev_run  # type: ignore[attr-defined]
        folder = Path(trainer.default_root_dir)
        if anew and not self.overwrite and (folder / "model" / "manifest.json").exists():
            raise DataError(
                f"{folder} holds the model of an earlier training: give another default_root_dir, "
                "ckpt_path to resume it, or SaveModel(overwrite=True) to replace it"
            )

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, SheafCompletion)
        self._best = None
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        if not trainer.global_step:
            raise no_step_error()
        sharded = isinstance(pl_module.model.node_emb, ShardedTable)
        if not trainer.is_global_zero and not sharded:
            return
        monitor, _, sentence = choose_monitor(pl_module.data)
        last_epoch = best_epoch = trainer.fit_loop.epoch_progress.current.ready
        best = _find_best(trainer)
        if best is None:
            warnings.warn("no checkpoint was kept, so the weights of the last epoch are used")
        else:
            stored = torch.load(
                best.best_model_path, weights_only=True, map_location="cpu", mmap=True
            )
            restore_rows(stored, pl_module.model.node_emb, Path(best.best_model_path).parent)
            pl_module.load_state_dict(stored["state_dict"])
            best_epoch = count_epochs(stored)
            self._best = best.best_model_path, stored
        if sharded:
            pl_module.take_whole_table()
            if self._best is not None:
                # A finished run is one like any other.
                stored["state_dict"] = pl_module.state_dict()
                stored["optimizer_states"] = []
        if not trainer.is_global_zero:
            self._best = None
            return
        if best is None or best.best_model_score is None:
            monitor, sentence = "none", "nothing: the last epoch is taken, as none was validated"
        root = Path(trainer.default_root_dir)
        if pl_module.episode_settings is not None:
            pl_module.train_episodes(
                root / "checkpoints" / "episodes", trainer.loggers, progress=True
            )
        with torch.no_grad():
            selection = pl_module.choose_propagation()
        pl_module.training_record = {
            "epochs": last_epoch,
            "best_epoch": best_epoch,
            "monitor": monitor,
            "chosen_by": sentence,
            "stopped": _why_stopped(trainer),
            "seconds": pl_module.seconds.get("train", 0.0),
            "sparse": pl_module.model.node_emb.sparse,
        }
        metrics = {"training": pl_module.training_record, "selection": selection.to_dict()}
        if pl_module.episode_record is not None:
            metrics["episodes"] = pl_module.episode_record
        trained = pl_module.to_stored_model(pl_module.data, metrics)
        write_model_folder(root / "model", trained, overwrite=True)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Stores the settings in the checkpoint last, which marks the run as finished."""
        if stage != "fit" or self._best is None:
            return
        assert isinstance(pl_module, SheafCompletion)
        assert pl_module.selection is not None
        path, stored = self._best
        stored[KEY] = stored.get(KEY, {}) | {"selection": pl_module.selection.to_dict()}
        if pl_module.episodes is not None:
            record = {"record": pl_module.episode_record}
            stored[KEY]["episodes"] = pl_module.episodes.stored() | record
        for name in ("propagation", "episodes", "proximity"):
            stored["hyper_parameters"][name] = pl_module.hparams[name]
        AtomicCheckpointIO().save_checkpoint(stored, path)
        remove_unnamed_rows(Path(path).parent)
        self._best = None


def _find_best(trainer: Trainer) -> BestCheckpoint | None:
    """Returns the callback that keeps the best weights, if there is one."""
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, BestCheckpoint) and callback.best_model_path:
            return callback
    return None


def _why_stopped(trainer: Trainer) -> str:
    for callback in trainer.early_stopping_callbacks:
        if callback.stopped_epoch:
            return f"validation had not improved for {callback.patience} checks"
    return "all epochs were run"
