"""``sheafprop answer``: the best answers to logical queries."""

from argparse import ArgumentTypeError
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sheafprop.cli.command_parser import CommandParser, read_text, report, write_table
from sheafprop.errors import DataError

if TYPE_CHECKING:
    from sheafprop.data.text_rows import LocatedRows


def run(words: Sequence[str]) -> int:
    """Answers queries."""
    parser = CommandParser(
        "answer",
        "Rank all entities as answers to logical queries: via(relation, query), and(...), or(...), "
        "not(...). The 'truth' of an answer, from 0 to 1, is that of its best derivation: facts "
        "have probability 1, other links one that is derived from the scores; 'known' answers "
        "follow from the facts alone.",
        "sheafprop answer runs/umls/rotate --query 'via(inverse(treats), via(causes, virus))' -k 5",
    )
    parser.add_model()
    add = parser.add_argument
    add("--query", action="append", help="a query; may be repeated")
    add("--queries", metavar="FILE", help="file with one query per line")
    add("-k", type=int, default=10, help="number of answers per query (default: 10)")
    add(
        "--interior",
        choices=("entities", "free"),
        default="entities",
        help="interior variables: entities, connected by facts and predicted links (default), or "
        "free vectors of minimum energy",
    )
    add(
        "--beam",
        type=_beam,
        default=64,
        metavar="K",
        help="entities kept per interior variable; all is exact (default: 64)",
    )
    add(
        "--derivations",
        type=int,
        default=0,
        metavar="N",
        help="also print the N best derivations of each answer: one row per link; trees in JSON",
    )
    add("--picture", metavar="FILE", help="plot the derivations of the first answers, as PNG")
    add(
        "--min-probability",
        type=float,
        default=0.0,
        metavar="P",
        help="omit answers of smaller probability; requires a calibrated model",
    )
    add(
        "--explain",
        action="store_true",
        help="with --interior free: one row per edge, with its energy",
    )
    add(
        "--prior",
        action="store_true",
        help="with --interior free: a prior on the interior vertices from the facts of their "
        "relations, better for path queries",
    )
    parser.add_scoring()
    parser.add_output()
    add("--json", dest="format", action="store_const", const="json", help="--format json")
    options = parser.parse_args(list(words))
    if (options.query is None) == (options.queries is None):
        parser.error("give either --query or --queries FILE")
    if options.interior == "free" and (options.derivations or options.picture):
        parser.error("--derivations and --picture need --interior entities")
    if options.interior == "entities" and (options.explain or options.prior):
        parser.error("--explain and --prior need --interior free; see --derivations")
    queries = options.query or read_queries(options.queries)
    table = parser.load_model(options).answer(
        queries,
        options.k,
        interior=options.interior,
        beam=options.beam,
        derivations=options.derivations or int(options.picture is not None),
        min_probability=options.min_probability,
        explain=options.explain,
        prior=options.prior,
    )
    nested = table.attrs.get("derivations")

    def draw() -> None:
        if options.picture is not None:
            from sheafprop.report.derivation_figure import draw_derivations

            draw_derivations(nested, Path(options.picture).expanduser())

    write_table(table, options, nested, draw)
    if table.empty:
        least = options.min_probability
        enough = f" with a probability of at least {least:g}" if least else ""
        report(f"note: no entity answers these queries{enough}")
    return 0


def _beam(text: str) -> int | Literal["all"]:
    if text == "all":
        return "all"
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"a positive number, or all (got {text!r})")
    return int(text)


def read_queries(name: str) -> "LocatedRows":
    """The queries of a file, one a line.

    Raises:
        DataError: If it cannot be read or there is none.
    """
    from sheafprop.data.text_rows import LocatedRows

    lines = read_text(name, "queries").split("\n")
    queries = {number: line.strip() for number, line in enumerate(lines, 1) if line.strip()}
    if not queries:
        raise DataError(f"{name}: there is no query")
    return LocatedRows(list(queries.values()), ((f"{name}, line", list(queries)),))
