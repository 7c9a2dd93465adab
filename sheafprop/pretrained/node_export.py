"""Nodes for ``neo4j-admin database import``, with their vectors."""

import csv
import io
import warnings
from collections.abc import Iterable, Iterator
from os import PathLike
from typing import Any

import numpy as np

from sheafprop.checks import count_noun, quote
from sheafprop.data.property_graphs import NodeColumns, read_nodes
from sheafprop.errors import DataError

#: The column of the vectors.
VECTOR = "vector:float[]"
Nodes = tuple[list[str], NodeColumns, list[list[str]]]


def load_nodes(path: str | PathLike[str]) -> Nodes:
    """The header, its meaning and the rows of a file of nodes for Neo4j.

    Raises:
        DataError: If it is none, or an id is there twice.
    """
    names, columns, located = read_nodes(path)
    rows = located.rows.tolist()
    if ":ID" not in names[columns.id]:
        raise DataError(
            f"{path}: nodes for Neo4j have a column :ID (got {', '.join(map(repr, names[:8]))})"
        )
    if VECTOR in names:
        place = names.index(VECTOR)
        names, rows = _without(names, place), [_without(row, place) for row in rows]
        columns = NodeColumns(columns.id - (place < columns.id), columns.space, ())
    return names, columns, rows


def node_lines(
    labels: Iterable[str], parts: Iterable[np.ndarray], nodes: Nodes | None = None
) -> Iterator[bytes]:
    """A line for every node, with its vector.

    Args:
        labels: The labels of the entities.
        parts: Their vectors, some rows at a time.
        nodes: The nodes as Neo4j exported them: their columns stay, and those without an entity
            come last, without a vector. Entities that are none of them are added if their label
            begins with the space of the ids, else left out and counted in a warning.
    """
    if nodes is None:
        yield _line(["label:ID", ":LABEL", VECTOR])
        for rows, names in _with_labels(parts, labels):
            yield b"".join(
                _line([name, "Entity", _vector(row)]) for name, row in zip(names, rows, strict=True)
            )
        return
    header, columns, rows_of = nodes
    known: dict[str, list[str]] = {}
    for node in rows_of:
        if known.setdefault(columns.label(node), node) is not node:
            raise DataError(f"the id {quote(node[columns.id])} is there twice among the nodes")
    common = _common(header, rows_of)
    left_out = 0
    yield _line([*header, VECTOR])
    for rows, names in _with_labels(parts, labels):
        lines = []
        for name, row in zip(names, rows, strict=True):
            cells = known.pop(name, None)
            if cells is None and columns.space and name.startswith(f"{columns.space}:"):
                cells = [*common]
                cells[columns.id] = name.removeprefix(f"{columns.space}:")
            if cells is None:
                left_out += 1
            else:
                lines.append(_line([*cells, _vector(row)]))
        yield b"".join(lines)
    yield b"".join(_line([*node, ""]) for node in known.values())
    if known:
        warnings.warn(
            f"{count_noun(len(known), 'node')} of {len(rows_of):,} without a vector, as the model "
            "does not know them",
            stacklevel=2,
        )
    if left_out:
        warnings.warn(
            f"skipped: {count_noun(left_out, 'entity')} of the model that the file of nodes does "
            "not have",
            stacklevel=2,
        )


def _with_labels(
    parts: Iterable[np.ndarray], labels: Iterable[str]
) -> Iterator[tuple[list[list[float]], list[str]]]:
    names = iter(labels)
    for rows in parts:
        yield rows.tolist(), [next(names) for _ in range(len(rows))]


def _common(header: list[str], rows: list[list[str]]) -> list[str]:
    """The cells of a node that is new: its label, where all nodes have the same."""
    cells = [""] * len(header)
    if ":LABEL" in header:
        found = {row[header.index(":LABEL")] for row in rows}
        cells[header.index(":LABEL")] = found.pop() if len(found) == 1 else ""
    return cells


def _vector(row: list[float]) -> str:
    return ";".join(f"{value:.9g}" for value in row)


def _line(cells: list[Any]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode("utf-8", "surrogatepass")


def _without(cells: list[str], place: int) -> list[str]:
    return cells[:place] + cells[place + 1 :]
