"""``sheafprop predict``: the best answers to triples with one end open."""

from collections.abc import Sequence
from dataclasses import replace

from sheafprop.cli.command_parser import (
    CommandParser,
    read_facts,
    report_warnings,
    show_progress,
    write_table,
)
from sheafprop.errors import DataError


def run(words: Sequence[str]) -> int:
    """Predicts tails or heads."""
    parser = CommandParser(
        "predict",
        "Rank all entities as the missing head or tail of triples.",
        "sheafprop predict runs/umls/rotate --head virus --relation causes -k 5",
    )
    parser.add_model()
    parser.add_argument("--head", help="the known head: tails are predicted")
    parser.add_argument("--relation", help="the relation")
    parser.add_argument("--tail", help="the known tail: heads are predicted")
    parser.add_argument(
        "--queries",
        metavar="FILE",
        help="file of triples with '?' as head or tail, instead of one query",
    )
    parser.add_argument(
        "-k", type=int, default=10, help="number of answers per query (default: 10)"
    )
    parser.add_argument(
        "--include-known", action="store_true", help="also list answers that are facts"
    )
    parser.add_argument(
        "--skip-unknown", action="store_true", help="skip and count queries with unknown labels"
    )
    parser.add_scoring()
    parser.add_file_options()
    parser.add_output(triples=True)
    options = parser.parse_args(list(words))
    if options.queries:
        if not options.head is options.relation is options.tail is None:
            parser.error("give --queries, or --relation with --head or --tail, not both")
    elif options.relation is None or (options.head is None) == (options.tail is None):
        parser.error("give --relation with either --head or --tail, or --queries FILE")
    model = parser.load_model(options)
    if options.queries is None:
        query = (options.head, options.relation, options.tail)
        table = model.predict([query], options.k, include_known=options.include_known)
        write_table(table, options)
        return 0
    import numpy as np

    queries = read_facts([options.queries], options, model.relations)
    is_open = queries.rows == "?"
    for row, (head, _, tail) in enumerate(is_open.tolist()):
        if head == tail:
            raise DataError(f"{queries.place(row)}: a query needs '?' as its head or its tail")
    is_open[:, 1] = False
    with report_warnings():
        table = model.predict(
            replace(queries, rows=np.where(is_open, None, queries.rows)),
            options.k,
            include_known=options.include_known,
            skip_unknown=options.skip_unknown,
            progress=show_progress(),
        )
    write_table(table, options)
    return 0
