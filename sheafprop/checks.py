"""Checks of arguments that more than one room takes."""

from typing import Any


def check_integer(name: str, value: Any, least: int | None = None) -> None:
    """Raises :class:`ValueError` unless the value is an integer, of at least ``least`` if given.

    Integers of NumPy count, booleans and whole floats do not.
    """
    whole = hasattr(value, "__index__") and not isinstance(value, bool)
    if not whole or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        raise ValueError(f"'{name}' must be an integer{bound} (got {value!r})")
