import json
import math
import re
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger

from sheafprop.checks import count_noun
from sheafprop.files import as_json, written_after
from sheafprop.hardware import describe_hardware, peak_bytes
from sheafprop.report.group import group_report, record_path
from sheafprop.report.own_files import is_own, own_path
from sheafprop.report.records import describe_proximity
from sheafprop.report.run_report import write_report
from sheafprop.report.tables import terminal_table
from sheafprop.training import BestCheckpoint, SheafCompletion
from sheafprop.training.callbacks import choose_monitor
from sheafprop.version import __version__


class RunReport(Callback):
    """Reports the results of a run: metrics, report and figure, on the terminal and to W&B.

    After ``fit`` it reports what :class:`~sheafprop.training.SaveModel` chose and saved, which has
    to stand before it; after ``test`` it adds the test figures and renews the group's report.

    Args:
        config_hash: Hash of the run's configuration, for the record.
    """

    def __init__(self, config_hash: str = ""):
        self.config_hash = config_hash
        #: Whether nothing is printed, as in a search of many runs.
        self.quiet = False
        self._trained = False

    def _print(self, text: str) -> None:
        if not self.quiet:
            print(text)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._trained = False
        if trainer.is_global_zero:
            self._print(trainer.datamodule.data.summary())  # type: ignore[attr-defined]

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        first, self._trained = not self._trained, True
        if not trainer.is_global_zero or not first:
            return
        if trainer.current_epoch:
            end = f" of {trainer.max_epochs}" if (trainer.max_epochs or -1) > 0 else ""
            self._print(f"resuming at epoch {trainer.current_epoch + 1}{end}")
        monitor, _, sentence = choose_monitor(pl_module.data)  # type: ignore[arg-type]
        kept = [c for c in trainer.checkpoint_callbacks if isinstance(c, BestCheckpoint)]
        if not kept:
            self._print("without a BestCheckpoint callback, the last weights are used")
        elif monitor.startswith("val/") and not _will_validate(trainer):
            best = any(callback.best_model_score is not None for callback in kept)
            used = "the best weights so far" if best else "the weights of the last epoch"
            more = "further " if best else ""
            self._print(f"no {more}epoch will be validated: {used} are used")
        else:
            self._print(f"the best epoch is selected by {sentence}")

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, SheafCompletion)
        if not trainer.is_global_zero:
            return
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            self._print("fast_dev_run finished without an error; it keeps no files")
            return
        assert pl_module.selection is not None
        folder = Path(trainer.default_root_dir)
        before = _read_record_of(folder)
        training = pl_module.training_record
        if not self._trained and training is not None:
            line = f"{training['epochs']} epochs were run before, and none was added"
            self._print(f"{line}: {training['stopped']}")
        chosen = pl_module.selection.to_dict()
        was = before.get("selection", {})
        if self._trained or any(was.get(name) != chosen[name] for name in ("chosen", "proximity")):
            # What was ranked before belongs to other weights now, or to another choice.
            for name in ("run", "test", "protocols", "seconds"):
                before.pop(name, None)
        record = self._record(trainer, pl_module, before)
        self._write(trainer, record, folder)
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                _model_to_wandb(logger, folder)
        self._print(_describe_choice(pl_module))
        self._print(f"model: {folder / 'model'}")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        assert isinstance(pl_module, SheafCompletion)
        folder = Path(trainer.default_root_dir)
        before = _read_record_of(folder)
        other = pl_module.on_other_data
        if other is None:
            other = _counts_differ(before.get("data", {}), pl_module.data.report)
        found = {"test": pl_module.results, "protocols": pl_module.protocol_boxes}
        if other:
            run, folder = folder, _folder_of_other_data(folder, trainer)
            record = self._record(trainer, pl_module, before) | found
            record["run"] = record["run"] | {
                "dataset": pl_module.data.name,
                "mode": pl_module.data.mode,
            }
            self._write(trainer, record, folder, log=False)
            table = terminal_table([record])
            more = f"these are results on other data; those of {run} stay as they are\n"
        else:
            record = self._record(trainer, pl_module, before) | found
            self._write(trainer, record, folder)
            table, more, folder = group_report(folder.parent), "", folder.parent
        boxes = pl_module.protocol_boxes.values()
        print("\n\n".join([table, *boxes, f"{more}report: {folder / 'report.md'}"]))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn != "validate" or not trainer.is_global_zero:
            return
        assert isinstance(pl_module, SheafCompletion)
        print(_describe_choice(pl_module))

    def _record(
        self, trainer: Trainer, module: SheafCompletion, before: dict[str, Any]
    ) -> dict[str, Any]:
        data = module.data
        run = before.get("run") or {
            "dataset": data.name,
            "mode": data.mode,
            "model": type(module.model).__name__,
            "seed": module.hparams["seed"],
            "config_hash": self.config_hash,
            "version": __version__,
        }
        assert module.selection is not None
        return before | {
            "format": 1,
            # The name also where the folder was moved or copied.
            "run": run | {"name": Path(trainer.default_root_dir).name},
            "keys": trainer.datamodule.keys,  # type: ignore[attr-defined]
            "data": data.report,
            "selection": module.selection.to_dict(),
            "seconds": before.get("seconds", {}) | module.seconds,
            "peak_bytes": max(before.get("peak_bytes", 0), peak_bytes()),
            "hardware": describe_hardware(),
            # Loaded weights without one are those of the record; those that no finished run chose
            # may have replaced the weights that an earlier end of the run recorded.
            **({"training": module.training_record} if module.training_record else {}),
        }

    def _write(
        self, trainer: Trainer, record: dict[str, Any], folder: Path, *, log: bool = True
    ) -> None:
        # Both or neither: the record comes last, as its results say that a test is done.
        with written_after(own_path(folder, "metrics.json"), as_json(record)):
            write_report(folder, [record])
        for logger in trainer.loggers if log else ():
            if isinstance(logger, WandbLogger):
                _log_to_wandb(logger, record, folder)


