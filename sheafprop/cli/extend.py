"""``sheafprop extend``: vectors for new entities."""

import argparse
import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from sheafprop.cli.command_parser import (
    CommandParser,
    folder,
    is_output,
    read_facts,
    report,
    report_warnings,
)
from sheafprop.errors import DataError

if TYPE_CHECKING:
    from sheafprop.data.features import FeatureTable
    from sheafprop.pretrained.calibration import CalibrationReport
    from sheafprop.pretrained.change_reports import ExtensionReport, RemovalReport
    from sheafprop.pretrained.sheaf_model import SheafModel


def run(words: Sequence[str]) -> int:
    """Extends a model by the facts of files and saves the result."""
    parser = CommandParser(
        "extend",
        "Give vectors to the new entities of some facts; old vectors stay as they are.",
        "sheafprop extend runs/umls/rotate new_facts.tsv --out extended",
    )
    parser.add_model()
    parser.add_argument("facts", nargs="*", help="files of head<TAB>relation<TAB>tail lines")
    parser.add_argument(
        "--features",
        metavar="FILE",
        help="features of entities: CSV, TSV or Parquet with the labels first, or npy; new "
        "entities in it need no fact",
    )
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
        choices=("error", "drop", "fit"),
        default="error",
        help="what to do with facts of relations that the model does not know: refuse or drop them,"
        " or fit these relations first, in closed form (default: error)",
    )
    parser.add_argument(
        "--min-facts",
        type=int,
        metavar="N",
        help="facts between entities with vectors that a fitted relation needs (default: 5)",
    )
    parser.add_argument(
        "--without-episodes",
        action="store_true",
        help="the larger model scores by its vectors alone, as fitted relations need",
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
    if not options.facts and options.features is None:
        parser.error("give files of facts, or --features FILE")

    from sheafprop.pretrained.sheaf_model import SheafModel

    check_places(options)
    old = SheafModel.load(source)
    if options.without_episodes:
        old = old.with_scores(episodes=False)
    features = read_given_features(options)
    facts = (
        read_facts(options.facts, options, old.relations, compare=False) if options.facts else ()
    )
    model = old.extend(
        facts,
        propagation=options.propagation,
        mode=options.mode,
        on_unknown_relation=options.on_unknown_relation,
        min_facts=options.min_facts,
        seed=options.seed,
        batch_size=options.batch_size,
        normalize_output=options.normalize_output,
        features=features,
    )
    assert model.report is not None
    save_model(model, options, model.report)
    return 0


def read_given_features(options: argparse.Namespace) -> "FeatureTable | None":
    """The features of the option ``--features``; warnings become notes."""
    from sheafprop.data.feature_files import read_features

    if options.features is None:
        return None
    with report_warnings():
        return read_features(options.features)


def check_places(options: argparse.Namespace) -> None:
    """Refuses places for a model and its report where these cannot be written, before any work.

    Args:
        options: Those of a command: ``out``, ``overwrite`` and ``report``.

    Raises:
        DataError: If the report would lie in the folder of the model.
        ValueError: If something is there that must stay.
    """
    from sheafprop.pretrained.model_folder import check_model_target

    check_model_target(options.out, options.overwrite)
    if options.report and _real(options.report).is_relative_to(_real(options.out)):
        raise DataError(f"--report {options.report} lies in the folder of --out: take another")


def save_model(
    model: "SheafModel",
    options: argparse.Namespace,
    found: "ExtensionReport | RemovalReport | CalibrationReport",
) -> None:
    """Saves a model and the report on how it was made, both or neither, and prints where it is."""
    from sheafprop.files import as_json, written_after

    place = "/dev/stdout" if options.report == "-" else options.report
    reported = (
        written_after(Path(place).expanduser(), as_json(found.to_dict()))
        if place
        else nullcontext()
    )
    with reported:
        model.save(options.out, overwrite=options.overwrite)
    report(found.summary())
    if not is_output(place or ""):
        print(options.out)


def _real(place: str) -> Path:
    return Path(os.path.realpath(Path(place).expanduser()))
