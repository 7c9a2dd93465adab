"""Several files of triples as one, in which alternative ids mean their terms."""

import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from sheafprop.data.formats.facts import LiteralSink, follow_aliases
from sheafprop.data.text_rows import LocatedRows
from sheafprop.data.triples import read_located

__all__ = ["read_files", "rename_rows"]


def read_files(
    paths: Iterable[str | os.PathLike[str]], *, literals: LiteralSink | None = None, **given: Any
) -> LocatedRows:
    """The triples of several files, in which the alternative ids of any mean their terms.

    Args:
        paths: The files.
        literals: As of :func:`read_located`; a file may hold nothing else then.
        **given: Further arguments of it.
    """
    parts = [
        read_located(path, literals=literals, allow_empty=literals is not None, **given)
        for path in paths
    ]
    aliases = {label: term for part in parts for label, term in part.aliases.items()}
    return LocatedRows.join([rename_rows(part, aliases) for part in parts])


def rename_rows(located: LocatedRows, aliases: Mapping[str, str]) -> LocatedRows:
    """Triples with the terms that their labels mean; a warning counts those labels."""
    rows, count = follow_aliases(located.rows, aliases)
    if count:
        source = located.parts[0][0].rpartition(",")[0]
        warnings.warn(
            f"{source}: alternative ids of another file read as their terms ({count:,})",
            stacklevel=3,
        )
    return replace(located, rows=rows)