def _describe_choice(module: SheafCompletion) -> str:
    selection = module.selection
    if selection is None or selection.value is None:
        settings = module.search.settings
        return (
            "propagation: there are no validation triples, and the training graph is too small to "
            "hold some out, so the defaults are used "
            f"({count_noun(settings.iterations, 'iteration')})"
        )
    chosen = selection.settings
    steps = count_noun(chosen.iterations, "iteration")
    line = (
        f"propagation: {steps} from the {chosen.start} start with step size {chosen.step_size}, "
        f"selected on {selection.describe_triples()} among "
        f"{count_noun(selection.tried, 'configuration')} ({selection.metric} {selection.value:.3f})"
    )
    found = selection.proximity
    of_proximity = None if found is None else describe_proximity(found, selection.metric)
    return line if of_proximity is None else f"{line}\n{of_proximity}"


def _read_record_of(folder: Path) -> dict[str, Any]:
    path = record_path(folder)
    return json.loads(path.read_text(encoding="utf-8")) if is_own(path) else {}


def _counts_differ(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether data are others, by what a run of version 0.1.0 has recorded of its own."""
    names = ("train_entities", "train_relations", "inference_entities", "valid_triples")
    return any(name in before and before[name] != now[name] for name in names)


def _folder_of_other_data(run: Path, trainer: Trainer) -> Path:
    """A folder in that of the run for results on data that are not its own."""
    datamodule: Any = trainer.datamodule  # type: ignore[attr-defined]
    name, number = f"on-{datamodule.data.name}", 1
    while (folder := run / (name if number == 1 else f"{name}-{number}")).exists():
        if _read_record_of(folder).get("keys") == datamodule.keys:
            break
        number += 1
    return folder


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


def _log_to_wandb(logger: WandbLogger, record: dict[str, Any], folder: Path) -> None:
    curve = record["selection"]["curve"]
    of_proximity = (record["selection"].get("proximity") or {}).get("curve")
    for name, points in (("iteration", curve), ("proximity", of_proximity)):
        if points:
            columns = list(dict.fromkeys(key for point in points for key in point))
            rows = [[point.get(c) for c in columns] for point in points]
            logger.log_table(f"validation/by_{name}", columns=columns, data=rows)
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
