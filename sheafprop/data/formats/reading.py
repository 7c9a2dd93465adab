"""Reads a file of a graph format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sheafprop.data.file_kinds import GRAPH_FORMATS, named_format
from sheafprop.data.formats.facts import Facts, LiteralSink
from sheafprop.data.formats.json_lines import read_json_lines
from sheafprop.data.formats.obo import read_obo
from sheafprop.data.formats.rdf import read_rdf
from sheafprop.data.read_options import ReadOptions
from sheafprop.data.text_rows import LocatedRows
from sheafprop.errors import DataError

if TYPE_CHECKING:
    from sheafprop.data.input_file import InputFile


def read_graph(
    file: InputFile, format: str, options: ReadOptions, literals: LiteralSink | None = None
) -> LocatedRows:
    """Reads the facts of a file, with a progress bar.

    A warning counts what is skipped, and names the format if it was inferred from the content.

    Args:
        file: The file.
        format: One of ``GRAPH_FORMATS``.
        options: The options of reading.
        literals: Receives the literals.

    Raises:
        DataError: If the file is malformed, its reader is not installed, or an option for tables is
            given. The message has the line and its content.
    """
    title = GRAPH_FORMATS[format]
    given = {"columns": options.columns, "header": options.header, "delimiter": options.delimiter}
    for name, value in given.items():
        if value is not None and not (name == "columns" and format == "jsonl"):
            raise DataError(f"{file.source}: '{name}' applies only to tables, and this is {title}")
    is_guess = options.format == "auto" and named_format(file.source) != title
    facts = Facts(file.source, title, options.prefixes, literals, is_guess)
    if format == "jsonl":
        word = read_json_lines(file, options.columns, facts, progress=True)
    elif format == "obo":
        word = read_obo(file, facts, progress=True)
    else:
        word = read_rdf(file, format, facts, progress=True)
    return facts.rows(word)
