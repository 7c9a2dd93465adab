"""``sheafprop tune``: search the options of a configuration on validation."""

import os
import shlex
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from sheafprop.cli.command_parser import CommandParser
from sheafprop.cli.run_folder import RunFolder
from sheafprop.cli.search_space import SearchSpace
from sheafprop.cli.training_commands import check_data
from sheafprop.config_files import (
    DATA_PLACES,
    config_root,
    describe_yaml_error,
    load_config,
    merge,
    nest,
    parse_option,
    resolve_place,
)
from sheafprop.errors import DataError
from sheafprop.files import write_text

_STORED = "tune.yaml"


def run(words: Sequence[str]) -> int:
    """Runs the trials of a new study, or resumes one."""
    parser = CommandParser(
        "tune",
        "Search the options of a configuration with Optuna. Trials are runs of 'fit', compared on "
        "validation; test triples are not used. Options of the configuration, such as --data.root "
        "FOLDER, are accepted too.",
        "sheafprop tune --config experiment/fb237_v1_rotate --trials 50",
    )
    parser.add_argument(
        "--config", action="append", default=[], metavar="FILE", help="as for 'fit'"
    )
    parser.add_argument(
        "--space",
        metavar="FILE",
        help="the search space, in YAML (default: that of the paper for the model)",
    )
    parser.add_argument("--trials", type=int, default=50, help="total number of trials (50)")
    parser.add_argument(
        "--pruner",
        choices=("median", "halving", "none"),
        help="stops trials whose validation curve lags behind (median)",
    )
    parser.add_argument("--run.group", dest="group", help="parent of the study folder (runs/tune)")
    parser.add_argument(
        "--run.name", dest="name", help="name of the study folder (name of the model)"
    )
    parser.add_argument("--resume", metavar="RUN", help="resume a study")
    options, rest = parser.parse_known_args(list(words))
    if options.trials < 1:
        parser.error(f"--trials must be at least 1 (got {options.trials})")
    if bool(options.resume) == bool(options.config):
        parser.error("give either --config FILE for a new study, or --resume RUN")
    own = (options.space, options.pruner, options.group, options.name)
    if options.resume and (rest or any(value is not None for value in own)):
        parser.error(
            "a resumed study keeps its space, configuration, pruner and folder: drop these options"
        )
    if find_spec("optuna") is None:
        raise DataError("'sheafprop tune' needs Optuna: pip install 'sheafprop[tune]'")
    if options.resume:
        place = RunFolder(options.resume)
        folder = place.path
        stored = _read_study(folder)
        _resolve_old_root(folder, stored["config"])
        check_data(stored["config"].get("data") or {})
    else:
        config: dict[str, Any] = {}
        for name in options.config:
            config = merge(config, load_config(name))
        config = merge(config, nest(_parse_options(parser, rest)))
        config.pop("run", None)
        data = config.get("data") or {}
        for name in DATA_PLACES & data.keys():  # once: a study may go on from another folder
            data[name] = resolve_place(name, data[name])
        check_data(data)
        kge = (config.get("model") or {}).get("kge", "rotate")
        if not (options.space or (config_root() / f"search/paper_{kge}.yaml").is_file()):
            raise DataError(f"the package has no space for '{kge}': give --space FILE")
        space = SearchSpace.load(options.space or f"search/paper_{kge}")
        stored = {"config": config, "space": space.options, "pruner": options.pruner or "median"}
        place = RunFolder(Path(options.group or "runs/tune") / (options.name or kge), new=True)
    from sheafprop.cli.study import Study, describe_value, read_data  # some seconds

    data = read_data(stored["config"])
    if not options.resume:
        place.make()
        folder = place.path
        print(f"run folder: {folder}")
        _write(folder, stored)
    space = SearchSpace(stored["space"], str(folder / _STORED))
    try:
        place.lock()
        study = Study(folder, stored["config"], space, pruner=stored["pruner"])
        print(data.data.summary())
        study.run(options.trials, data.keys)
    except (KeyboardInterrupt, SystemExit):
        resume = shlex.join(["sheafprop", "tune", "--resume", str(folder)])
        print(f"'{resume}' resumes this study", file=sys.stderr)
        raise
    except Exception:
        if not (folder / "study.json").exists():  # no trial could start
            place.discard()
        raise
    finally:
        place.release()
    best = study.study.best_trial
    command = shlex.join(["sheafprop", "fit", "--config", str(folder / "best.yaml")])
    print(f"best: trial {best.number}, {describe_value(best, study.study.best_value)}; {command}")
    return 0


def _parse_options(parser: CommandParser, rest: Sequence[str]) -> dict[str, Any]:
    """``--model.lr 0.1`` and ``--model.lr=0.1`` as values by option, read as YAML."""
    values: dict[str, Any] = {}
    words = list(rest)
    while words:
        option, equals, value = words.pop(0).partition("=")
        if not option.startswith("--") or not (equals or words):
            parser.error(f"unrecognized argument: {option}")
        text = value if equals else words.pop(0)
        name = option.removeprefix("--")
        values[name] = parse_option(name, text)
    for option in ("trainer.callbacks", "trainer.callbacks+"):
        if option in values:  # added, as those of a file are
            given = values.pop(option)
            values["trainer.callbacks"] = given if isinstance(given, list) else [given]
    return values


def _read_study(folder: Path) -> dict[str, Any]:
    file = folder / _STORED
    if not file.is_file():
        raise DataError(f"{folder} is not the folder of a study: it has no {_STORED}")
    try:
        stored = yaml.safe_load(file.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"{file} does not describe a study: it is not UTF-8 text") from error
    except yaml.YAMLError as error:
        problem = describe_yaml_error(error)
        raise DataError(f"{file} does not describe a study: it is not YAML ({problem})") from error
    if not isinstance(stored, dict) or not {"config", "space", "pruner"} <= stored.keys():
        raise DataError(f"{file} does not describe a study")
    return stored


def _resolve_old_root(folder: Path, config: dict[str, Any]) -> None:
    """Studies of version 0.1.0 have stored the data's place as it was given; their trials know it.

    Raises:
        DataError: If it is relative and no trial began.
    """
    root = (config.get("data") or {}).get("root")
    if root is None or os.path.isabs(os.path.expanduser(str(root))):
        return
    for run in sorted(folder.glob("trials/*/run.yaml")):
        config["data"]["root"] = yaml.safe_load(run.read_text(encoding="utf-8"))["data"]["root"]
        return
    raise DataError(f"{folder / _STORED} has the data in '{root}': write there from which folder")


def _write(folder: Path, stored: dict[str, Any]) -> None:
    write_text(folder / _STORED, yaml.safe_dump(stored, sort_keys=False))
