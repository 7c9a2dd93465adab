"""Which classes a stored run may import."""

from collections.abc import Sequence
from typing import Any

#: Where the classes that a stored run names may come from; its YAML is not trusted with more.
_TRUSTED = ("sheafprop.", "lightning.pytorch.", "torch.optim.")
#: Names and folders, which are never taken for classes.
_PLAIN = {"name", "project", "id", "entity", "notes", "group", "save_dir", "default_root_dir"}


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
