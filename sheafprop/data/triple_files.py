"""Several files of triples as one, in which alternative ids mean their terms."""

import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from sheafprop.data.formats.facts import LiteralSink, follow_aliases
from sheafprop.data.text_rows import LocatedRows
from sheafprop.data.triples import read_located

# What ontologies call one relation; RDF and OBO are read with the first name.
_SUBCLASS = {"is_a", "rdfs:subClassOf", "subClassOf", "subclass_of", "biolink:subclass_of"}


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
    found = LocatedRows.join([rename_rows(part, aliases) for part in parts])
    if len(several := _SUBCLASS & set(found.rows[:, 1].tolist())) > 1:
        warnings.warn(
            f"the relations {', '.join(sorted(several))} are read as different ones, though all "
            "may say that a term is a kind of another: give them one name if they do",
            stacklevel=2,
        )
    return found


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
