import json
import re
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger

from sheafprop.data.label_checks import count_noun
from sheafprop.io import save_model_folder, write_json
from sheafprop.report.group import group_report
from sheafprop.report.hardware import describe_hardware, peak_bytes
from sheafprop.report.run_report import write_report
from sheafprop.training import BestCheckpoint, SheafCompletion
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

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        data = trainer.datamodule.data  # type: ignore[attr-defined]
        print(data.summary())
        _, _, sentence = choose_monitor(data)
        print(f"the best epoch is chosen by {sentence}")

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        assert isinstance(pl_module, SheafCompletion)
        last_epoch = pl_module.current_epoch
        best_epoch = _load_best(trainer, pl_module)
        with torch.no_grad():
            pl_module.choose_propagation()
        monitor, _, sentence = choose_monitor(pl_module.data)
        training = {
            "epochs": last_epoch,
            "best_epoch": best_epoch,
            "monitor": monitor,
            "chosen_by": sentence,
            "stopped": _why_stopped(trainer),
            "seconds": pl_module.seconds.get("train", 0.0),
        }
        record = self._record(trainer, pl_module, {"training": training})
        self._write(trainer, pl_module, record)
        self._save_model(trainer, pl_module, record)
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                _model_to_wandb(logger, _folder(trainer))
        print(_chosen(pl_module))
        print(f"model: {_folder(trainer) / 'model'}")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        assert isinstance(pl_module, SheafCompletion)
        found = {"test": pl_module.results, "protocols": pl_module.protocol_boxes}
        record = self._record(trainer, pl_module, found)
        self._write(trainer, pl_module, record)
        for box in pl_module.protocol_boxes.values():
            print(box + "\n")
        print(group_report(_folder(trainer).parent))
        print(f"\nreport: {_folder(trainer).parent / 'report.md'}")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn != "validate" or not trainer.is_global_zero:
            return
        assert isinstance(pl_module, SheafCompletion)
        print(_chosen(pl_module))

    def _record(
        self, trainer: Trainer, module: SheafCompletion, news: dict[str, Any]
    ) -> dict[str, Any]:
        folder, data = _folder(trainer), module.data
        file = folder / "metrics.json"
        before = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        assert module.selection is not None
        return before | {
            "format": 1,
            "run": before.get("run")
            or {
                "name": folder.name,
                "dataset": data.name,
                "mode": data.mode,
                "model": type(module.model).__name__,
                "seed": module.settings["seed"],
                "config_hash": self.config_hash,
                "version": __version__,
            },
            "data": data.report,
            "selection": module.selection.to_dict(),
            "seconds": before.get("seconds", {}) | module.seconds,
            "peak_bytes": max(before.get("peak_bytes", 0), peak_bytes()),
            "hardware": describe_hardware(),
            **news,
        }

    def _write(self, trainer: Trainer, module: SheafCompletion, record: dict[str, Any]) -> None:
        folder = _folder(trainer)
        write_json(folder / "metrics.json", record)
        write_report(folder, [record])
        for logger in trainer.loggers:
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


def _load_best(trainer: Trainer, module: SheafCompletion) -> int:
    """Puts the best weights back and returns how many epochs had been trained by then."""
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, BestCheckpoint) and callback.best_model_path:
            stored = torch.load(callback.best_model_path, weights_only=True, map_location="cpu")
            module.load_state_dict(stored["state_dict"])
            return min(int(stored["epoch"]) + 1, module.current_epoch)
    warnings.warn("no checkpoint was kept, so the weights of the last epoch are used")
    return module.current_epoch


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
    artifact.add_dir(str(folder / "model"))
    logger.experiment.log_artifact(artifact)
