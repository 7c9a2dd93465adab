"""``fit``, ``validate`` and ``test``: LightningCLI over our module, data and run folders."""

import argparse
import hashlib
import json
import logging
import os
import secrets
import sys
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback

from sheafprop.cli.config_files import load_config, merge
from sheafprop.cli.run_folder import discard_without_checkpoint, new_run_folder
from sheafprop.errors import DataError
from sheafprop.report.run_report_callback import RunReport
from sheafprop.training import InductiveDataModule, SheafCompletion

#: Where the classes that a stored run names may come from; its YAML is not trusted with more.
_TRUSTED = ("sheafprop.", "lightning.pytorch.")
#: Names and folders, which are never taken for classes.
_PLAIN = {"name", "project", "id", "entity", "notes", "group", "save_dir", "default_root_dir"}
#: Where W&B puts runs and staged artifacts; left alone where the user has set them.
_WANDB_FOLDERS = [
    name for name in ("WANDB_DIR", "WANDB_DATA_DIR", "WANDB_CACHE_DIR") if name not in os.environ
]


def run(verb: str, words: Sequence[str]) -> int:
    """Runs one of Lightning's verbs."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", action="append", default=[])
    parser.add_argument("--run")
    parser.add_argument("--resume")
    parser.add_argument("--run.group", dest="group")
    parser.add_argument("--run.name", dest="name")
    # What the run folder is called after may also come as an option.
    for option in ("data.name", "data.root", "model.kge", "seed_everything"):
        parser.add_argument(f"--{option}", dest=option)
    own, rest = parser.parse_known_args(list(words))
    if "-h" in rest or "--help" in rest:
        _explain(verb)
        SheafCLI(Path("."), "", args=[verb, "--help"])
    if own.resume and verb != "fit":
        raise DataError(f"--resume goes with fit (got {verb})")
    finished = own.resume or own.run
    if finished and own.config:
        raise DataError("give --config for a new run, or the folder of a run there is, not both")
    if verb != "fit" and not own.run:
        raise DataError(f"'sheafprop {verb}' needs --run FOLDER, the folder of a finished fit")
    if verb == "fit" and own.run:
        raise DataError("fit makes its own run folder; to go on with one, give --resume FOLDER")
    if finished:
        folder = Path(finished).expanduser().absolute()
        config = _stored_config(folder)
        checkpoint = "last" if own.resume else "best"
        path = folder / "checkpoints" / f"{checkpoint}.ckpt"
        if not path.is_file():
            raise DataError(f"{folder} has no checkpoints/{checkpoint}.ckpt: did 'fit' finish?")
        if not own.resume and not (folder / "model" / "manifest.json").is_file():
            print(
                f"this run was interrupted before its end, so its best weights so far are taken; "
                f"'sheafprop fit --resume {finished}' would go on with it",
                file=sys.stderr,
            )
        given = {k: v for k, v in vars(own).items() if ("." in k or k == "seed_everything") and v}
        rest = ["--ckpt_path", str(path), *(f"--{k}={v}" for k, v in given.items()), *rest]
    else:
        if not own.config:
            raise DataError(
                "'sheafprop fit' needs --config FILE, for example "
                "configs/experiment/umls_rotate.yaml"
            )
        config = {}
        for name in own.config:
            config = merge(config, load_config(name))
        config = merge(config, _nested(vars(own)))
        place = config.pop("run", {})
        data, model = config.get("data", {}), config.get("model", {})
        source = data.get("name") or Path(os.path.abspath(data.get("root") or ".")).name
        folder = new_run_folder(
            own.group or place.get("group") or f"runs/{source}",
            own.name or place.get("name") or model.get("kge", "run"),
        )
        print(f"run folder: {folder}")
    hashed = {key: value for key, value in config.items() if key != "seed_everything"}
    text = json.dumps([hashed, sorted(rest)], sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()
    if verb != "fit":
        rest = ["--verbose", "false", *rest]
    _keep_wandb_inside(folder)
    _hush()
    done = False
    try:
        SheafCLI(folder, digest[:12], args=[verb, "--config", yaml.safe_dump(config), *rest])
        done = True
    finally:
        # A run that stays open would be taken up by the next command of this process.
        if "wandb" in sys.modules and sys.modules["wandb"].run is not None:
            sys.modules["wandb"].finish()
        if not done and not finished:
            discard_without_checkpoint(folder)
    return 0


class SheafCLI(LightningCLI):
    """LightningCLI with our module and data, everything written into one run folder."""

    def __init__(self, folder: Path, config_hash: str, *, args: list[str]):
        self.folder, self.config_hash = folder, config_hash
        super().__init__(
            SheafCompletion,
            InductiveDataModule,
            args=args,
            seed_everything_default=0,
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
        config = self.config[self.config.subcommand]
        config.trainer.default_root_dir = str(self.folder)
        config.report.config_hash = self.config_hash
        root = config.data.root
        if root is not None:
            config.data.root = os.path.abspath(os.path.expanduser(root))
        if config.trainer.enable_progress_bar is None and not sys.stdout.isatty():
            config.trainer.enable_progress_bar = False
        config.trainer.logger = self._loggers(config.trainer.logger)

    def _loggers(self, given: Any) -> Any:
        """The loggers with their folders inside the run folder, W&B only where it is installed."""
        kept = []
        for logger in given if isinstance(given, list) else [given]:
            arguments = getattr(logger, "init_args", None)
            is_wandb = getattr(logger, "class_path", "").endswith("WandbLogger")
            if is_wandb and find_spec("wandb") is None:
                print("wandb is not installed: this run is logged without it", file=sys.stderr)
                continue
            if arguments is not None and "save_dir" in arguments:
                arguments.save_dir = str(self.folder / (arguments.save_dir or "."))
            if is_wandb and arguments is not None:
                # One W&B run for fit and test: the stored configuration carries the id on.
                arguments.name = arguments.name or self.folder.name
                arguments.id = arguments.id or f"{self.folder.name}-{secrets.token_hex(4)}"
                # W&B's own switch wins over the file; Lightning sets its old name for offline.
                mode = os.environ.get("WANDB_MODE", "dryrun")
                if mode != "dryrun":
                    arguments.mode, arguments.offline = mode, mode == "offline"
                if arguments.offline or mode == "disabled":
                    os.environ.setdefault("WANDB_SILENT", "true")
            kept.append(logger)
        return kept if isinstance(given, list) else (kept[0] if kept else False)


class _SaveRunConfig(SaveConfigCallback):
    """Saves the full configuration as ``run.yaml`` when a run is trained."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and trainer.is_global_zero:
            folder = Path(trainer.default_root_dir)
            self.parser.save(
                self.config,
                str(folder / self.config_filename),
                skip_none=False,
                overwrite=True,
                multifile=False,
            )
            for logger in trainer.loggers:
                logger.log_hyperparams(yaml.safe_load((folder / "run.yaml").read_text()))


