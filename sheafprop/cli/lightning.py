"""``fit``, ``validate`` and ``test``: LightningCLI over our module, data and run folders."""

import inspect
import logging
import os
import secrets
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import WandbLogger

from sheafprop.cli.run_folder import RunFolder
from sheafprop.errors import DataError
from sheafprop.io import remove_temporaries, write_text
from sheafprop.report.run_report_callback import RunReport
from sheafprop.training import InductiveDataModule, SheafCompletion
from sheafprop.training.precision import check_precision

#: Where W&B puts runs and staged artifacts; left alone where the user has set them.
_WANDB_FOLDERS = [
    name for name in ("WANDB_DIR", "WANDB_DATA_DIR", "WANDB_CACHE_DIR") if name not in os.environ
]

#: What loggers need besides Lightning, and what of it is used.
_PACKAGES = {
    "WandbLogger": ("wandb", ("init", "login", "finish", "run", "Artifact", "Image", "Table")),
    "TensorBoardLogger": ("tensorboard", ()),
}


def launch(
    verb: str,
    folder: RunFolder,
    config_hash: str,
    words: Sequence[str],
    callbacks: Sequence[Callback] = (),
) -> None:
    """Runs one of Lightning's verbs on a configuration that is complete."""
    _hush()
    done = False
    try:
        SheafCLI(folder, config_hash, args=[verb, *words], callbacks=callbacks)
        done = True
    except SystemExit as stop:
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
    ):
        self.folder, self.config_hash = folder, config_hash
        self.online = False
        super().__init__(
            SheafCompletion,
            InductiveDataModule,
            args=args,
            seed_everything_default=0,
            trainer_defaults={"callbacks": list(callbacks)},
            save_config_callback=_SaveRunConfig,
            save_config_kwargs={"config_filename": "run.yaml", "overwrite": True},
            auto_configure_optimizers=False,
            # Errors come back to us, to be told in a line instead of after pages of usage.
            parser_kwargs={
                "prog": "sheafprop",
                "exit_on_error": False,
                **{verb: {"exit_on_error": False} for verb in ("fit", "validate", "test")},
            },
        )

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        # The base class warns of what is done here on purpose: our parser has read sys.argv.
        self.config = parser.parse_args(args)

    def _parse_ckpt_path(self) -> None:
        """The run folder holds the configuration; what a checkpoint stores must not override it."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_lightning_class_args(RunReport, "report")
        parser.link_arguments("seed_everything", "model.seed", compute_fn=_as_seed)

    def before_instantiate_classes(self) -> None:
        # Every option is known to be understood by now, so the run may have its folder.
        self.folder.make()
        if self.config.subcommand == "fit":
            self.folder.lock()
            for place in (self.folder.path, self.folder.path / "checkpoints"):
                remove_temporaries(place)  # of this run, where it was killed while it wrote
        _keep_wandb_inside(self.folder.path)
        config = self.config[self.config.subcommand]
        config.trainer.default_root_dir = str(self.folder.path)
        config.report.config_hash = self.config_hash
        root = config.data.root
        if root is not None:
            config.data.root = os.path.abspath(os.path.expanduser(root))
        if config.trainer.enable_progress_bar is None and not sys.stdout.isatty():
            config.trainer.enable_progress_bar = False
        config.trainer.logger = self._loggers(config.trainer.logger)

    def _check_and_load(self, *_: Any) -> None:
        """Before the trainer starts its loggers: what cannot be used leaves no run behind."""
        check_precision(self.trainer)
        _ = self.datamodule.data
        for logger in self.trainer.loggers if self.online else ():
            if isinstance(logger, WandbLogger):
                _start(logger)

    before_fit = before_validate = before_test = _check_and_load

    def _loggers(self, given: Any) -> Any:
        """The loggers with their folders inside the run folder, W&B only where it is installed."""
        kept = []
        for logger in given if isinstance(given, list) else [given]:
            arguments = getattr(logger, "init_args", None)
            kind = getattr(logger, "class_path", "").rpartition(".")[2]
            is_wandb = kind == "WandbLogger"
            if is_wandb and os.environ.get("WANDB_MODE") == "disabled":
                continue
            if kind in _PACKAGES and (reason := _unusable(*_PACKAGES[kind])):
                print(f"{reason}: this run is logged without it", file=sys.stderr)
                continue
            if arguments is not None and "save_dir" in arguments:
                arguments.save_dir = str(self.folder.path / (arguments.save_dir or "."))
            if is_wandb and arguments is not None:
                # One W&B run for fit and test: the stored configuration carries the id on.
                place = self.folder.path
                arguments.name = arguments.name or f"{place.parent.name}/{place.name}"
                arguments.id = arguments.id or f"{self.folder.path.name}-{secrets.token_hex(4)}"
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
        return kept if isinstance(given, list) else (kept[0] if kept else False)


class _SaveRunConfig(SaveConfigCallback):
    """Saves the full configuration as ``run.yaml`` when a run is trained."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and trainer.is_global_zero:
            folder = Path(trainer.default_root_dir)
            # In one step: a run that goes on and is killed again must keep its configuration.
            text = self.parser.dump(self.config, skip_none=False)
            write_text(folder / self.config_filename, text)
            for logger in trainer.loggers:
                logger.log_hyperparams(yaml.safe_load(text))


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
    for name in _WANDB_FOLDERS:
        os.environ[name] = str(folder)


def _hush() -> None:
    """Leaves out what Lightning says about itself, and what follows from how a run is laid out."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (
        ".*LeafSpec.* is deprecated",
        ".*does not have many workers",
        "Checkpoint directory .* exists and is not empty",
        "Total length of .* across ranks is zero",
    ):
        warnings.filterwarnings("ignore", message=message)
