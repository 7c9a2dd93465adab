"""Reads a run folder: its configuration, the classes it may import, whether it is complete."""

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from sheafprop.config_files import describe_yaml_error
from sheafprop.errors import DataError
from sheafprop.files import storage_errors

#: Where the classes that a stored run names may come from; its YAML is not trusted with more.
_TRUSTED = ("sheafprop.", "lightning.pytorch.", "torch.optim.")
#: Names and folders, which are never taken for classes.
_PLAIN = {"name", "project", "id", "entity", "notes", "group", "save_dir", "default_root_dir"}


def read_run(folder: Path) -> dict[str, Any]:
    """The configuration of a run, its ``run.yaml``; nothing that it names is imported.

    Raises:
        DataError: If there is none, or it cannot be read.
    """
    file = folder / "run.yaml"
    if not file.is_file():
        hint = ""
        if (folder / "manifest.json").is_file():
            hint = "; it holds a model, which 'sheafprop evaluate MODEL --test FILE' ranks"
        raise DataError(f"{folder} is not a run folder: it has no run.yaml{hint}")
    try:
        with storage_errors(file, "read"):
            config = yaml.safe_load(file.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: the configuration cannot be read (it is not UTF-8)") from error
    except yaml.YAMLError as error:
        raise DataError(f"{file} is not valid YAML: {describe_yaml_error(error)}") from error
    if not isinstance(config, dict):
        raise DataError(f"{file} is not the configuration of a run")
    for name, kind in (("data", dict), ("model", dict), ("seed_everything", int)):
        value = config[name] = config.get(name) or kind()
        if not isinstance(value, kind):
            raise DataError(f"{file} is not the configuration of a run: see '{name}'")
    return config


def read_run_to_continue(folder: Path, trusted: Sequence[str] = ()) -> dict[str, Any]:
    """The configuration of a run as one that Lightning can be given again.

    Raises:
        DataError: If there is none, or it names a class outside ``trusted`` modules.
    """
    config = read_run(folder)
    if foreign := own_classes(config, trusted):
        raise DataError(
            f"{folder / 'run.yaml'} names '{foreign[0]}', which is neither sheafprop's nor "
            "Lightning's: a stored run is not allowed to import it. If you know it, allow it with "
            f"{trust(foreign)}"
        )
    config.pop("ckpt_path", None)
    config["model"].pop("seed", None)
    # What lies in the run folder is where that is now, also after a move or in a copy.
    old = (config.get("trainer") or {}).get("default_root_dir")
    return _move_paths(config, str(old), str(folder)) if old else config


def _move_paths(node: Any, old: str, new: str) -> Any:
    """A configuration with the paths below one folder put below another."""
    if isinstance(node, dict):
        return {key: _move_paths(value, old, new) for key, value in node.items()}
    if isinstance(node, list):
        return [_move_paths(value, old, new) for value in node]
    inside = isinstance(node, str) and (node == old or node.startswith(old + os.sep))
    return new + node[len(old) :] if inside else node


def describe_interruption(folder: Path) -> str | None:
    """Warns of a run whose ``fit`` was killed after it saved the model, but before its record.

    None for a run that is whole, and for a folder that is not a run.
    """
    if not (folder / "run.yaml").is_file() or not (folder / "model" / "metrics.json").is_file():
        return None
    trained = [_training(folder / name) for name in ("model/metrics.json", "metrics.json")]
    if trained[0] == trained[1] or (folder / "metrics.sheafprop.json").is_file():
        return None
    return (
        f"{folder}: 'fit' was interrupted after it saved this model and before it recorded it, so "
        "reports of the run are of an earlier one, or missing; "
        f"'sheafprop fit --resume {shlex.quote(str(folder))}' writes them"
    )


def _training(file: Path) -> Any:
    """What a file of metrics says of the training."""
    try:
        return json.loads(file.read_text(encoding="utf-8")).get("training")
    except (OSError, ValueError, AttributeError):
        return None


def own_classes(config: dict[str, Any], trusted: Sequence[str] = ()) -> list[str]:
    """Classes of a configuration that are not ours, Lightning's, torch's, or of trusted modules."""
    inside = _TRUSTED + tuple(f"{module}." for module in trusted)
    model = config.get("model") or {}
    paths = _class_paths([config.get("trainer"), model.get("optimizer"), model.get("lr_schedule")])
    return [path for path in paths if not path.startswith(inside) and path not in trusted]


def trust(paths: Sequence[str]) -> str:
    """The options that allow a stored run to import some classes."""
    modules = dict.fromkeys(path.rpartition(".")[0] for path in paths)
    return " ".join(f"--trust {module}" for module in modules)


def _class_paths(node: Any, key: str = "") -> list[str]:
    """Every string that the parser could take for a class to import."""
    if isinstance(node, dict):
        return [path for name, value in node.items() for path in _class_paths(value, name)]
    if isinstance(node, list):
        return [path for value in node for path in _class_paths(value, key)]
    parts = node.split(".") if isinstance(node, str) and key not in _PLAIN else []
    return [node] if len(parts) > 1 and all(part.isidentifier() for part in parts) else []
