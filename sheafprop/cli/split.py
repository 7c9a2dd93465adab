"""``sheafprop split``: the files of a run from one graph."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sheafprop.cli.command_parser import FACTS_HELP, CommandParser, input_path, read_facts
from sheafprop.errors import DataError

if TYPE_CHECKING:
    from sheafprop.data.graph_split import GraphSplit


def run(words: Sequence[str]) -> int:
    """Splits a graph, writes the folder and prints what to type next."""
    parser = CommandParser(
        "split",
        "Split one graph into the files of a run: some entities become new, and some of their "
        "triples validation and test triples. The same triples, options and seed give identical "
        "files on every machine, for any order of the lines.",
        "sheafprop split graph.tsv --out my_split --mode fully-inductive",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help=FACTS_HELP)
    parser.add_folder("the new folder of files", "an existing split")
    parser.add_argument(
        "--mode",
        choices=("fully-inductive", "semi-inductive"),
        required=True,
        help="fully-inductive: the two graphs share no entity, and triples between them are "
        "dropped; semi-inductive: new entities have triples with known ones",
    )
    parser.add_argument(
        "--new-fraction",
        type=float,
        metavar="FRACTION",
        help="fraction of new entities (default: 0.25 semi-inductive, 0.35 fully-inductive)",
    )
    parser.add_argument(
        "--observed-fraction",
        type=float,
        default=0.8,
        metavar="FRACTION",
        help="fraction of the triples of new entities that are observed (default: 0.8)",
    )
    parser.add_argument(
        "--valid-fraction",
        type=float,
        default=0.1,
        metavar="FRACTION",
        help="fraction of the triples of new entities, and of the training triples, for "
        "validation; the other triples of new entities are test triples (default: 0.1)",
    )
    parser.add_argument(
        "--max-triples",
        type=int,
        metavar="N",
        help="first sample entities of a larger graph by breadth-first search, with all triples "
        "between them, up to N triples (default: no limit)",
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    parser.add_file_options()
    options = parser.parse_args(list(words))

    from sheafprop.data.graph_split import check_split_target, split_graph

    check_split_target(options.out, options.overwrite)
    out = Path(os.path.realpath(Path(options.out).expanduser()))
    for name in options.files:
        if Path(os.path.realpath(input_path(name))).is_relative_to(out):
            raise DataError(f"'{name}' lies in the folder that --out would replace: take another")
    split = split_graph(
        read_facts(options.files, options, compare=False),
        options.mode,
        new_fraction=options.new_fraction,
        observed_fraction=options.observed_fraction,
        valid_fraction=options.valid_fraction,
        max_triples=options.max_triples,
        seed=options.seed,
    )
    place = split.save(options.out, overwrite=options.overwrite)
    print(split.summary())
    print(f"next: {fit_command(place, split)}")
    return 0


def fit_command(place: Path, split: "GraphSplit") -> str:
    """The command that trains on a split that was just written."""
    words = ["sheafprop", "fit", "--config", "experiment/folder", "--data.root", str(place)]
    words += ["--data.mode", split.mode]
    if not _is_read_by_default(place, split):
        words += ["--data.columns", "0,1,2", "--data.header", "no"]
    return shlex.join(words)


def _is_read_by_default(place: Path, split: "GraphSplit") -> bool:
    """Whether the files are read as they were written, without options."""
    import warnings

    import numpy as np

    from sheafprop.data.datasets.folder import FILES
    from sheafprop.data.triples import read_triples

    known: set[str] = set()
    for key, name in FILES.items():
        part = getattr(split, key)
        if len(part) == 0:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                found = read_triples(place / name, known=known)
        except (DataError, Warning):
            return False
        if not np.array_equal(found, part):
            return False
        known.update(part.ravel().tolist())
    return True
