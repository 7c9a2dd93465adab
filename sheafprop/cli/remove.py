"""``sheafprop remove``: a model without some entities."""

import argparse
from collections.abc import Sequence

from sheafprop.cli.command_parser import CommandParser, folder, read_text
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
    parser.add_argument(
        "--out", metavar="FOLDER", type=folder, required=True, help="the new model folder"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing model")
    parser.add_argument(
        "--mode",
        choices=("keep", "refine"),
        default="keep",
        help="keep the vectors of earlier extensions that lose a fact, or recompute them "
        "(default: keep)",
    )
    parser.add_argument(
        "--normalize-output",
        action=argparse.BooleanOptionalAction,
        help="with --mode refine: scale vectors to the length used in training (default: yes for "
        "exact solutions if the model trains with unit rows, otherwise as selected by the run)",
    )
    parser.add_argument("--report", metavar="FILE", help="also write the report, as JSON")
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
