import json
import math
import re
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger

from sheafprop.checks import count_noun
from sheafprop.errors import DataError
from sheafprop.files import write_json
from sheafprop.hardware import describe_hardware, peak_bytes
from sheafprop.pretrained.model_folder import save_model_folder
from sheafprop.report.group import group_report, record_path
from sheafprop.report.own_files import is_own, own_path
from sheafprop.report.run_report import write_report
from sheafprop.report.tables import terminal_table
from sheafprop.training import BestCheckpoint, SheafCompletion
from sheafprop.training.atomic_checkpoint_io import AtomicCheckpointIO
from sheafprop.training.checkpoint_state import KEY
from sheafprop.training.monitor import choose_monitor
from sheafprop.version import __version__


class RunReport(Callback):
    """Leaves behind what a run found: metrics, report, figure and the trained model.

    After ``fit`` it takes the best weights, runs the full search on validation and stores the model
    folder; after ``test`` it adds the test figures and renews the report of the run's group.

    Args:
        config_hash: Hash of the run's configuration, for the record.
    """

    def __init__(self, config_hash: str = ""):
        self.config_hash = config_hash
        self._trained = False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._trained = False
        if trainer.is_global_zero:
            print(trainer.datamodule.data.summary())  # type: ignore[attr-defined]

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        first, self._trained = not self._trained, True
        if not trainer.is_global_zero or not first:
            return
        if trainer.current_epoch:
            end = f" of {trainer.max_epochs}" if (trainer.max_epochs or -1) > 0 else ""
            print(f"going on with epoch {trainer.current_epoch + 1}{end}")
        monitor, _, sentence = choose_monitor(pl_module.data)  # type: ignore[arg-type]
        if not any(isinstance(c, BestCheckpoint) for c in trainer.checkpoint_callbacks):
            print("no best epoch is kept, as there is no BestCheckpoint: the last epoch is taken")
        elif monitor.startswith("val/") and not _will_validate(trainer):
            print("no epoch will be validated, so the weights of the last one are taken")
        else:
            print(f"the best epoch is chosen by {sentence}")

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, SheafCompletion)
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            if trainer.is_global_zero:
                print("fast_dev_run went through; nothing of it is kept")
            return
        if not trainer.global_step:
            raise DataError(
                "nothing was trained, so there is no model: see trainer.max_epochs, "
                "trainer.max_steps, trainer.max_time and trainer.limit_train_batches"
            )
        if not trainer.is_global_zero:
            return
        # Where training stays stopped, the epoch of its last validation was not counted.
        stopped = [c.stopped_epoch + 1 for c in trainer.early_stopping_callbacks if c.stopped_epoch]
        last_epoch = max(pl_module.current_epoch, *stopped, 0)
        best = _best(trainer)
        best_epoch = last_epoch
        if best is None:
            warnings.warn("no checkpoint was kept, so the weights of the last epoch are used")
        else:
            stored = torch.load(best.best_model_path, weights_only=True, map_location="cpu")
            pl_module.load_state_dict(stored["state_dict"])
            best_epoch = min(int(stored["epoch"]) + 1, last_epoch)
        with torch.no_grad():
            selection = pl_module.choose_propagation()
        monitor, _, sentence = choose_monitor(pl_module.data)
        if best is None or best.best_model_score is None:
            monitor, sentence = "none", "nothing: the last epoch is taken, as none was validated"
        training = {
            "epochs": last_epoch,
            "best_epoch": best_epoch,
            "monitor": monitor,
            "chosen_by": sentence,
            "stopped": _why_stopped(trainer),
            "seconds": pl_module.seconds.get("train", 0.0),
        }
        folder = _folder(trainer)
        before = _record_before(folder)
        if not self._trained:
            print(
                f"{last_epoch} epochs were run before, and none was added: {_why_stopped(trainer)}"
            )
        if self._trained or _chosen_before(before) != selection.to_dict()["chosen"]:
            # What was ranked before belongs to other weights now, or to another choice.
            for name in ("run", "test", "protocols", "seconds"):
                before.pop(name, None)
        record = self._record(trainer, pl_module, before, {"training": training})
        self._write(trainer, record, folder)
        self._save_model(trainer, pl_module, record)
        if best is not None:
            # At last: a checkpoint with a choice is one of a run that came to its end.
            stored[KEY] = stored.get(KEY, {}) | {"selection": selection.to_dict()}
            stored["hyper_parameters"]["propagation"] = pl_module.settings["propagation"]
            AtomicCheckpointIO().save_checkpoint(stored, best.best_model_path)
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                _model_to_wandb(logger, folder)
        print(_chosen(pl_module))
        print(f"model: {folder / 'model'}")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        assert isinstance(pl_module, SheafCompletion)
        folder = _folder(trainer)
        before = _record_before(folder)
        other = pl_module.on_other_data
        if other is None:
            other = _counts_differ(before.get("data", {}), pl_module.data.report)
        found: dict[str, Any] = {
            "test": pl_module.results,
            "protocols": pl_module.protocol_boxes,
        }
        if pl_module.unfinished is not None:
            # The record may be of an earlier end of this run, whose weights were replaced since.
            found["training"] = pl_module.unfinished
        for box in pl_module.protocol_boxes.values():
            print(box + "\n")
        if other:
            run, folder = folder, _folder_of_other_data(folder, trainer)
            record = self._record(trainer, pl_module, before, found)
            record["run"] = record["run"] | {
                "dataset": pl_module.data.name,
                "mode": pl_module.data.mode,
            }
            self._write(trainer, record, folder, log=False)
            print(terminal_table([record]))
            print(f"\nthese are results on other data than that of {run}, which keeps its own")
            print(f"report: {folder / 'report.md'}")
            return
        record = self._record(trainer, pl_module, before, found)
        self._write(trainer, record, folder)
        print(group_report(folder.parent))
        print(f"\nreport: {folder.parent / 'report.md'}")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn != "validate" or not trainer.is_global_zero:
            return
        assert isinstance(pl_module, SheafCompletion)
        print(_chosen(pl_module))

    def _record(
        self,
        trainer: Trainer,
        module: SheafCompletion,
        before: dict[str, Any],
        news: dict[str, Any],
    ) -> dict[str, Any]:
        folder, data = _folder(trainer), module.data
        run = before.get("run") or {
            "dataset": data.name,
            "mode": data.mode,
            "model": type(module.model).__name__,
            "seed": module.settings["seed"],
            "config_hash": self.config_hash,
            "version": __version__,
        }
        assert module.selection is not None
        return before | {
            "format": 1,
            "run": run | {"name": folder.name},  # also where the folder was moved or copied
            "keys": trainer.datamodule.keys,  # type: ignore[attr-defined]
            "data": data.report,
            "selection": module.selection.to_dict(),
            "seconds": before.get("seconds", {}) | module.seconds,
            "peak_bytes": max(before.get("peak_bytes", 0), peak_bytes()),
            "hardware": describe_hardware(),
            **news,
        }

    def _write(
        self, trainer: Trainer, record: dict[str, Any], folder: Path, *, log: bool = True
    ) -> None:
        write_json(own_path(folder, "metrics.json"), record)
        write_report(folder, [record])
        for logger in trainer.loggers if log else ():
            if isinstance(logger, WandbLogger):
                _log_to_wandb(logger, record, folder)

    def _save_model(
        self, trainer: Trainer, module: SheafCompletion, record: dict[str, Any]
    ) -> None:
        data = module.data
        assert data.train.entities is not None
        assert data.train.relations is not None
        assert module.selection is not None
        save_model_folder(
            _folder(trainer) / "model",
            model=module.model,
            entities=data.train.entities,
            relations=data.train.relations,
            train=data.train,
            settings=module.selection.settings.to_dict(),
            metrics={"training": record["training"], "selection": record["selection"]},
            overwrite=True,
        )


