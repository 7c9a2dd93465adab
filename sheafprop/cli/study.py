"""The trials of ``sheafprop tune``: each is a run of ``fit``, all in one Optuna study."""

import functools
import gc
import json
import sqlite3
import time
from pathlib import Path
from typing import Any, Literal

import optuna
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.pool import NullPool

from sheafprop.cli.lightning import launch
from sheafprop.cli.run_folder import RunFolder
from sheafprop.cli.search_space import SearchSpace
from sheafprop.cli.training_commands import config_digest
from sheafprop.config_files import dump_yaml, merge, nest
from sheafprop.errors import DataError, DivergenceError
from sheafprop.files import write_json, write_text
from sheafprop.training import InductiveDataModule
from sheafprop.training.callbacks import choose_monitor

_STUDY = "tune"
_NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "alloc_cpu")
_OVER = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


class Study:
    """An Optuna study in a run folder, which goes on from where it stopped.

    A trial that diverges or runs out of memory is marked failed with the reason, and the next one
    begins. A trial that was interrupted is marked failed and its values are tried again. What
    counts is the validation value alone.

    Args:
        folder (Path): The run folder; it holds ``study.db``, ``study.json``, ``best.yaml`` and the
            runs of the trials.
        config (dict): The configuration that the trials share.
        space (SearchSpace): What differs between them.
        pruner (str): ``"median"``, ``"halving"`` or ``"none"``.
    """

    def __init__(
        self, folder: Path, config: dict[str, Any], space: SearchSpace, *, pruner: str = "median"
    ) -> None:
        self.folder, self.config, self.space = folder, config, space
        #: What the next trial prints: notes concern all trials, so the first one prints them.
        self._prints: Literal["notes", "nothing"] = "notes"
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.study = optuna.create_study(
            study_name=_STUDY,
            storage=_storage(folder / "study.db"),
            direction="maximize",
            load_if_exists=True,
        )
        for trial in self.study.get_trials(states=(TrialState.RUNNING,)):
            self.study.enqueue_trial(trial.params)
            self.study.tell(trial.number, state=TrialState.FAIL)
        seed = int(config.get("seed_everything") or 0)
        # A study that goes on must not draw what it drew before.
        self.study.sampler = optuna.samplers.TPESampler(seed=seed + len(self.study.trials))
        self.study.pruner = {
            "median": optuna.pruners.MedianPruner(n_startup_trials=4),
            "halving": optuna.pruners.SuccessiveHalvingPruner(),
            "none": optuna.pruners.NopPruner(),
        }[pruner]

    def run(self, num_trials: int, keys: dict[str, str]) -> None:
        """Runs trials until there are that many, finished, pruned and failed ones together.

        Interrupted ones do not count.

        Args:
            num_trials: How many.
            keys: Those of the data.

        Raises:
            DataError: If none of them finished, or the data are no longer those of earlier ones.
        """
        if self.study.user_attrs.get("data", keys) != keys:
            raise DataError(f"the data are not those of the trials in {self.folder}: restore them")
        self.study.set_user_attr("data", keys)
        if self._count():  # the last call may have been killed before it wrote of its last trial
            self._write()
        while self._count() < num_trials:
            self._run_trial(self.study.ask())
            self._write()
        if not self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            reasons = {self._record(trial).get("reason", "pruned") for trial in self.study.trials}
            raise DataError(f"no trial finished: {'; '.join(sorted(reasons))}")

    def _count(self) -> int:
        over = self.study.get_trials(deepcopy=False, states=_OVER)
        return sum(not _is_interrupted(trial) for trial in over)

    def _run_trial(self, trial: optuna.Trial) -> None:
        values = self.space.suggest(trial)
        config = self._with(values)
        place = RunFolder(self.folder / "trials" / f"{trial.number:04d}", new=True)
        watch, begin = _Watch(trial), time.perf_counter()
        state, value, reason, stop = TrialState.FAIL, None, None, None
        try:
            words = ["--config", dump_yaml(config)]
            prints, self._prints = self._prints, "nothing"
            launch("fit", place, config_digest(config), words, [watch], prints=prints)
            value, metric = _value(place.path, watch)
            trial.set_user_attr("metric", metric)
            state = TrialState.COMPLETE
        except optuna.TrialPruned:
            state = TrialState.PRUNED
        except Exception as error:
            without_memory = _is_out_of_memory(error)
            stop = None if without_memory or isinstance(error, DivergenceError) else error
            reason = f"out of memory: {error}" if without_memory else str(error)
            if stop is not None:
                reason = f"{type(error).__name__}: {error}"
            trial.set_user_attr("reason", reason)
        # Who interrupts the study leaves a running trial, which is closed when it goes on.
        trial.set_user_attr("seconds", time.perf_counter() - begin)
        trial.set_user_attr("run", place.path.name)
        self.study.tell(trial, value, state=state)
        if stop is not None:
            raise stop
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        shown = describe_value(trial, value) if value is not None else reason or "pruned"
        options = ", ".join(f"{option}={value}" for option, value in values.items())
        print(f"trial {trial.number}: {shown} ({options})", flush=True)

    def _with(self, values: dict[str, Any]) -> dict[str, Any]:
        """The configuration with the values of a trial; its loss arguments go with its own loss."""
        config, change = self.config, nest(values)
        model = config.get("model") or {}
        own = model.get("loss", "cross_entropy")
        if change.get("model", {}).get("loss", own) != own:
            kept = {key: value for key, value in model.items() if key != "loss_args"}
            config = config | {"model": kept}
        return merge(config, change)

    def _write(self) -> None:
        """All trials as JSON, and the best configuration as YAML."""
        trials = self.study.get_trials(deepcopy=False, states=_OVER)
        write_json(self.folder / "study.json", [self._record(trial) for trial in trials])
        if any(trial.state == TrialState.COMPLETE for trial in trials):
            best = self._with(self._values(self.study.best_trial))
            write_text(self.folder / "best.yaml", dump_yaml(best))

    def _record(self, trial: FrozenTrial) -> dict[str, Any]:
        reason = {"reason": "interrupted"} if _is_interrupted(trial) else {}
        return {
            "number": trial.number,
            "state": trial.state.name.lower(),
            "value": trial.value,
            "values": self._values(trial),
            "curve": {str(epoch): value for epoch, value in trial.intermediate_values.items()},
            **reason,
            **trial.user_attrs,
        }

    def _values(self, trial: FrozenTrial) -> dict[str, Any]:
        if trial.params.keys() != self.space.options.keys():
            return {}  # it was interrupted before it had them
        return self.space.suggest(optuna.trial.FixedTrial(trial.params))  # type: ignore[arg-type]


