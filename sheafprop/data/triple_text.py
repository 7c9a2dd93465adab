"""Parses tabular text as triples: finds the header and the columns."""

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
    occur,
    recognize_columns,
    show_fields,
)
from sheafprop.data.formats.facts import LiteralSink
from sheafprop.data.formats.prefixes import Prefixes
from sheafprop.data.property_graphs import (
    NodeColumns,
    TableGroup,
    id_spaces,
    neo4j_columns,
    node_columns,
    refuse_nodes,
)
from sheafprop.data.read_options import ReadOptions
from sheafprop.data.text_rows import first_row, others, split_rows
from sheafprop.errors import DataError

# Number of rows searched for an IRI.
_LOOKED_AT = 1000
_NO_TRIPLES: tuple[Sequence[int], LabelTriples, None] = ((), np.empty((0, 3), dtype=object), None)


def text_triples(
    text: str,
    source: str,
    options: ReadOptions,
    delimiter: str,
    known: Container[str] = (),
    *,
    literals: LiteralSink | None = None,
    group: TableGroup | None = None,
) -> tuple[Sequence[int], LabelTriples, tuple[int, int, int] | None]:
    """Parses text as triples and checks them.

    Args:
        text: Lines that end in LF.
        source: The file, for messages.
        options: The options of reading.
        delimiter: The character between fields.
        known: Known labels. A first line with one of them is not a header.
        literals: Receives the properties of nodes. Without it, nodes are an error.
        group: The group of the file. Its first file holds the header of all.

    Returns:
        The line numbers, the triples without the header, and their columns, None if there are only
        three.
    """
    first = first_row(text, source, delimiter)
    if first is None:
        return _NO_TRIPLES
    line, names = first
    has_own = group is None or group.names is None
    if group is not None:
        line, names = (line, names) if has_own else (0, group.names or names)
        group.names, group.delimiter = names, delimiter
    where = f"{source}, line {line}" if has_own else source
    type = group.name if group else None
    by_name, spaces = None, ("", "")
    if options.has_names:
        assert options.columns is not None
        by_name = columns_by_name(options.columns, names, where)
        spaces = id_spaces(names, by_name)
    elif options.columns is None and options.header is not False:
        found = neo4j_columns(names, where, type)
        by_name, spaces = found or (recognize_columns(names), spaces)
        if by_name is None and literals is None:
            refuse_nodes(names, where)
        if by_name is None and (nodes := node_columns(names, type)) is not None:
            assert literals is not None
            _pass_nodes(text, source, delimiter, line, len(names), nodes, literals)
            return _NO_TRIPLES
        if by_name is None and group is not None:
            raise DataError(
                f"{where}: a common header of files must name :START_ID, :END_ID and :TYPE, or "
                f"head, relation and tail (got {show_fields(names)}). Name the columns (--columns "
                "NAME,NAME,NAME)"
            )
    columns: Any = by_name or options.columns
    has_header = options.header or by_name is not None
    numbers, rows = split_rows(
        text, source, delimiter, columns=columns, skipped=line if has_header else 0
    )
    if len(rows) and columns is not None:
        triples = np.ascontiguousarray(rows[:, list(columns)])
    else:
        triples = rows
    numbers, triples, lost = _apply_neo4j(numbers, triples, names, by_name, spaces)
    if type is not None and columns is not None and columns[0] == columns[1]:
        triples[:, 1] = type
    if lost and literals is not None and (nodes := node_columns(names)) is not None:
        _pass_nodes(text, source, delimiter, line, len(names), nodes, literals)
    elif lost:
        warnings.warn(f"{source}: skipped: nodes ({lost:,})", stacklevel=5)
    if by_name is not None and options.columns is None and options.header is None and has_own:
        labels = [names[column] for column in by_name]
        is_header = len(triples) > 0 and not occur(set(labels), triples)
        if not is_header and max(map(len, labels)) == 1:
            # Such as the triple "s r t" of a small graph.
            options = replace(options, header=False)
            return text_triples(text, source, options, delimiter, known)
        if len(triples) == 0 and group is None:
            raise DataError(
                f"{where}: this looks like column names, not a triple (got {show_fields(names)}), "
                "but no triple follows. If it is the header of other files, give them together as "
                f"{source},FILE; header=False (--header no) reads it as a triple"
            )
        if not is_header and len(triples):
            raise DataError(
                f"{where}: this looks like column names, not a triple (got {show_fields(names)}), "
                "but these labels also occur below. Give header=True (--header yes) to read it as "
                "names, or header=False (--header no) to read it as a triple"
            )
    is_choice = columns is not None and (len(names) > 3 or columns != (0, 1, 2))
    if is_choice and options.columns is None and has_own and (len(triples) or group):
        chosen = ", ".join(names[column] for column in dict.fromkeys(columns))
        warnings.warn(
            f"{source}: the columns {chosen} are used as head, relation and tail", stacklevel=5
        )
    if len(triples) == 0:
        return (), np.empty((0, 3), dtype=object), columns
    check_no_empty(triples, numbers, source)
    if not has_header and options.header is None:
        check_first_line(triples, numbers[0], source, known)
    if columns is None:
        check_order(triples, source)
    return numbers, triples, columns


