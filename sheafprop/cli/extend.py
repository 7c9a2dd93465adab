"""``sheafprop extend``: vectors for new entities."""

import argparse
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from sheafprop.cli.command_parser import (
    FACTS_HELP,
    CommandParser,
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
        "Compute vectors for the new entities in facts; known vectors do not change.",
        "sheafprop extend runs/umls/rotate new_facts.tsv --out extended",
    )
    parser.add_model()
    parser.add_argument("facts", nargs="*", help=FACTS_HELP)
    parser.add_argument(
        "--features",
        metavar="FILE",
        help="features of entities: CSV, TSV or Parquet with labels in the first column, or npy; "
        "new entities in it need no facts",
    )
    parser.add_folder("the new model folder", "an existing model")
    parser.add_argument(
        "--propagation",
        choices=("exact", "selected"),
        default="exact",
        help="the exact solution where it is unique, or the settings that the run selected on "
        "validation (default: exact)",
    )
    parser.add_change(", or recompute affected ones", "scale new vectors")
    parser.add_argument(
        "--on-unknown-relation",
        choices=("error", "drop", "fit"),
        default="error",
        help="facts with unknown relations: raise an error, drop them, or fit these relations in "
        "closed form first (default: error)",
    )
    parser.add_argument(
        "--min-facts",
        type=int,
        metavar="N",
        help="minimum number of facts between known entities for a fitted relation (default: 5)",
    )
    parser.add_argument(
        "--without-episodes",
        action="store_true",
        help="score by the vectors alone; required to fit relations of a model with episodes",
    )
    parser.add_argument(
        "--batch-size",
        type=int,
        metavar="N",
        help="number of facts processed at once (default: all)",
    )
    parser.add_argument("--seed", type=int, help="seed of random starts")
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
    """Refuses places for a model, its report and picture where these cannot be written, at once.

    Args:
        options: Those of a command: ``out``, ``overwrite``, ``report`` and perhaps ``picture``.

    Raises:
        DataError: If one of them would lie in the folder of the model.
        ValueError: If something is there that must stay.
    """
    from sheafprop.pretrained.model_folder import check_model_target

    check_model_target(options.out, options.overwrite)
    for name in ("report", "picture"):
        place = getattr(options, name, None)
        if place and _real(place).is_relative_to(_real(options.out)):
            raise DataError(f"--{name} {place} lies in the folder of --out: take another")


def save_model(
    model: "SheafModel",
    options: argparse.Namespace,
    found: "ExtensionReport | RemovalReport | CalibrationReport",
    picture: bytes | None = None,
) -> None:
    """Saves a model, the report on how it was made and its picture, all or none of them, and prints
    where the model is."""
    from sheafprop.files import as_json, written_after

    place = "/dev/stdout" if options.report == "-" else options.report
    with ExitStack() as stack:
        if place:
            content = as_json(found.to_dict())
            stack.enter_context(written_after(Path(place).expanduser(), content))
        if picture is not None:
            stack.enter_context(written_after(Path(options.picture).expanduser(), picture))
        model.save(options.out, overwrite=options.overwrite)
    report(found.summary())
    if not is_output(place or ""):
        print(options.out)


def _real(place: str) -> Path:
    return Path(os.path.realpath(Path(place).expanduser()))
