"""``sheafprop calibrate``: probabilities for predictions, scores and answers."""

from collections.abc import Sequence

from sheafprop.cli.command_parser import FACTS_HELP, CommandParser, read_facts


def run(words: Sequence[str]) -> int:
    """Calibrates a model on the triples of files and saves the result."""
    parser = CommandParser(
        "calibrate",
        "Fit probabilities on true triples that are not facts of the model, and save a new model.",
        "sheafprop calibrate extended held_out.tsv --queries queries.txt --out calibrated",
    )
    parser.add_model()
    parser.add_argument("triples", nargs="+", help=FACTS_HELP)
    parser.add_argument(
        "--queries", metavar="FILE", help="queries to calibrate the truth of, one per line"
    )
    parser.add_folder("the new model folder", "an existing model")
    parser.add_argument("--report", metavar="FILE", help="also write the report, as JSON")
    parser.add_argument("--picture", metavar="FILE", help="also plot a reliability diagram, as PNG")
    parser.add_file_options()
    options = parser.parse_args(list(words))
    source = parser.model_of(options, options.triples)

    from sheafprop.cli.answer import read_queries
    from sheafprop.cli.extend import check_places, save_model
    from sheafprop.pretrained.sheaf_model import SheafModel

    check_places(options)
    old = SheafModel.load(source)
    triples = read_facts(options.triples, options, old.relations, compare=False)
    queries = () if options.queries is None else read_queries(options.queries)
    model, found = old.calibrate(triples, queries)
    picture = None
    if options.picture:
        from sheafprop.report.figures import draw_reliability

        picture = draw_reliability(found.to_dict())
    save_model(model, options, found, picture)
    return 0
