"""``sheafprop score``: how well triples fit."""

from collections.abc import Sequence

from sheafprop.cli.command_parser import (
    FACTS_HELP,
    RATIO,
    SCORE,
    CommandParser,
    read_facts,
    report_warnings,
    write_table,
)


def run(words: Sequence[str]) -> int:
    """Scores the triples of files."""
    parser = CommandParser(
        "score",
        f"Score triples: {SCORE}, {RATIO}, and 'known', whether the triple is a fact of the model.",
        "sheafprop score extended candidates.tsv --out scores.csv",
    )
    parser.add_model()
    parser.add_argument("triples", nargs="+", help=FACTS_HELP)
    parser.add_argument(
        "--skip-unknown", action="store_true", help="skip and count triples with unknown labels"
    )
    parser.add_scoring()
    parser.add_file_options()
    parser.add_output(triples=True)
    options = parser.parse_args(list(words))
    model = parser.load_model(options, options.triples)
    triples = read_facts(options.triples, options, model.relations)
    with report_warnings():
        table = model.score(triples, skip_unknown=options.skip_unknown)
    write_table(table, options)
    return 0