def _as_seed(value: int | bool | None) -> int:
    return int(value or 0)


def _stored_config(folder: Path) -> dict[str, Any]:
    file = folder / "run.yaml"
    if not file.is_file():
        raise DataError(f"{folder} is not a run folder: it has no run.yaml")
    config = yaml.safe_load(file.read_text(encoding="utf-8"))
    if not isinstance(config, dict) or not isinstance(config.get("model"), dict):
        raise DataError(f"{file} is not the configuration of a run")
    for path in _class_paths(config.get("trainer")):
        if not path.startswith(_TRUSTED):
            raise DataError(
                f"{file} names '{path}', which is neither sheafprop's nor Lightning's: a stored "
                "run is not allowed to import it"
            )
    config.pop("ckpt_path", None)
    config["model"].pop("seed", None)
    return config


def _class_paths(node: Any, key: str = "") -> list[str]:
    """Every string that the parser could take for a class to import."""
    if isinstance(node, dict):
        return [path for name, value in node.items() for path in _class_paths(value, name)]
    if isinstance(node, list):
        return [path for value in node for path in _class_paths(value, key)]
    parts = node.split(".") if isinstance(node, str) and key not in _PLAIN else []
    return [node] if len(parts) > 1 and all(part.isidentifier() for part in parts) else []


def _nested(options: dict[str, str | None]) -> dict[str, Any]:
    """``{"data.name": "umls"}`` as ``{"data": {"name": "umls"}}``; unset ones are left out."""
    out: dict[str, Any] = {}
    for name in ("data.name", "data.root", "model.kge"):
        if options[name] is not None:
            group, key = name.split(".")
            out.setdefault(group, {})[key] = options[name]
    if options["seed_everything"] is not None:
        out["seed_everything"] = yaml.safe_load(str(options["seed_everything"]))
    return out


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


def _explain(verb: str) -> None:
    if verb == "fit":
        print(
            "sheafprop fit --config FILE [--config FILE ...] [--run.group FOLDER] "
            "[--run.name NAME]\nsheafprop fit --resume RUN\n\nOptions of the configuration:\n"
        )
    else:
        print(f"sheafprop {verb} --run RUN\n\nOptions of the configuration:\n")
