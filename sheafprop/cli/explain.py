"""``sheafprop explain``: which facts an entity's vector contradicts."""

from collections.abc import Sequence

from sheafprop.checks import check_integer
from sheafprop.cli.command_parser import RATIO, CommandParser, report, write_table


def run(words: Sequence[str]) -> int:
    """Lists the facts at an entity or a triple with their energy."""
    parser = CommandParser(
        "explain",
        "List the facts of an entity, those that its vector contradicts most first: 'energy' is "
        "the squared distance between the two ends of a fact after the maps of its relation, "
        f"{RATIO}, and 'fact' whether the triple is a fact of the model.",
        "sheafprop explain runs/umls/rotate --entity virus",
    )
    parser.add_model()
    parser.add_argument("--entity", help="the entity")
    parser.add_argument(
        "--triple",
        nargs=3,
        metavar=("HEAD", "RELATION", "TAIL"),
        help="a triple, such as a prediction: its energy, then the facts of its head and tail",
    )
    parser.add_argument("-k", type=int, help="number of facts to list (default: all)")
    parser.add_output()
    options = parser.parse_args(list(words))
    if (options.entity is None) == (options.triple is None):
        parser.error("give either --entity or --triple")
    target = options.entity if options.entity is not None else tuple(options.triple)
    frame = parser.load_model(options).explain(target)
    if options.k is not None:
        check_integer("k", options.k, 1)
        frame = frame.head(options.k + (options.triple is not None))
    write_table(frame, options)
    if frame.empty:
        report(f"the model has no fact of {options.entity!r}")
    return 0
