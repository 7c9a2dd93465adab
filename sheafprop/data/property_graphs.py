"""Tables of property graphs from Neo4j and KGX: relationships, nodes and separate headers."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sheafprop.data.input_file import InputFile
from sheafprop.data.text_rows import LocatedRows, decode, first_row, guess_delimiter, split_rows
from sheafprop.errors import DataError, NotTriplesError

# A column of neo4j-admin, with its ID space and options.
_ID = re.compile(r"[^:]*:(START_ID|TYPE|END_ID|ID)(?:\(([^)]*)\))?(?:\{.*\})?")
_PROPERTY = re.compile(r"([^:{]*)(?::(\w+)(\[\])?)?(?:\(.*\))?(?:\{.*\})?")
# The type or labels of a group of files, as in 'KNOWS=header.csv,part.csv'.
_GROUP = re.compile(r"(?:([^=,/\\]+)=)?(.+)", re.DOTALL)
#: The header of files that ``sheafprop convert --literals`` writes.
LITERALS = ["entity", "property", "value"]


@dataclass
class TableGroup:
    """Files that share the header of the first one, as in ``neo4j-admin database import``.

    Args:
        name: The type of the relationships or the labels of the nodes, if no column holds them.
        files: The files.
        names: The header, once it is read.
        delimiter: The delimiter of the header.
    """

    name: str | None
    files: list[str]
    names: list[str] | None = None
    delimiter: str | None = None


def split_group(path: str | os.PathLike[str]) -> TableGroup | None:
    """Parses ``TYPE=header.csv,part.csv``; returns None for the name of a single file."""
    text = os.fspath(path)
    found = _GROUP.fullmatch(text)
    if found is None or Path(text).expanduser().exists():
        return None
    files = found[2].split(",")
    if (found[1] is None and len(files) == 1) or not Path(files[0]).expanduser().is_file():
        return None
    return TableGroup(found[1], files)


def neo4j_columns(
    names: Sequence[object], source: str, type: str | None = None
) -> tuple[tuple[int, int, int], tuple[str, str]] | None:
    """Finds the columns of head, relation and tail in a header for ``neo4j-admin import``.

    Args:
        names: The header.
        source: The file and line for messages.
        type: The type of all relationships, if no column holds it. The column of the head is then
            returned for the relation.

    Returns:
        The columns, and the ID spaces of heads and tails, empty if there are none. None for other
        headers.

    Raises:
        DataError: If the relationships have no type.
    """
    found = [_ID.fullmatch(str(name).strip()) for name in names]
    places = {match[1]: place for place, match in enumerate(found) if match}
    if "START_ID" not in places and "END_ID" not in places:
        return None
    if type is not None and "START_ID" in places:
        places["TYPE"] = places["START_ID"]
    if missing := [name for name in ("START_ID", "TYPE", "END_ID") if name not in places]:
        raise DataError(
            f"{source}: a relationship file for Neo4j needs the columns :START_ID, :END_ID "
            f"and :TYPE (missing :{missing[0]}). Add it, give the type as TYPE=FILE, or name the "
            "columns of head, relation and tail (--columns NAME,NAME,NAME)"
        )
    columns = places["START_ID"], places["TYPE"], places["END_ID"]
    return columns, id_spaces(names, columns)


def id_spaces(names: Sequence[object], columns: Sequence[int]) -> tuple[str, str]:
    """Returns the ID spaces of the columns of heads and tails, empty if there are none."""
    head, tail = (_ID.fullmatch(str(names[place]).strip()) for place in columns[::2])
    return str((head and head[2]) or ""), str((tail and tail[2]) or "")


@dataclass(frozen=True)
class NodeColumns:
    """The columns of a node file.

    Args:
        id: The column of the ids.
        space: The ID space, which prefixes the ids in labels; empty if there is none.
        properties: For each property, its column, its name and the separator of its values, empty
            for a single value.
        labels: The labels of all nodes, if no column holds them.
    """

    id: int
    space: str
    properties: tuple[tuple[int, str, str], ...]
    labels: tuple[str, ...] = ()

    def label(self, row: Sequence[str]) -> str:
        """Returns the label of a row, as used in relationships."""
        return f"{self.space}:{row[self.id]}" if self.space else row[self.id]

    def literals(self, row: Sequence[str]) -> Iterator[tuple[str, str, str]]:
        """Yields the label, the property and the value for each value of a row."""
        label = self.label(row)
        for place, name, between in self.properties:
            for value in row[place].split(between) if between else [row[place]]:
                if value.strip():
                    yield label, name, value.strip()
        for value in self.labels:
            yield label, "label", value


def node_columns(names: Sequence[object], labels: str | None = None) -> NodeColumns | None:
    """Finds the columns of a node file of Neo4j (for import, or from APOC) or KGX.

    Args:
        names: The header.
        labels: The labels of all nodes, as in ``Person:Author=people.csv``.

    Returns:
        The columns, or None for other headers.
    """
    cells = [str(name).strip() for name in names]
    matches = [_ID.fullmatch(cell) for cell in cells]
    ids = [place for place, match in enumerate(matches) if match and match[1] == "ID"]
    if len(ids) == 1:
        found = [_PROPERTY.fullmatch(cell) for cell in cells]
        properties = [
            (place, match[1], ";" if match[3] else "")
            for place, match in enumerate(found)
            if match and match[1] and match[2] != "IGNORE" and place != ids[0]
        ]
        properties += [(p, "label", ";") for p, cell in enumerate(cells) if cell == ":LABEL"]
        match = matches[ids[0]]
        space, more = str((match and match[2]) or ""), filter(None, (labels or "").split(":"))
        return NodeColumns(ids[0], space, tuple(sorted(properties)), tuple(more))
    if {"_id", "_labels"} <= set(cells):
        edge = ("_id", "_start", "_end", "_type")
        kept = [(place, cell) for place, cell in enumerate(cells) if cell not in edge]
        apoc = [(p, "label", ":") if cell == "_labels" else (p, cell, "") for p, cell in kept]
        return NodeColumns(cells.index("_id"), "", tuple(apoc))
    if {"id", "category"} <= set(cells):
        place = cells.index("id")
        return NodeColumns(
            place, "", tuple((p, cell, "|") for p, cell in enumerate(cells) if p != place)
        )
    return None


def refuse_nodes(names: Sequence[object], source: str) -> None:
    """Checks that a header is not one of nodes or literals.

    Raises:
        NotTriplesError: If it is one. The message says how to use the file.
    """
    cells = [str(name).strip() for name in names]
    if [cell.lower() for cell in cells] == LITERALS:
        raise NotTriplesError(
            f"{source}: this file holds literals, as written by 'sheafprop convert --literals'. "
            "Give it as features (--features, --data.features); --header no reads this line as a "
            "triple"
        )
    if (nodes := node_columns(names)) is not None:
        raise NotTriplesError(
            f"{source}: this file holds nodes (column {cells[nodes.id]!r}). Give the files of "
            "relationships (Neo4j: with :START_ID, :END_ID and :TYPE; KGX: with subject, predicate "
            "and object). 'sheafprop convert NODES --literals FILE' converts nodes to features"
        )


def read_nodes(path: str | os.PathLike[str]) -> tuple[list[str], NodeColumns, LocatedRows]:
    """Reads a node file, or a group of files with a common header.

    Returns:
        The header, its columns and the rows, an array of their fields.

    Raises:
        DataError: If the file does not hold nodes, or is malformed. The message names the line.
    """
    group = split_group(path) or TableGroup(None, [os.fspath(path)])
    parts: list[LocatedRows] = []
    columns = None
    for name in group.files:
        with InputFile(name).open(progress=True) as stream:
            text = decode(stream.read(), name)
        beginning = text.partition("\n")[0]
        delimiter = group.delimiter or ("\t" if "\t" in beginning else guess_delimiter(text, name))
        line = 0
        if group.names is None and (first := first_row(text, name, delimiter)) is not None:
            line, group.names = first
            group.delimiter, columns = delimiter, node_columns(group.names, group.name)
        if group.names is None or columns is None:
            raise DataError(
                f"{name}: a node file must start with a header, with the column :ID for Neo4j, or "
                f"id and category for KGX (got {beginning[:80]!r})"
            )
        width = len(group.names)
        lines, rows = split_rows(text, name, delimiter, skipped=line, width=width)
        if len(rows):
            parts.append(LocatedRows(rows, ((f"{name}, line", lines),)))
    assert group.names is not None
    assert columns is not None
    if not parts:
        raise DataError(f"{', '.join(group.files)}: the files hold no nodes")
    return group.names, columns, LocatedRows.join(parts)
