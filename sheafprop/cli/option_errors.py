"""Errors of jsonargparse in one line: the option, what it accepts and what was given."""

import difflib
import re
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from sheafprop.config_files import config_root

_KEY = re.compile(r'^Parser key "(?P<key>[\w.]+)":')
_FIELD = re.compile(r'^ +Parser key "(\w+)":$', re.MULTILINE)
# The first of the errors of a value that fits none of several types.
_FIRST = re.compile(r"^Does not validate against any of .*?^Errors:\n +- (.+?)$", re.M | re.S)
_GIVEN = re.compile(r"^ *Given value: (.*)|Got value: (.*)$", re.MULTILINE)
# What is wrong with a class that was found.
_PROBLEM = re.compile(r"given class_path '([\w.]+)':\s*(.+)$", re.MULTILINE)
_WORDS: dict[Any, tuple[str, ...]] = {
    int: ("an integer",),
    float: ("a number",),
    bool: ("true", "false"),
    str: ("text",),
    NoneType: ("null",),
}


def describe_option_error(text: str, parser: ArgumentParser) -> str:
    """Says in one line what is wrong with the value of an option.

    Args:
        text (str): The message of jsonargparse.
        parser: The parser of the command.

    Returns:
        The line; messages of one line, such as those on unknown options, are returned as they are.
    """
    match = _KEY.match(text)
    if match is None:
        return " ".join(text.split())
    key = match["key"]
    kinds = {action.dest: getattr(action, "_typehint", None) for action in parser._actions}
    kind = kinds.get(key)
    if kind is None:  # a section, or a mapping with a wrong value
        return " ".join(text.split())
    given = next((a or b for a, b in _GIVEN.findall(text)), "")
    classes = list(_classes(kind))
    if classes and (problem := _PROBLEM.search(text)):
        name, reason = problem[1].rpartition(".")[2], problem[2].strip()
        owner = next((one for one in classes if one.__name__ == name), None)
        if owner is not None and (field := _FIELD.search(text)):
            accepted = _join(_list_values(get_type_hints(owner)[field[1]]))
            return f"'--{key}.{field[1]}' must be {accepted} (got {given[:80]!r})"
        return f"'--{key}' cannot be {name}: {reason}. Give arguments as --{key}.NAME=VALUE"
    message = f"'--{key}' must be {_join(_list_values(kind))} (got {given[:80]!r})"
    return f"{message}. {_advise(key, given, classes[0])}" if classes else message


def describe_value_error(text: str) -> str:
    """Says in one line what is wrong with a value that is of the right type.

    Args:
        text (str): The message of jsonargparse or of a class; the latter is returned as it is.
    """
    match = _FIRST.match(text)
    return text if match is None else match[1]


def _list_values(kind: Any) -> list[str]:
    """The values of a type in words, each once."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return list(dict.fromkeys(text for part in parts for text in _list_values(part)))
    if origin is Literal:
        return [repr(value) for value in parts]
    if kind in _WORDS:
        return list(_WORDS[kind])
    if isinstance(origin, type) and issubclass(origin, Iterable):
        return [f"a list of {_join(_list_values(parts[0]))}" if parts else "a list"]
    return ["the name of a class" if origin else getattr(kind, "__name__", str(kind))]


def _join(texts: list[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} or {texts[-1]}"


def _classes(kind: Any) -> Iterator[type]:
    """The classes that an option takes, also in lists."""
    if get_args(kind) and get_origin(kind) is not Literal:
        for part in get_args(kind):
            yield from _classes(part)
    elif isinstance(kind, type) and kind not in _WORDS and kind.__module__ != "builtins":
        yield kind


def _advise(key: str, given: str, base: type) -> str:
    """How to give a class, with the name that is nearest."""
    names = sorted(name for name in _subclass_names(base) if not name.startswith("_"))
    near = [name for name in names if given.lower() in name.lower()]
    near = near or difflib.get_close_matches(given, names, 1, cutoff=0.5)
    example = f", such as {near[0]}" if near and given else ""
    advice = f"Give the name of a class{example}, with its arguments as --{key}.NAME=VALUE"
    group = key.rpartition(".")[2]
    if stored := sorted(path.stem for path in config_root().glob(f"{group}/*.yaml")):
        advice += f", or a configuration: {_join([f'--config {group}/{name}' for name in stored])}"
    return advice


def _subclass_names(base: type) -> set[str]:
    """The names of the classes that derive from one, as far as they are imported."""
    derived: list[type] = base.__subclasses__()
    return {kind.__name__ for kind in derived}.union(*map(_subclass_names, derived))