def _pass_nodes(
    text: str,
    source: str,
    delimiter: str,
    line: int,
    width: int,
    columns: NodeColumns,
    literals: LiteralSink,
) -> None:
    """Passes the properties of nodes on and warns with their number.

    Args:
        line: The line of the header, 0 if there is none.
        width: The number of columns.
    """
    _, rows = split_rows(text, source, delimiter, skipped=line, width=width)
    nodes = count = 0
    for row in rows.tolist():
        if not row[columns.id]:
            continue  # a relationship among the nodes of APOC
        nodes += 1
        for entity, name, value in columns.literals(row):
            literals(entity, name, value)
            count += 1
    warnings.warn(f"{source}: nodes read ({nodes:,}); literals written ({count:,})", stacklevel=5)


def _apply_neo4j(
    numbers: Sequence[int],
    triples: LabelTriples,
    names: Sequence[str],
    columns: tuple[int, int, int] | None,
    spaces: tuple[str, str],
) -> tuple[Sequence[int], LabelTriples, int]:
    """Prefixes ids of Neo4j with their ID spaces and removes nodes, which are counted."""
    lost = 0
    if columns is not None and names[columns[0]] == "_start" and len(triples):
        is_node = (triples == "").all(axis=1)
        numbers = [number for number, node in zip(numbers, is_node, strict=True) if not node]
        triples, lost = triples[~is_node], int(is_node.sum())
    for column, space in zip((0, 2), spaces, strict=True):
        if space:
            triples[:, column] = [f"{space}:{label}" for label in triples[:, column]]
    return numbers, triples, lost


def shorten_iris(triples: LabelTriples, source: str, options: ReadOptions) -> LabelTriples:
    """Shortens the IRIs of a table if prefixes were given.

    Otherwise labels are unchanged, and a warning names the first one that RDF would shorten.
    """
    if options.prefixes_given:
        if not options.prefixes.namespaces:
            return triples
        names = {label: options.prefixes.shorten_label(label) for label in set(triples.ravel())}
        out: LabelTriples = np.array([names[label] for label in triples.ravel()], dtype=object)
        return out.reshape(-1, 3)
    prefixes = Prefixes.of()
    for label in triples[:_LOOKED_AT].ravel().tolist():
        if "://" in label and (short := prefixes.shorten_label(label)) != label:
            warnings.warn(
                f"{source}: labels of tables are not shortened, but {label!r} is {short!r} in "
                "files of RDF and OBO. --prefixes common shortens IRIs here too; --prefixes none "
                "keeps them everywhere",
                stacklevel=5,
            )
            break
    return triples


def check_no_empty(triples: LabelTriples, numbers: Sequence[int], source: str) -> None:
    """Checks that no label is empty."""
    empty = np.flatnonzero((triples == "").any(axis=1))
    if len(empty):
        row = int(empty[0])
        raise DataError(
            f"{source}, line {numbers[row]}: a label is empty (got {show_fields(triples[row])})"
            + others(len(empty))
        )
