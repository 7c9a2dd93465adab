"""Reads JSON lines, such as edges and nodes of KGX."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sheafprop.data.column_names import columns_by_name, recognize_columns
from sheafprop.data.formats.facts import Facts
from sheafprop.data.read_options import Columns
from sheafprop.errors import DataError

if TYPE_CHECKING:
    from sheafprop.data.input_file import InputFile

_SHOWN = 100


def read_json_lines(
    file: InputFile, columns: Columns | None, facts: Facts, progress: bool = False
) -> str:
    """Reads one edge or node per line.

    Objects with head, relation and tail are edges. Other objects with an ``id`` are nodes, whose
    properties are literals.

    Args:
        file: The file.
        columns: The keys of head, relation and tail. (default: the usual names)
        facts: Receives the facts.
        progress: Whether to show a progress bar.

    Returns:
        What the places of facts count.

    Raises:
        DataError: If a line is not such an object. The message has the line and its content.
    """
    known: dict[tuple[str, ...], list[str] | None] = {}
    with file.open(progress) as stream:
        for number, raw in enumerate(stream, 1):
            try:
                line = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{file.source}, line {number}: not UTF-8 text (byte "
                    f"0x{raw[error.start]:02x}). Save the file as UTF-8."
                ) from error
            if line.strip():
                _add(line, number, known, columns, file.source, facts)
    return "line"


def _add(
    line: str,
    number: int,
    known: dict[tuple[str, ...], list[str] | None],
    columns: Columns | None,
    source: str,
    facts: Facts,
) -> None:
    where = f"{source}, line {number}"
    shown = line.rstrip()[:_SHOWN]
    try:
        value = json.loads(line, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid JSON: {error} (got {shown!r})") from error
    if not isinstance(value, dict):
        raise DataError(f"{where}: expected a JSON object (got {shown!r})")
    keys = tuple(value)
    if keys not in known:
        known[keys] = _keys(keys, columns, where)
    names = known[keys]
    if names is not None:
        labels = [value[name] for name in names]
        if not all(_is_label(label) for label in labels):
            raise DataError(
                f"{where}: {', '.join(names)} must be strings or integers, and not empty (got "
                f"{shown!r})"
            )
        head, relation, tail = (facts.intern(str(label)) for label in labels)
        facts.add(head, relation, tail, number)
    elif _is_label(value.get("id")):
        facts.left_out["nodes"] += 1
        for key, item in value.items():
            for one in item if isinstance(item, list) else [item]:
                if key != "id" and isinstance(one, str | int | float):
                    text = str(one).lower() if isinstance(one, bool) else str(one)
                    facts.add_literal(str(value["id"]), key, text)
    else:
        raise DataError(
            f"{where}: expected an edge with subject, predicate and object, or a node with an id "
            f"(got {shown!r}). Name the keys of head, relation and tail (--columns NAME,NAME,NAME)"
        )


def _keys(keys: tuple[str, ...], columns: Columns | None, where: str) -> list[str] | None:
    """Returns the keys of head, relation and tail, None if the object is not an edge."""
    if columns is None:
        places = recognize_columns(keys)
    elif any(name in keys for name in columns) or "id" not in keys:
        places = columns_by_name(columns, keys, where)
    else:
        places = None
    return None if places is None else [keys[place] for place in places]


def _is_label(value: Any) -> bool:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return is_integer or (isinstance(value, str) and value != "")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} occurs twice")
    return value
