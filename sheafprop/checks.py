"""Checks of arguments that several subpackages take, and the wording of their messages."""

from collections.abc import Sequence
from typing import Any

# Characters of a label that a message shows.
_SHOWN = 80


def check_integer(name: str, value: Any, least: int | None = None) -> None:
    """Raises :class:`ValueError` unless the value is an integer, of at least ``least`` if given.

    Integers of NumPy count, booleans and whole floats do not.
    """
    whole = hasattr(value, "__index__") and not isinstance(value, bool)
    if not whole or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        raise ValueError(f"'{name}' must be an integer{bound} (got {value!r})")


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raises :class:`ValueError` unless the value is one of the choices."""
    if value not in choices:
        raise ValueError(f"'{name}' must be one of {', '.join(map(repr, choices))} (got {value!r})")


def quote(label: object) -> str:
    """A label in quotes for a message, cut where it is long."""
    text = repr(label)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 4]}...{text[-1]}"


def count_noun(number: int, noun: str) -> str:
    """A number with its noun, in the plural where it belongs."""
    ending = "" if number == 1 else "s"
    if number != 1 and noun.endswith("y"):
        noun, ending = noun[:-1], "ies"
    return f"{number:,} {noun}{ending}"


def agree(number: int, one: str, many: str) -> str:
    """The form of a verb that goes with a number of things."""
    return one if number == 1 else many
