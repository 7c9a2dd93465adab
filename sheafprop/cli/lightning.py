"""``fit``, ``validate`` and ``test``: LightningCLI over our module, data and run folders.

Long because all that changes a configuration before Lightning is given it stands here.
"""

import inspect
import logging
import os
import re
import secrets
import shlex
import sys
import warnings
from argparse import ArgumentError
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal

import torch
import yaml
from jsonargparse import Namespace, namespace_to_dict
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import WandbLogger

from sheafprop.cli.command_parser import report
from sheafprop.cli.option_errors import describe_option_error, describe_value_error
from sheafprop.cli.run_folder import RunFolder, own_classes, read_run, trust
from sheafprop.config_files import DATA_PLACES, add_callbacks, resolve_place
from sheafprop.errors import DataError
from sheafprop.files import remove_temporaries, write_text
from sheafprop.pretrained.model_folder import check_model_target
from sheafprop.report.own_files import check_places
from sheafprop.report.run_report_callback import RunReport
from sheafprop.training import InductiveDataModule, SaveModel, SheafCompletion
from sheafprop.training.budget import TrainingLines, apply_budget
from sheafprop.training.checkpoint_state import (
    AFTER_TRAINING,
    check_checkpoint,
    check_length,
    check_schedule,
    check_trainer,
    choice_of_old_run,
    describe_unfinished_training,
    is_other_data,
    renumber_like,
)

#: Where W&B puts runs and staged artifacts; left alone where the user has set them.
_WANDB_FOLDERS = [
    name for name in ("WANDB_DIR", "WANDB_DATA_DIR", "WANDB_CACHE_DIR") if name not in os.environ
]

#: The strategy of a table that processes share.
_SHARDED = "sheafprop.training.ShardedTableStrategy"
#: What loggers need besides Lightning, and what of it is used.
_PACKAGES = {
    "WandbLogger": ("wandb", ("init", "login", "finish", "run", "Artifact", "Image", "Table")),
    "TensorBoardLogger": ("tensorboard", ()),
}