def read_data(config: dict[str, Any]) -> InductiveDataModule:
    """The data of a study, whose trials are compared on its validation triples.

    Raises:
        DataError: If there are no validation triples.
    """
    module = InductiveDataModule(**config.get("data") or {})
    if choose_monitor(module.data)[1] != "max":
        raise DataError(
            "'sheafprop tune' chooses on validation triples, and there are none: neither of the "
            "inference graph nor of the training graph"
        )
    return module


def _storage(file: Path) -> optuna.storages.RDBStorage:
    """Opened by its path: in a URL, characters of the folder's name would mean something."""
    connect = functools.partial(sqlite3.connect, file, timeout=60)
    return optuna.storages.RDBStorage(
        "sqlite://", engine_kwargs={"creator": connect, "poolclass": NullPool}
    )


class _Watch(Callback):
    """Reports the validation curve to the study, which may stop the trial."""

    def __init__(self, trial: optuna.Trial) -> None:
        self.trial = trial
        self.best: float | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.monitor = choose_monitor(trainer.datamodule.data)[0]  # type: ignore[attr-defined]

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        value = trainer.callback_metrics.get(self.monitor)
        if value is None or trainer.sanity_checking:
            return
        self.best = max(float(value), self.best if self.best is not None else float("-inf"))
        self.trial.report(float(value), trainer.current_epoch)
        if self.trial.should_prune():
            raise optuna.TrialPruned


def describe_value(trial: optuna.Trial | FrozenTrial, value: float) -> str:
    """The validation value of a finished trial, with the name of its metric."""
    return f"{trial.user_attrs.get('metric', '')} {value:.4f}".lstrip()


def _value(run: Path, watch: _Watch) -> tuple[float, str]:
    """The validation value of the chosen propagation, else of the model alone, and its metric."""
    selection = json.loads((run / "metrics.json").read_text(encoding="utf-8"))["selection"]
    values = [row[selection["metric"]] for row in selection["curve"]]
    if values:
        return max(values), selection["metric"]
    if watch.best is None:
        raise DataError("no epoch was validated: lower trainer.check_val_every_n_epoch")
    return watch.best, watch.monitor


def _is_interrupted(trial: FrozenTrial) -> bool:
    return trial.state == TrialState.FAIL and "reason" not in trial.user_attrs


def _is_out_of_memory(error: Exception) -> bool:
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(sign in text for sign in _NO_MEMORY)
