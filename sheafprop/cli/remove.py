"""``sheafprop remove``: a model without some entities."""

from collections.abc import Sequence

from sheafprop.cli.command_parser import CommandParser, read_text
from sheafprop.errors import DataError


def run(words: Sequence[str]) -> int:
    """Removes entities with their facts from a model and saves the result."""
    parser = CommandParser(
        "remove",
        "Remove entities and their facts; other vectors do not change.",
        "sheafprop remove extended --entity gene_therapy --out smaller",
    )
    parser.add_model()
    parser.add_argument("--entity", action="append", help="an entity; may be repeated")
    parser.add_argument(
        "--entities", metavar="FILE", help="file with one entity per line (-: standard input)"
    )
    parser.add_folder("the new model folder", "an existing model")
    parser.add_change(" that lose a fact, or recompute them", "with --mode refine: scale vectors")
    options = parser.parse_args(list(words))
    if options.entity is None and options.entities is None:
        parser.error("give --entity or --entities FILE")
    source = parser.model_of(options)

    from sheafprop.cli.extend import check_places, save_model
    from sheafprop.pretrained.sheaf_model import SheafModel

    check_places(options)
    labels = [*(options.entity or ()), *_read_labels(options.entities)]
    model = SheafModel.load(source).remove(
        labels, mode=options.mode, normalize_output=options.normalize_output
    )
    assert model.report is not None
    save_model(model, options, model.report)
    return 0


def _read_labels(name: str | None) -> list[str]:
    """The labels of a file, one a line, literally."""
    if name is None:
        return []
    lines = (line.removesuffix("\r") for line in read_text(name, "entities").split("\n"))
    labels = [line for line in lines if line]
    if not labels:
        raise DataError(f"{name}: there is no entity")
    return labels