def launch(
    command: str,
    folder: RunFolder,
    config_hash: str,
    words: Sequence[str],
    callbacks: Sequence[Callback] = (),
    *,
    reselect: bool = False,
    replace_callbacks: bool = False,
    prints: Literal["all", "notes", "nothing"] = "all",
) -> None:
    """Runs one of Lightning's commands on a configuration that is complete.

    Args:
        command: ``fit``, ``validate`` or ``test``.
        folder: The run folder.
        config_hash: Hash of the configuration, for the record.
        words: The options.
        callbacks: Further callbacks.
        reselect: Whether ``test`` repeats the search on validation.
        replace_callbacks: Whether the given callbacks replace those of the configuration.
        prints: ``"notes"`` leaves out the data, the choice and the paths of the run, and
            ``"nothing"`` also the notes for the user, as in a search of many runs.
    """
    _silence_lightning()
    done = False
    try:
        cli = SheafCLI(
            folder,
            config_hash,
            args=[command, *words],
            callbacks=callbacks,
            reselect=reselect,
            replace_callbacks=replace_callbacks,
            prints=prints,
        )
        done = not _is_fast(cli.trainer)  # which leaves nothing
        folder.finish()
    except SystemExit as stop:
        if command == "fit" and any(folder.path.glob("checkpoints/*.ckpt")):
            resume = shlex.join(["sheafprop", "fit", "--resume", str(folder.path)])
            print(f"'{resume}' resumes this run", file=sys.stderr)
        # Lightning answers an interruption by an exit as if the run had failed.
        if isinstance(stop.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from stop
        raise
    finally:
        # A run that stays open would be taken up by the next command of this process.
        if getattr(sys.modules.get("wandb"), "run", None) is not None:
            sys.modules["wandb"].finish()
        if not done:
            folder.discard()
        folder.release()


class SheafCLI(LightningCLI):
    """LightningCLI with our module and data, everything written into one run folder."""

    def __init__(
        self,
        folder: RunFolder,
        config_hash: str,
        *,
        args: list[str],
        callbacks: Sequence[Callback] = (),
        reselect: bool = False,
        replace_callbacks: bool = False,
        prints: Literal["all", "notes", "nothing"] = "all",
    ):
        self.folder, self.config_hash = folder, config_hash
        self.online = self.writes_lines = False
        #: What to print once nothing is refused any more.
        self.notes = _Notes(prints)
        self.reselect, self.replace_callbacks = reselect, replace_callbacks
        super().__init__(
            SheafCompletion,
            InductiveDataModule,
            args=args,
            seed_everything_default=0,
            trainer_defaults={"callbacks": list(callbacks)},
            save_config_callback=_SaveRunConfig,
            save_config_kwargs={"config_filename": "run.yaml", "overwrite": True},
            auto_configure_optimizers=False,
            # Errors come back to us, for a message of one line instead of after pages of usage.
            parser_kwargs={
                "prog": "sheafprop",
                "exit_on_error": False,
                **{name: {"exit_on_error": False} for name in ("fit", "validate", "test")},
            },
        )

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        # The base class warns of what is done here on purpose: our parser has read sys.argv.
        try:
            self.config = parser.parse_args(args)
        except ArgumentError as error:
            text = describe_option_error(str(error), self._parser(args[0]))
            raise DataError(text) from error

    def _parse_ckpt_path(self) -> None:
        """The run folder holds the configuration; what a checkpoint stores must not override it."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_lightning_class_args(RunReport, "report")
        parser.link_arguments("seed_everything", "model.seed", compute_fn=_as_seed)

    def instantiate_classes(self) -> None:
        build = super().instantiate_classes
        try:
            if self.folder.ranks is None:
                build()
            else:
                self.folder.ranks.run_together(build)
        except ValueError as error:
            if (text := describe_value_error(str(error))) == str(error):
                raise
            raise DataError(text) from error

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        trainer = super().instantiate_trainer(**kwargs)
        # Before the report of what it chose.
        lines = [TrainingLines()] if self.writes_lines else []
        trainer.callbacks[:0] = [self.notes, SaveModel(), *lines]  # type: ignore[attr-defined]
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, RunReport):
                callback.quiet = self.notes.prints != "all"
        return trainer

    def before_instantiate_classes(self) -> None:
        # Every option is known to be understood by now, so the run may have its folder.
        if self.folder.make():
            self.notes.output.append(f"run folder: {self.folder.path}")
        if self.config.subcommand == "fit":
            self.folder.lock()
            if self.folder.ranks is None or self.folder.ranks.is_first:
                for place in (self.folder.path, self.folder.path / "checkpoints"):
                    remove_temporaries(place)  # of this run, where it was killed while it wrote
        _keep_wandb_inside(self.folder.path)
        config = self.config[self.config.subcommand]
        config.trainer.default_root_dir = str(self.folder.path)
        self._share(config)
        config.report.config_hash = self.config_hash
        for name in DATA_PLACES:
            setattr(config.data, name, resolve_place(name, getattr(config.data, name)))
        if config.trainer.enable_progress_bar is None and not sys.stdout.isatty():
            config.trainer.enable_progress_bar, self.writes_lines = False, True
        config.trainer.logger = self._loggers(config.trainer.logger)
        if self.config.subcommand == "fit":
            self._complete_callbacks(config)

    def _share(self, config: Any) -> None:
        """Trains with as many processes as torchrun has started; a shared table by its strategy."""
        trainer, ranks = config.trainer, self.folder.ranks
        strategy = trainer.strategy
        given = getattr(strategy, "class_path", strategy)
        if ranks is not None:
            trainer.devices = int(os.environ["LOCAL_WORLD_SIZE"])
            trainer.num_nodes = ranks.size // trainer.devices
            if given in ("auto", _SHARDED):
                strategy = given = "ddp"
        elif given == _SHARDED:  # of a run that goes on without torchrun
            strategy, trainer.devices, trainer.num_nodes = "auto", 1, 1
        if given == "ddp" and config.model.table == "sharded":
            strategy = Namespace(class_path=_SHARDED)
        trainer.strategy = strategy

    def _complete_callbacks(self, config: Any) -> None:
        """Adds the callback that every run needs, unless they were to be replaced."""
        given = config.trainer.callbacks or []
        given = list(given) if isinstance(given, list) else [given]
        if not self.replace_callbacks:
            best: Any = Namespace(class_path="sheafprop.training.BestCheckpoint")
            given = add_callbacks([best], given)
        config.trainer.callbacks = given
        if foreign := own_classes(namespace_to_dict(config)):
            self.notes.output.append(
                f"this run has own classes ({', '.join(foreign)}): 'test', 'validate' and 'fit "
                f"--resume' import them only with {trust(foreign)}, from an installed package or a "
                "folder of PYTHONPATH"
            )

    def _check_and_load(self, *_: Any) -> None:
        """Before the trainer starts its loggers: what cannot be used changes no file."""
        ranks = self.folder.ranks
        if ranks is None:
            self._check()
            return
        ranks.run_together(self._check)
        ranks.compare("data and options", self.datamodule.keys, self.model.hparams)

    def _check(self) -> None:
        check_trainer(self.trainer)
        _ = self.datamodule.data
        apply_budget(self.trainer, self.datamodule)  # the end that is checked below
        self.model.reselect = self.reselect
        if path := self.config[self.config.subcommand].get("ckpt_path"):
            self._check_checkpoint(Path(path))
        elif self.config.subcommand == "fit":
            check_length(self.trainer)
        if self.config.subcommand != "validate":
            check_places(self.folder.path)
        if self.config.subcommand == "test":
            check_places(self.folder.path.parent)
        if self.config.subcommand == "fit":
            check_model_target(self.folder.path / "model", overwrite=True)
        for logger in self.trainer.loggers:
            if isinstance(logger, WandbLogger):
                # Lightning hands it on unset, and W&B complains of it whatever it is.
                if logger._wandb_init.get("anonymous", "") is None:
                    del logger._wandb_init["anonymous"]
                if self.online:
                    _start(logger)

    before_fit = before_validate = before_test = _check_and_load

    def _check_checkpoint(self, path: Path) -> None:
        """Refuses what does not fit the run, with its files as they are."""
        try:
            checkpoint = torch.load(path, weights_only=True, mmap=True, map_location="cpu")
        except (RuntimeError, EOFError, KeyError, UnpicklingError) as error:
            reason = "it was cut off, or is none" if "mmap" in str(error) else error
            raise DataError(f"{path} is not a checkpoint that can be read ({reason})") from error
        resume, keys = self.config.subcommand == "fit", self.datamodule.keys
        if resume and _is_fast(self.trainer):
            raise DataError("trainer.fast_dev_run tries a new run, and does not go on with one")
        if resume:
            now = self._parser("fit").dump(self.config.fit, skip_none=False)
            check_schedule(read_run(self.folder.path)["model"], yaml.safe_load(now)["model"])
        renumber_like(checkpoint, self.datamodule.data)
        check_checkpoint(
            self.model.hparams,
            checkpoint,
            self.datamodule,
            resume=resume,
            max_epochs=self.trainer.max_epochs if resume else None,
            max_steps=self.trainer.max_steps if resume else -1,
        )
        whole = (self.folder.path / "model" / "manifest.json").is_file()
        if not resume and (not whole or describe_unfinished_training(checkpoint)):
            self.notes.messages.append(
                "this run was interrupted before its end, so its best weights so far are taken; "
                f"'sheafprop fit --resume {shlex.quote(str(self.folder.path))}' would resume it"
            )
        if is_other_data(checkpoint, keys):
            self.trainer.loggers = []  # which hold the curves of the run
        self.model.choice_of_run = choice_of_old_run(
            self.folder.path, checkpoint, self.model.hparams
        )

    def _loggers(self, given: Any) -> Any:
        """The loggers with their folders in the run folder; CSV if their packages are missing."""
        kept, missing = [], []
        for logger in given if isinstance(given, list) else [given]:
            arguments = getattr(logger, "init_args", None)
            kind = getattr(logger, "class_path", "").rpartition(".")[2]
            is_wandb = kind == "WandbLogger"
            if is_wandb and os.environ.get("WANDB_MODE") == "disabled":
                continue
            if kind in _PACKAGES and (reason := _unusable(*_PACKAGES[kind])):
                missing.append(reason)
                continue
            if arguments is not None and "save_dir" in arguments:
                arguments.save_dir = str(self.folder.path / (arguments.save_dir or "."))
            if is_wandb and arguments is not None:
                # One W&B run for fit and test: the stored configuration carries the id on.
                place = self.folder.path
                arguments.name = arguments.name or f"{place.parent.name}/{place.name}"
                # W&B's ids have no other characters, and not many of them.
                safe = re.sub(r"[^\w.-]", "-", place.name, flags=re.ASCII)[:40]
                arguments.id = arguments.id or f"{safe}-{secrets.token_hex(4)}"
                # W&B's own switch wins over the file; Lightning sets its old name for offline.
                mode = os.environ.get("WANDB_MODE", "dryrun")
                if mode != "dryrun":
                    arguments.offline = mode == "offline"
                if arguments.offline:
                    os.environ.setdefault("WANDB_SILENT", "true")
                else:
                    self.online = True
                    _check_wandb_key()
            kept.append(logger)
        how = "without it" if kept else "to CSV"
        self.notes.messages += [f"{reason}: this run is logged {how}" for reason in missing]
        if missing and not kept:
            arguments = Namespace(save_dir=str(self.folder.path), name="csv")
            kept = [
                Namespace(class_path="lightning.pytorch.loggers.CSVLogger", init_args=arguments)
            ]
        return kept if isinstance(given, list) else (kept[0] if kept else False)


class _Notes(Callback):
    """Prints what was noted before a command could be refused, once it begins its work."""

    def __init__(self, prints: str) -> None:
        self.prints = prints
        self.output: list[str] = []
        self.messages: list[str] = []

    def _print(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for line in self.messages if self.prints != "nothing" else ():
            report(line)
        if trainer.is_global_zero and self.prints == "all":
            for line in self.output:
                print(line)
        self.output, self.messages = [], []

    on_fit_start = on_validation_start = on_test_start = _print


class _SaveRunConfig(SaveConfigCallback):
    """Saves the full configuration as ``run.yaml``, once what it says begins to be true."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """The base class would save here, before a checkpoint is restored."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero and not _is_fast(trainer):
            for logger in trainer.loggers:
                logger.log_hyperparams(yaml.safe_load(self._text()))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero and not _is_fast(trainer):
            # In one step: a run that goes on and is killed again must keep its configuration.
            write_text(Path(trainer.default_root_dir) / self.config_filename, self._text())

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Without a further epoch, only what comes after training may be other than before."""
        file = Path(trainer.default_root_dir) / self.config_filename
        if not trainer.is_global_zero or _is_fast(trainer) or not file.is_file():
            return
        stored, now = yaml.safe_load(file.read_text(encoding="utf-8")), yaml.safe_load(self._text())
        for name in AFTER_TRAINING:
            stored["model"][name] = now["model"][name]
        write_text(file, yaml.safe_dump(stored, sort_keys=False))

    def _text(self) -> str:
        return self.parser.dump(self.config, skip_none=False)


def _is_fast(trainer: Trainer) -> bool:
    """Whether a trainer only tries a few batches."""
    return bool(trainer.fast_dev_run)  # type: ignore[attr-defined]


def _unusable(package: str, used: Sequence[str]) -> str | None:
    """Why a package cannot be logged to, if it cannot."""
    if find_spec(package) is None:
        return f"{package} is not installed (pip install {package})"
    try:
        module = import_module(package)
    except Exception as error:
        return f"{package} cannot be imported ({type(error).__name__}: {error})"
    lacking = [name for name in used if not hasattr(module, name)]
    if lacking:
        version = getattr(module, "__version__", "of unknown version")
        return f"{package} {version} has no {lacking[0]} (pip install --upgrade {package})"
    return None


def _as_seed(value: int | bool | None) -> int:
    return int(value or 0)


def _check_wandb_key() -> None:
    """W&B would ask for a key, also where nobody is there to give one."""
    import wandb

    # Older releases cannot look for a key without asking for one, other than by their api.
    silent = "prompt" in inspect.signature(wandb.login).parameters
    known = getattr(getattr(wandb, "api", None), "api_key", None)
    if not (wandb.login(prompt=False, verify=False) if silent else known):
        raise DataError(
            "W&B needs a key to log online: set WANDB_API_KEY or run 'wandb login', or log offline "
            "with --config logger/wandb"
        )


def _start(logger: WandbLogger) -> None:
    """Starts an online run before the training does, as it may fail to."""
    try:
        _ = logger.experiment
    except Exception as error:
        raise DataError(
            f"W&B cannot be logged to online ({str(error).splitlines()[0]}): log offline with "
            "--config logger/wandb, and sync later"
        ) from error


def _keep_wandb_inside(folder: Path) -> None:
    # W&B keeps copies of tables until a run is synced: among its own files.
    places = {"WANDB_DATA_DIR": folder / "wandb", "WANDB_CACHE_DIR": folder / "wandb"}
    for name in _WANDB_FOLDERS:
        os.environ[name] = str(places.get(name, folder))


def _silence_lightning() -> None:
    """Silences what Lightning says about itself, and what follows from how a run is laid out."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (
        ".*LeafSpec.* is deprecated",
        ".*does not have many workers",
        "Checkpoint directory .* exists and is not empty",
        "Total length of .* across ranks is zero",
    ):
        warnings.filterwarnings("ignore", message=message)
