"""``sheafprop extend``: vectors for new entities."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from sheafprop.cli.command_parser import CommandParser, folder, is_output, read_facts, report


def run(words: Sequence[str]) -> int:
    """Extends a model by the facts of files and saves the result."""
    parser = CommandParser(
        "extend",
        "Give vectors to the new entities of some facts; old vectors stay as they are.",
        "sheafprop extend runs/umls/rotate new_facts.tsv --out extended",
    )
    parser.add_model()
    parser.add_argument("facts", nargs="+", help="files of head<TAB>relation<TAB>tail lines")
    parser.add_argument(
        "--out", metavar="FOLDER", type=folder, required=True, help="the new model folder"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a model that is there")
    parser.add_argument(
        "--propagation",
        choices=("exact", "selected"),
        default="exact",
        help="the exact solution where it is unique, or what the run chose on validation "
        "(default: exact)",
    )
    parser.add_argument(
        "--mode",
        choices=("keep", "refine"),
        default="keep",
        help="keep the vectors of earlier extensions, or solve touched ones again (default: keep)",
    )
    parser.add_argument(
        "--on-unknown-relation",
        choices=("error", "drop"),
        default="error",
        help="what to do with facts of relations that the model does not know (default: error)",
    )
    parser.add_argument(
        "--batch-size", type=int, metavar="N", help="facts that are solved at once (default: all)"
    )
    parser.add_argument(
        "--normalize-output",
        action=argparse.BooleanOptionalAction,
        help="scale new vectors to the length that the model trains with (default: exact solutions "
        "where the model trains with unit rows, others as the run chose)",
    )
    parser.add_argument("--seed", type=int, help="of random starts")
    parser.add_argument("--report", metavar="FILE", help="also write the report, as JSON")
    parser.add_file_options()
    options = parser.parse_args(list(words))
    source = parser.model_of(options, options.facts)

    from sheafprop.files import write_json
    from sheafprop.pretrained.model_folder import check_model_target
    from sheafprop.pretrained.sheaf_model import SheafModel

    check_model_target(options.out, options.overwrite)
    old = SheafModel.load(source)
    facts = read_facts(options.facts, options, old.relations, compare=False)
    model = old.extend(
        facts,
        propagation=options.propagation,
        mode=options.mode,
        on_unknown_relation=options.on_unknown_relation,
        seed=options.seed,
        batch_size=options.batch_size,
        normalize_output=options.normalize_output,
    )
    assert model.report is not None
    if options.report:  # first, as a place that was misspelt must not leave half of what was asked
        place = "/dev/stdout" if options.report == "-" else options.report
        write_json(Path(place).expanduser(), model.report.to_dict())
    model.save(options.out, overwrite=options.overwrite)
    report(model.report.summary())
    if not is_output(options.report or ""):
        print(options.out)
    return 0
