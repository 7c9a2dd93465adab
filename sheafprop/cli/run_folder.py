"""Where a run keeps its files, and what these say: its configuration, the classes it may import,
whether it is complete."""

import json
import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from sheafprop.config_files import describe_yaml_error
from sheafprop.errors import DataError
from sheafprop.files import lock_folder, storage_errors

if TYPE_CHECKING:
    from sheafprop.distributed import Ranks


#: Tells the processes that a run starts on its own machine where the first of them writes.
_SHARED = "SHEAFPROP_RUN_FOLDER"
#: Names the torchrun that has begun a run, until the run ends.
_LAUNCHER = ".torchrun"


class RunFolder:
    """The folder of a run: one that is there, or one that is made once the run can start.

    Args:
        path: The folder.
        new: Whether it is to be made, as ``path``, or ``path-2`` and so on beside it where that
            exists; nothing is overwritten.
        ranks (Ranks, optional): The processes of torchrun that share it; the first of them writes.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, new: bool = False, ranks: "Ranks | None" = None
    ):
        self.ranks = ranks
        self.path = Path(path).expanduser().absolute()
        self._new = new
        self._made: list[Path] = []
        self._unlock: Callable[[], None] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What a process that the trainer spawns is given: the lock stays with this one."""
        return vars(self) | {"_unlock": None}

    def make(self) -> bool:
        """Makes a new folder, and the folders above it, and returns whether it did."""
        if not self._new:
            return False
        if self.ranks is not None:
            first = self.ranks.is_first
            made = self.ranks.run_together(lambda: first and self._make())
            self.path = Path(self.ranks.gather(str(self.path))[0])
            if made:
                (self.path / _LAUNCHER).write_text(_name_launcher(), encoding="utf-8")
            return made
        if int(os.environ.get("LOCAL_RANK", "0")) > 0:
            if _SHARED not in os.environ:
                raise DataError(
                    "a run starts its further processes itself: start one process and give "
                    "--trainer.devices N --trainer.strategy ddp"
                )
            self.path = Path(os.environ[_SHARED])
            return False
        return self._make()

    def _make(self) -> bool:
        wanted, number = self.path, 1
        missing = [parent for parent in wanted.parents if not parent.exists()]
        while True:
            try:
                self.path.mkdir(parents=True)
                break
            except FileExistsError:
                number += 1
                self.path = wanted.with_name(f"{wanted.name}-{number}")
            except OSError as error:
                raise DataError(
                    f"the run folder {self.path} cannot be made ({error.strerror}): choose another "
                    "place with --run.group"
                ) from error
        self._made = [self.path, *missing]
        os.environ[_SHARED] = str(self.path)
        return True

    def lock(self) -> None:
        """Keeps other processes from writing here until :meth:`release`, or this one's end.

        Raises:
            StorageError: If another process does so already.
        """
        if self.ranks is not None:
            first = self.ranks.is_first
            self._unlock = self.ranks.run_together(
                lambda: lock_folder(self.path) if first else None
            )
        elif int(os.environ.get("LOCAL_RANK", "0")) == 0:
            self._unlock = lock_folder(self.path)  # for further processes of the run as well

    def release(self) -> None:
        """Lets go of what :meth:`lock` took."""
        if self._unlock is not None:
            self._unlock()
            self._unlock = None

    def find_restarted(self) -> Path | None:
        """The folder of a run that this torchrun has begun and starts again, if it can go on.

        One without a checkpoint is removed: nothing of it is lost.
        """
        assert self.ranks is not None
        found = None
        if self.ranks.is_first and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")):
            for place in sorted(self.path.parent.glob(f"{escape(self.path.name)}*")):
                name = place / _LAUNCHER
                if not name.is_file() or name.read_text(encoding="utf-8") != _name_launcher():
                    continue
                if (place / "checkpoints" / "last.ckpt").is_file():
                    found = place
                else:
                    shutil.rmtree(place, ignore_errors=True)
        return self.ranks.gather(found)[0]

    def finish(self) -> None:
        """Marks a run that torchrun need not start again."""
        if self.ranks is not None and self.ranks.is_first:
            (self.path / _LAUNCHER).unlink(missing_ok=True)

    def discard(self) -> None:
        """Removes what :meth:`make` made, unless a checkpoint is there to go on from."""
        if not self._made or any(self.path.glob("checkpoints/*.ckpt")):
            return
        shutil.rmtree(self.path, ignore_errors=True)
        for parent in self._made[1:]:  # the nearest first
            try:
                parent.rmdir()
            except OSError:
                break


def _name_launcher() -> str:
    """This torchrun, the same after it has started its processes again."""
    return f"{os.environ.get('TORCHELASTIC_RUN_ID')} {os.getppid()}"


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