def _chosen(module: SheafCompletion) -> str:
    selection = module.selection
    if selection is None or selection.value is None:
        settings = module.search.settings
        return (
            "propagation: there are no validation triples to choose on, so the defaults are taken "
            f"({count_noun(settings.iterations, 'iteration')})"
        )
    chosen = selection.settings
    steps = count_noun(chosen.iterations, "iteration")
    return (
        f"propagation: {steps} from the {chosen.start} start with step size {chosen.step_size}, "
        f"chosen on {count_noun(selection.count, 'validation triple')} among "
        f"{count_noun(selection.tried, 'configuration')} ({selection.metric} {selection.value:.3f})"
    )


def _folder(trainer: Trainer) -> Path:
    return Path(trainer.default_root_dir)


def _record_before(folder: Path) -> dict[str, Any]:
    path = record_path(folder)
    return json.loads(path.read_text(encoding="utf-8")) if is_own(path) else {}


def _chosen_before(record: dict[str, Any]) -> Any:
    return record.get("selection", {}).get("chosen")


def _counts_differ(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether data are others, by what a run of version 0.1.0 has recorded of its own."""
    names = ("train_entities", "train_relations", "inference_entities", "valid_triples")
    return any(name in before and before[name] != now[name] for name in names)


def _folder_of_other_data(run: Path, trainer: Trainer) -> Path:
    """A folder in that of the run for results on data that are not its own."""
    datamodule: Any = trainer.datamodule  # type: ignore[attr-defined]
    name, number = f"on-{datamodule.data.name}", 1
    while (folder := run / (name if number == 1 else f"{name}-{number}")).exists():
        if _record_before(folder).get("keys") == datamodule.keys:
            break
        number += 1
    return folder


def _best(trainer: Trainer) -> BestCheckpoint | None:
    """The callback that kept the best weights, if there is one."""
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, BestCheckpoint) and callback.best_model_path:
            return callback
    return None


def _will_validate(trainer: Trainer) -> bool:
    """Whether an epoch that still comes is validated, as far as its end can be foreseen."""
    every = trainer.check_val_every_n_epoch
    if not trainer.enable_validation:
        return False
    if every is None or trainer.val_check_interval not in (None, 1.0):
        return True
    epochs = math.inf if trainer.max_epochs in (None, -1) else trainer.max_epochs
    if trainer.max_steps >= 0:
        steps = math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
        left = (trainer.max_steps - trainer.global_step) // steps
        epochs = min(epochs, trainer.current_epoch + left)
    return epochs // every > trainer.current_epoch // every


def _why_stopped(trainer: Trainer) -> str:
    for callback in trainer.early_stopping_callbacks:
        if callback.stopped_epoch:
            return f"validation had not improved for {callback.patience} checks"
    return "all epochs were run"


def _log_to_wandb(logger: WandbLogger, record: dict[str, Any], folder: Path) -> None:
    curve = record["selection"]["curve"]
    if curve:
        columns = list(curve[0])
        rows = [[row[c] for c in columns] for row in curve]
        logger.log_table("validation/by_iteration", columns=columns, data=rows)
    if "test" in record:
        columns = ["method", "protocol", "metric", "value"]
        rows = [
            [entry["method"], entry["protocol"], name, float(value)]
            for entry in record["test"]
            for name, value in entry["metrics"].items()
        ]
        logger.log_table("test/results", columns=columns, data=rows)
    figure = folder / "hits_by_iteration.png"
    if figure.is_file():
        logger.log_image("validation/hits_by_iteration", [str(figure)])


def _model_to_wandb(logger: WandbLogger, folder: Path) -> None:
    # Not by log_model=True, which Lightning refuses offline.
    from wandb import Artifact

    # W&B's names have no other characters.
    artifact = Artifact(re.sub(r"[^\w.-]", "-", f"model-{folder.name}", flags=re.ASCII), "model")
    # Read where it lies: a copy would stay in the run folder.
    artifact.add_dir(str(folder / "model"), policy="immutable")
    logger.experiment.log_artifact(artifact)
