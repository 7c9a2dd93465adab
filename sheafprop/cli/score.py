"""``sheafprop score``: how well triples fit."""

from collections.abc import Sequence

from sheafprop.cli.command_parser import CommandParser, read_facts, write_table


def run(words: Sequence[str]) -> int:
    """Scores the triples of files."""
    parser = CommandParser(
        "score",
        "Score triples; higher is better.",
        "sheafprop score extended candidates.tsv --out scores.csv",
    )
    parser.add_model()
    parser.add_argument("triples", nargs="+", help="files of head<TAB>relation<TAB>tail lines")
    parser.add_scoring()
    parser.add_file_options()
    parser.add_output(triples=True)
    options = parser.parse_args(list(words))
    model = parser.load_model(options, options.triples)
    triples = read_facts(options.triples, options, model.relations)
    write_table(model.score(triples), options)
    return 0
