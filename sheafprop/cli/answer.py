"""``sheafprop answer``: the best answers to logical queries."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sheafprop.cli.command_parser import CommandParser, read_text, write_table
from sheafprop.errors import DataError

if TYPE_CHECKING:
    from sheafprop.data.text_rows import LocatedRows


def run(words: Sequence[str]) -> int:
    """Answers queries."""
    parser = CommandParser(
        "answer",
        "Rank all entities as answers to logical queries: via(relation, query), and(...), or(...).",
        "sheafprop answer runs/umls/rotate --query 'via(inverse(treats), via(causes, virus))' -k 5",
    )
    parser.add_model()
    parser.add_argument("--query", action="append", help="a query; may be repeated")
    parser.add_argument("--queries", metavar="FILE", help="queries, one a line, instead")
    parser.add_argument("-k", type=int, default=10, help="answers to each query (default: 10)")
    parser.add_argument(
        "--explain", action="store_true", help="a row for every edge, with its part of the energy"
    )
    parser.add_argument(
        "--prior",
        action="store_true",
        help="expect the vertices between where the facts of their relations have entities: better "
        "on paths",
    )
    parser.add_output()
    options = parser.parse_args(list(words))
    if (options.query is None) == (options.queries is None):
        parser.error("give either --query or --queries FILE")
    queries = options.query or _read_queries(options.queries)
    model = parser.load_model(options)
    table = model.answer(queries, options.k, explain=options.explain, prior=options.prior)
    write_table(table, options)
    return 0


def _read_queries(name: str) -> "LocatedRows":
    from sheafprop.data.text_rows import LocatedRows

    lines = read_text(name, "queries").split("\n")
    queries = {number: line.strip() for number, line in enumerate(lines, 1) if line.strip()}
    if not queries:
        raise DataError(f"{name}: there is no query")
    return LocatedRows(list(queries.values()), ((f"{name}, line", list(queries)),))
