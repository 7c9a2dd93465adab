"""Triples of tabular text: which row is a header, which columns are meant."""

import warnings
from collections.abc import Container, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sheafprop.data.column_names import (
    LabelTriples,
    check_first_line,
    check_order,
    columns_by_name,
    id_spaces,
    neo4j_columns,
    occur,
    recognize_columns,
    show_fields,
)
from sheafprop.data.read_options import ReadOptions
from sheafprop.data.text_rows import first_row, others, split_rows
from sheafprop.errors import DataError

__all__ = ["check_no_empty", "text_triples"]


def text_triples(
    text: str, source: str, options: ReadOptions, delimiter: str, known: Container[str] = ()
) -> tuple[Sequence[int], LabelTriples, tuple[int, int, int] | None]:
    """The lines and triples of text, without the header and checked, and their columns (None for
    the only three)."""
    first = first_row(text, source, delimiter)
    if first is None:
        return (), np.empty((0, 3), dtype=object), None
    line, names = first
    by_name = None
    spaces = ("", "")
    if options.has_names:
        assert options.columns is not None
        by_name = columns_by_name(options.columns, names, f"{source}, line {line}")
        spaces = id_spaces(names, by_name)
    elif options.columns is None and options.header is not False:
        found = neo4j_columns(names, f"{source}, line {line}")
        by_name, spaces = found or (recognize_columns(names), spaces)
    columns: Any = by_name or options.columns
    has_header = options.header or by_name is not None
    numbers, rows = split_rows(
        text, source, delimiter, columns=columns, skipped=line if has_header else 0
    )
    if len(rows) and columns is not None:
        triples = np.ascontiguousarray(rows[:, list(columns)])
    else:
        triples = rows
    numbers, triples = _apply_neo4j(numbers, triples, names, by_name, spaces, source)
    if by_name is not None and options.columns is None and options.header is None:
        labels = [names[column] for column in by_name]
        is_header = len(triples) > 0 and not occur(set(labels), triples)
        if not is_header and max(map(len, labels)) == 1:
            # Such as the triple "s r t" of a small graph.
            options = replace(options, header=False)
            return text_triples(text, source, options, delimiter, known)
        if not is_header:
            problem = "these labels occur below too" if len(triples) else "no triple follows"
            raise DataError(
                f"{source}, line {line}: this looks like column names, not a triple "
                f"(got {show_fields(names)}), but {problem}. Give header=True (--header yes) to "
                "take it as names, or header=False (--header no) to read it as a triple"
            )
    if len(triples) == 0:
        return (), np.empty((0, 3), dtype=object), columns
    check_no_empty(triples, numbers, source)
    if not has_header and options.header is None:
        check_first_line(triples, numbers[0], source, known)
    if columns is None:
        check_order(triples, source)
    elif options.columns is None and (len(names) > 3 or columns != (0, 1, 2)):
        chosen = ", ".join(names[column] for column in columns)
        warnings.warn(
            f"{source}: the columns {chosen} are taken as head, relation and tail", stacklevel=5
        )
    return numbers, triples, columns


def _apply_neo4j(
    numbers: Sequence[int],
    triples: LabelTriples,
    names: Sequence[str],
    columns: tuple[int, int, int] | None,
    spaces: tuple[str, str],
    source: str,
) -> tuple[Sequence[int], LabelTriples]:
    """The rows of a file of Neo4j: without nodes among them, ids behind the name of their space."""
    if columns is not None and names[columns[0]] == "_start" and len(triples):
        is_node = (triples == "").all(axis=1)
        numbers = [number for number, node in zip(numbers, is_node, strict=True) if not node]
        triples = triples[~is_node]
        if is_node.any():
            warnings.warn(f"{source}: left out: nodes ({int(is_node.sum()):,})", stacklevel=5)
    for column, space in zip((0, 2), spaces, strict=True):
        if space:
            triples[:, column] = [f"{space}:{label}" for label in triples[:, column]]
    return numbers, triples


def check_no_empty(triples: LabelTriples, numbers: Sequence[int], source: str) -> None:
    """Refuses triples with an empty label, by the line of the first."""
    empty = np.flatnonzero((triples == "").any(axis=1))
    if len(empty):
        row = int(empty[0])
        raise DataError(
            f"{source}, line {numbers[row]}: a label is empty (got {show_fields(triples[row])})"
            + others(len(empty))
        )
