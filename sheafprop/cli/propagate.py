"""``sheafprop propagate``: vectors for the new entities of files that are larger than memory."""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sheafprop.cli.command_parser import CommandParser, file_options, folder, input_path, report


def run(words: Sequence[str]) -> int:
    """Propagates a model's vectors through files, block by block, and writes a folder of them."""
    parser = CommandParser(
        "propagate",
        "Give vectors to the new entities of large files of facts within a given memory, by the "
        "propagation that the run chose; an interrupted command goes on where it was.",
        "sheafprop propagate facts.tsv --model runs/wikidata --memory 16GB --out vectors",
    )
    _add_options(parser)
    options = parser.parse_args(list(words))
    if options.out is None and not options.estimate:
        parser.error("give --out FOLDER, or --estimate")

    from sheafprop.pretrained.mapped.cost_estimate import parse_bytes, physical_memory
    from sheafprop.pretrained.mapped.vector_folder import check_vector_target

    memory = physical_memory() // 2 if options.memory is None else parse_bytes(options.memory)
    if options.out is None:
        with tempfile.TemporaryDirectory() as place:
            return _run(options, Path(place) / "vectors", memory)
    out = Path(options.out).expanduser()
    check_vector_target(out, options.overwrite)
    return _run(options, out, memory)


def _add_options(parser: CommandParser) -> None:
    add = parser.add_argument
    add("facts", nargs="+", help="files of head<TAB>relation<TAB>tail lines")
    add("--model", required=True, metavar="RUN", help="a run folder, or a model folder")
    add("--out", metavar="FOLDER", type=folder, help="the folder of the vectors")
    add("--overwrite", action="store_true", help="replace a folder of vectors that is there")
    add(
        "--memory",
        metavar="SIZE",
        help="what the process may take, such as 16GB (default: half of the machine's memory)",
    )
    add(
        "--estimate",
        action="store_true",
        help="read the facts, say what the rest takes in memory, disk and time, and stop",
    )
    add("--restart", action="store_true", help="drop what an interrupted command left")
    add("--iterations", type=int, metavar="K", help="steps (default: as the run chose)")
    add("--step-size", type=float, metavar="H", help="size of a step (default: likewise)")
    add(
        "--start",
        choices=("random", "zeros", "prototype", "mixed"),
        help="where new entities start (default: likewise)",
    )
    add("--num-random", type=int, metavar="S", help="random sections (default: likewise)")
    add("--seed", type=int, help="of random starts")
    add(
        "--normalize-output",
        action=argparse.BooleanOptionalAction,
        help="scale vectors to the length that the model trains with (default: as the run chose)",
    )
    add(
        "--on-unknown-relation",
        choices=("error", "drop"),
        default="error",
        help="what to do with facts of relations that the model does not know (default: error)",
    )
    parser.add_file_options()


def _run(options: argparse.Namespace, out: Path, memory: int) -> int:
    from sheafprop.cli.command_parser import report_warnings
    from sheafprop.pretrained.mapped.cost_estimate import CostEstimate
    from sheafprop.pretrained.mapped.propagation_job import PropagationInput, PropagationJob
    from sheafprop.pretrained.model_folder import open_model_folder

    state = open_model_folder(options.model)
    given = PropagationInput(
        facts=[input_path(name).absolute() for name in options.facts],
        model=_manifest(Path(options.model).expanduser()).absolute(),
        options=file_options(options),
        settings=_settings(options, state.trained.settings),
        on_unknown_relation=options.on_unknown_relation,
    )
    job = PropagationJob(
        state, given, out, memory, restart=options.restart, overwrite=options.overwrite
    )

    def show(found: CostEstimate) -> None:
        report(found.summary())

    with report_warnings():
        if options.estimate:
            print(job.estimate().summary())
            return 0
        done = job.run(show)
    print(done)
    return 0


def _manifest(path: Path) -> Path:
    """The file that says what is in a model folder, or in that of a run."""
    inner = path / "model" / "manifest.json"
    return (
        inner
        if inner.exists() and not (path / "manifest.json").exists()
        else (path / "manifest.json")
    )


def _settings(options: argparse.Namespace, chosen: dict[str, Any]) -> Any:
    """The propagation that the run chose, with what was given instead."""
    from sheafprop.inductive.propagation_settings import PropagationSettings

    names = ("iterations", "step_size", "start", "num_random", "seed", "normalize_output")
    given = {name: getattr(options, name) for name in names}
    changes = {name: value for name, value in given.items() if value is not None}
    return replace(PropagationSettings.from_stored(chosen), **changes)
