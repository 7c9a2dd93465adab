"""Reads several files of triples as one and resolves alternative ids across them."""

import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from sheafprop.data.formats.facts import LiteralSink, follow_aliases
from sheafprop.data.text_rows import LocatedRows
from sheafprop.data.triples import read_located

# Names of the same relation in ontologies; the readers of RDF and OBO use the first one.
_SUBCLASS = {"is_a", "rdfs:subClassOf", "subClassOf", "subclass_of", "biolink:subclass_of"}


def read_files(
    paths: Iterable[str | os.PathLike[str]], *, literals: LiteralSink | None = None, **given: Any
) -> LocatedRows:
    """Reads several files of triples. Alternative ids of one file are resolved in all of them.

    Args:
        paths: The files.
        literals: See :func:`read_located`. If given, files without triples are allowed.
        **given: Further arguments of :func:`read_located`.
    """
    parts = [
        read_located(path, literals=literals, allow_empty=literals is not None, **given)
        for path in paths
    ]
    aliases = {label: term for part in parts for label, term in part.aliases.items()}
    found = LocatedRows.join([rename_rows(part, aliases) for part in parts])
    if len(several := _SUBCLASS & set(found.rows[:, 1].tolist())) > 1:
        warnings.warn(
            f"the relations {', '.join(sorted(several))} are distinct, although all of them may "
            "mean 'is a'. If they do, give them the same name",
            stacklevel=2,
        )
    return found


def rename_rows(located: LocatedRows, aliases: Mapping[str, str]) -> LocatedRows:
    """Replaces alternative ids by their terms and warns with their number."""
    rows, count = follow_aliases(located.rows, aliases)
    if count:
        source = located.parts[0][0].rpartition(",")[0]
        warnings.warn(
            f"{source}: alternative ids from another file replaced by their terms ({count:,})",
            stacklevel=3,
        )
    return replace(located, rows=rows)
