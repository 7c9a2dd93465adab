"""Configuration files that build on others, and YAML in which numbers and names are what they look.

PyYAML follows YAML 1.1, where ``1e-4`` is text; jsonargparse reads it as a number. Here it is a
number, as in YAML 1.2, and names and folders are text, whatever they look like.
"""

import os
import re
from pathlib import Path
from typing import Any

import yaml

from sheafprop.errors import DataError


def config_root() -> Path:
    """The folder of the configuration files, in an installed package or in a checkout."""
    inside = Path(__file__).parent / "configs"
    return inside if inside.is_dir() else Path(__file__).parents[1] / "configs"


#: What holds options of its own.
_SECTIONS = {"data", "model", "trainer", "report", "run"}
#: Options that are names or folders: a plain scalar other than null is their text.
_TEXTS = {"root", "name", "group", "project", "id", "entity", "notes", "save_dir", "dirpath"}
_TEXTS |= {"default_root_dir", "columns", "delimiter", "prefixes", "features"}
#: Options of the data that name a file or a folder.
DATA_PLACES = frozenset(("root", "features", "prefixes"))
# Numbers with an exponent and no point, which YAML 1.1 takes for text.
_EXPONENT = re.compile(r"[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+")


class _Loader(yaml.SafeLoader):
    """Reads ``1e-4`` as a number."""


class _Dumper(yaml.SafeDumper):
    """Quotes the text ``1e-4``."""


for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"))


def parse_yaml(text: str) -> Any:
    """The plain values of a YAML text.

    Raises:
        yaml.YAMLError: If it is no valid YAML.
    """
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _keep_texts(node)
        return loader.construct_document(node)
    finally:
        loader.dispose()


def describe_yaml_error(error: yaml.YAMLError) -> str:
    """What is wrong with a YAML text, and where, in one line."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return " ".join(str(error).split())
    problem = getattr(error, "problem", None) or "it cannot be read"
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"


def dump_yaml(value: Any) -> str:
    """Plain values as YAML that :func:`parse_yaml` and jsonargparse read back as they are."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False)


def parse_option(name: str, text: str) -> Any:
    """The value of an option such as ``data.root`` or ``model.lr`` on the command line."""
    try:
        value = parse_yaml(text)
    except yaml.YAMLError:
        return text
    if name.rpartition(".")[2] not in _TEXTS:
        return value
    # jsonargparse would take the folder "null" for none that is given.
    return (
        os.path.join(".", text) if name == "data.root" and value is None and text != "~" else text
    )


def resolve_place(name: str, given: Any) -> Any:
    """The value of one of :obj:`DATA_PLACES`, which means the same from any folder once stored."""
    if given is None or (name == "prefixes" and given in ("common", "none")):
        return given
    return os.path.abspath(os.path.expanduser(str(given)))


def nest(values: dict[str, Any]) -> dict[str, Any]:
    """``{"model.lr": 0.1}`` as ``{"model": {"lr": 0.1}}``."""
    out: dict[str, Any] = {}
    for option, value in values.items():
        *groups, key = option.split(".")
        inner = out
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[key] = value
    return out


def _keep_texts(node: yaml.Node) -> None:
    """Makes the values of names and folders text, in all mappings inside a node."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _keep_texts(item)
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        is_text = isinstance(key, yaml.ScalarNode) and key.value in _TEXTS
        if is_text and isinstance(value, yaml.ScalarNode) and not value.tag.endswith(":null"):
            value.tag = "tag:yaml.org,2002:str"
        _keep_texts(value)


def load_config(path: str, *, _seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Reads a YAML file and the files its ``defaults`` name, later ones winning key by key.

    ``defaults`` is a list of paths without ending, relative to the ``configs`` folder the file is
    in (``data/umls`` is ``configs/data/umls.yaml``). A path that does not exist here is looked up
    among the configurations that come with the package.

    Raises:
        DataError: If a file is missing, is empty, is not a mapping of options, or includes itself.
    """
    file = _find(path)
    if file in _seen:
        raise DataError(f"{file} includes itself through its 'defaults'")
    try:
        content = parse_yaml(file.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise DataError(f"{file} is not valid YAML: {describe_yaml_error(error)}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8 text: save it as UTF-8") from error
    if content is None:
        raise DataError(f"{file} is empty: it must hold a mapping, such as 'model: {{lr: 0.1}}'")
    if not isinstance(content, dict):
        raise DataError(f"{file} must hold a mapping (got {type(content).__name__})")
    for section in _SECTIONS & content.keys():
        if content[section] is None:
            del content[section]  # all that it held is commented out
        elif not isinstance(content[section], dict):
            raise DataError(f"{file}: '{section}' must hold options (got {content[section]!r})")
    names = content.pop("defaults", [])
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise DataError(f"{file}: 'defaults' must be a list of names (got {names!r})")
    merged: dict[str, Any] = {}
    for name in names:
        merged = merge(merged, load_config(_include(file, name), _seen=(*_seen, file)))
    return merge(merged, content)


def merge(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """Merges mappings key by key; anything else is replaced, lists too.

    But ``trainer.callbacks`` are added to those of the base: one of the same class replaces that
    one. Under ``run: {callbacks: replace}`` they replace all of them.
    """
    out = _merge(base, change)
    lists: list[Any]
    lists = [(config.get("trainer") or {}).get("callbacks") for config in (base, change)]
    adds = (change.get("run") or {}).get("callbacks") != "replace"
    if adds and all(isinstance(callbacks, list) for callbacks in lists):
        out["trainer"]["callbacks"] = add_callbacks(*lists)
    return out


def add_callbacks(base: list[Any], more: list[Any]) -> list[Any]:
    """Callbacks of both lists; of one class, the later one at the place of the earlier one."""
    by_class: dict[Any, Any] = {}
    for callback in [*base, *more]:
        by_class[_class_of(callback)] = callback
    return list(by_class.values())


def _class_of(callback: Any) -> str:
    get = getattr(callback, "get", None)
    name = str(get("class_path", "") if get else callback)
    # The parser also knows classes by the folder's shorter name.
    return name.rpartition(".")[2] if name.startswith("sheafprop.") else name


def _merge(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    out = dict(base)
    for key, value in change.items():
        both = isinstance(value, dict) and isinstance(out.get(key), dict)
        out[key] = _merge(out[key], value) if both else value
    return out


def _find(path: str) -> Path:
    given = Path(path).expanduser()
    inside = given.relative_to("configs") if given.parts[:1] == ("configs",) else given
    for place in (given, config_root() / inside, (config_root() / inside).with_suffix(".yaml")):
        if place.is_file():
            return place.absolute()
    folder = config_root() / inside.parent
    if inside.is_absolute() or ".." in inside.parts or not list(folder.glob("*.yaml")):
        folder = config_root() / "experiment"
    known = sorted(str(p.relative_to(config_root())) for p in folder.glob("*.yaml"))
    raise DataError(f"there is no configuration '{path}'; the package has {', '.join(known)}")


def _include(file: Path, name: str) -> str:
    near = file.parent.parent / f"{name}.yaml"
    return str(near) if near.is_file() else f"{name}.yaml"
