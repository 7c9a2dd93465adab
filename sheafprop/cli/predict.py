"""``sheafprop predict``: the best answers to triples with one end open."""

from collections.abc import Sequence
from itertools import groupby

from sheafprop.cli.verb_parser import VerbParser, read_facts, write_table
from sheafprop.errors import DataError


def run(words: Sequence[str]) -> int:
    """Predicts tails or heads."""
    parser = VerbParser(
        "predict",
        "Rank all entities as the missing head or tail of triples.",
        "sheafprop predict runs/umls/rotate --head virus --relation causes -k 5",
    )
    parser.add_model()
    parser.add_argument("--head", help="the known head: tails are predicted")
    parser.add_argument("--relation", help="the relation")
    parser.add_argument("--tail", help="the known tail: heads are predicted")
    parser.add_argument(
        "--queries", metavar="FILE", help="triples with '?' as head or tail, instead of one query"
    )
    parser.add_argument("-k", type=int, default=10, help="answers to each query (default: 10)")
    parser.add_argument(
        "--include-known", action="store_true", help="also list answers that are facts"
    )
    parser.add_file_options()
    parser.add_output()
    options = parser.parse_args(list(words))
    folder = parser.model_of(options)
    if options.queries:
        if not options.head is options.relation is options.tail is None:
            parser.error("give --queries, or --relation with --head or --tail, not both")
    elif options.relation is None or (options.head is None) == (options.tail is None):
        parser.error("give --relation with either --head or --tail, or --queries FILE")

    import pandas as pd

    from sheafprop.service import SheafModel

    if options.queries:
        queries = [tuple(row) for row in read_facts([options.queries], options)]
    else:
        given = [options.head, options.relation, options.tail]
        queries = [tuple("?" if label is None else label for label in given)]
    sides = [(head == "?", tail == "?") for head, _, tail in queries]
    for number, (head, tail) in enumerate(sides, 1):
        if head == tail and options.queries:
            raise DataError(f"{options.queries}: query {number} needs '?' as its head or its tail")
    model = SheafModel.load(folder)
    frames = []
    for is_tail, group in groupby(
        zip(queries, sides, strict=True),
        key=lambda item: item[1][1] if options.queries else options.tail is None,
    ):
        rows = [query for query, _ in group]
        relations = [relation for _, relation, _ in rows]
        if is_tail:
            heads = [head for head, _, _ in rows]
            frame = model.predict_tails(
                heads, relations, options.k, include_known=options.include_known
            )
        else:
            tails = [tail for _, _, tail in rows]
            frame = model.predict_heads(
                relations, tails, options.k, include_known=options.include_known
            )
        frames.append(frame)
    write_table(pd.concat(frames, ignore_index=True), options)
    return 0
