"""``sheafprop propagate``: computes vectors of new entities out of core."""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sheafprop.cli.command_parser import (
    FACTS_HELP,
    CommandParser,
    file_options,
    folder,
    input_path,
    report,
)

if TYPE_CHECKING:
    from sheafprop.distributed import Ranks
    from sheafprop.pretrained.mapped.cost_estimate import CostEstimate
    from sheafprop.pretrained.mapped.propagation_job import PropagationInput
    from sheafprop.pretrained.model_state import ModelState


def run(words: Sequence[str]) -> int:
    """Propagates the vectors of a model through files of facts, in blocks of bounded memory."""
    parser = CommandParser(
        "propagate",
        "Compute vectors for the new entities of large files of facts within a memory limit, with "
        "the propagation settings selected by the run. An interrupted command resumes.",
        "sheafprop propagate facts.tsv --model runs/wikidata --memory 16GB --out vectors",
    )
    _add_options(parser)
    options = parser.parse_args(list(words))
    if options.out is None and not options.estimate:
        parser.error("give --out FOLDER, or --estimate")

    from sheafprop.distributed import process_group
    from sheafprop.distributed.process_group import TIMEOUT

    with process_group(timeout=TIMEOUT if options.timeout is None else options.timeout) as ranks:
        if options.out is not None:
            return _run(options, Path(options.out).expanduser(), ranks)
        with tempfile.TemporaryDirectory() as place:
            # All processes need the same folder, since they exchange files there.
            return _run(options, Path(ranks.gather(place)[0]) / "vectors", ranks)


def _add_options(parser: CommandParser) -> None:
    add = parser.add_argument
    add(
        "facts",
        nargs="+",
        help=f"{FACTS_HELP}; or a folder of 'sheafprop partition'",
    )
    add("--model", required=True, metavar="RUN", help="run folder or model folder")
    add("--out", metavar="FOLDER", type=folder, help="output folder of the vectors")
    add("--overwrite", action="store_true", help="replace an existing folder of vectors")
    add(
        "--memory",
        metavar="SIZE",
        help="memory limit of the process, such as 16GB (default: half of the machine's memory)",
    )
    add(
        "--estimate",
        action="store_true",
        help="read the facts, print the required memory, disk space and time, and stop",
    )
    add("--restart", action="store_true", help="discard the work of an interrupted command")
    add("--iterations", type=int, metavar="K", help="number of steps (default: of the run)")
    add("--step-size", type=float, metavar="H", help="step size (default: of the run)")
    add(
        "--start",
        choices=("random", "zeros", "prototype", "mixed"),
        help="initial vectors of new entities (default: of the run)",
    )
    add(
        "--num-random",
        type=int,
        metavar="S",
        help="number of random sections (default: of the run)",
    )
    add("--seed", type=int, help="seed of random initial vectors (default: of the run)")
    add(
        "--normalize-output",
        action=argparse.BooleanOptionalAction,
        help="scale vectors to the norm of the training (default: of the run)",
    )
    add(
        "--on-unknown-relation",
        choices=("error", "drop"),
        default="error",
        help="how to handle facts of relations unknown to the model (default: error)",
    )
    add(
        "--split",
        choices=("auto", "columns", "halo"),
        default="auto",
        help="how the processes of torchrun split the work: by columns, without communication, or "
        "by entities, one part of the graph each (halo); auto reports its choice (default: auto)",
    )
    add(
        "--timeout",
        type=float,
        metavar="S",
        help="timeout of a process that does not respond, in seconds (default: 300)",
    )
    parser.add_file_options()


def _run(options: argparse.Namespace, out: Path, ranks: "Ranks") -> int:
    from sheafprop.cli.command_parser import report_warnings
    from sheafprop.pretrained.mapped.part_folder import RECORD
    from sheafprop.pretrained.mapped.partitioned_job import PartitionedJob
    from sheafprop.pretrained.mapped.propagation_job import PropagationJob

    # An error on one rank is raised on all before the first collective, and printed once.
    memory, state, given, parts = ranks.run_together(lambda: _read_input(options, out, ranks))
    # Both hold hashes of the other files.
    records = [given.model, *([] if parts is None else [parts / RECORD])]
    content = ranks.run_together(lambda: [path.read_bytes() for path in records])
    ranks.compare("model, parts, settings and options", repr(vars(options)), given, *content)
    named: Any = dict(restart=options.restart, overwrite=options.overwrite, ranks=ranks)

    def make() -> "PropagationJob | PartitionedJob":
        if not _takes_halo(options, ranks, given, state, parts):
            return PropagationJob(state, given, out, memory, **named)
        assert parts is not None
        return PartitionedJob(state, given, parts, out, memory, **named)

    job = ranks.run_together(make)

    def show(found: "CostEstimate | str") -> None:
        if ranks.is_first:
            report(found if isinstance(found, str) else found.summary())

    if ranks.is_first and state.trained.features is not None:
        report(
            "note: propagate does not use the features of the model: new vectors are computed from "
            "facts alone ('sheafprop extend --features' uses features)"
        )
    with report_warnings():
        if options.estimate:
            found = job.estimate()
            if ranks.is_first and found is not None:
                print(found if isinstance(found, str) else found.summary())
            return 0
        done = job.run(show)
    if ranks.is_first:
        print(done)
    return 0


def _read_input(
    options: argparse.Namespace, out: Path, ranks: "Ranks"
) -> "tuple[int, ModelState, PropagationInput, Path | None]":
    """Returns the memory limit, the model, the input, and the folder of parts if there is one."""
    from sheafprop.errors import DataError
    from sheafprop.pretrained.mapped.cost_estimate import parse_bytes, physical_memory
    from sheafprop.pretrained.mapped.part_folder import is_part_folder, read_parts
    from sheafprop.pretrained.mapped.propagation_job import PropagationInput
    from sheafprop.pretrained.mapped.vector_folder import check_vector_target
    from sheafprop.pretrained.model_folder import find_model_folder, open_model_folder

    if options.out is not None:
        check_vector_target(out, options.overwrite)
    memory = physical_memory() // (2 * ranks.hosts.count(ranks.host))
    if options.memory is not None:
        memory = parse_bytes(options.memory)
    state = open_model_folder(options.model)
    files = [input_path(name).absolute() for name in options.facts]
    reading, parts = file_options(options), None
    if len(files) == 1 and is_part_folder(files[0]):
        parts = files[0]
        for name, value in reading.items():
            if value is not None:
                option = {"format": "input-format"}.get(name, name)
                raise DataError(
                    f"--{option} does not apply to the parts in '{parts}'; give it to 'sheafprop "
                    "partition'"
                )
        about = read_parts(parts)
        files = [Path(name) for name in about["inputs"]]
        reading = {**about["options"], "columns": _columns(about["options"]["columns"])}
    given = PropagationInput(
        facts=files,
        model=(find_model_folder(options.model) / "manifest.json").absolute(),
        options=reading,
        settings=_settings(options, state.trained.settings),
        on_unknown_relation=options.on_unknown_relation,
    )
    return memory, state, given, parts


def _takes_halo(
    options: argparse.Namespace,
    ranks: "Ranks",
    given: "PropagationInput",
    state: "ModelState",
    parts: Path | None,
) -> bool:
    """Whether ranks split entities instead of columns; reports the reason."""
    from sheafprop.errors import DataError
    from sheafprop.pretrained.mapped.cost_estimate import physical_memory
    from sheafprop.pretrained.mapped.part_folder import read_parts

    if options.split == "halo" and parts is None:
        raise DataError(
            "--split halo needs a folder of parts: create it by 'sheafprop partition FACTS --parts "
            f"{ranks.size} --out PARTS'"
        )
    if options.split != "auto" or (parts is None and ranks.size == 1):
        return bool(options.split == "halo")
    columns = given.settings.num_sections * state.kge.hidden_channels
    missing = [path for path in given.facts if not path.is_file()]
    hosts = len(set(ranks.hosts))
    if not state.trained.sheaf.takes_rows:
        why = f"the maps of {state.kge.name} mix columns"
    elif parts is None:
        why = ""
    elif missing:
        why = f"'{missing[0]}', from which the parts were created, is missing"
    elif hosts > 1:
        why = f"the ranks are on {hosts} hosts, which may not share a disk for the messages"
    elif columns < ranks.size:
        why = f"there are {columns} columns for {ranks.size} ranks"
    elif 16 * read_parts(parts)["facts"] > physical_memory() // 2:
        why = "the messages of all facts do not fit into half of the memory"
    else:
        why = ""
    if ranks.is_first and ranks.size > 1:
        column = "all ranks read the messages of all facts and exchange nothing"
        report(f"split: halo, since {why}" if why else f"split: columns; {column}")
    if why and parts is None:
        raise DataError(
            f"{why}: create parts by 'sheafprop partition FACTS --parts {ranks.size} --out PARTS'"
        )
    return bool(why)


def _columns(stored: Any) -> Any:
    return tuple(stored) if isinstance(stored, list) else stored


def _settings(options: argparse.Namespace, chosen: dict[str, Any]) -> Any:
    """Returns the propagation settings of the run, overridden by the options."""
    from sheafprop.inductive.propagation_settings import PropagationSettings

    names = ("iterations", "step_size", "start", "num_random", "seed", "normalize_output")
    given = {name: getattr(options, name) for name in names}
    changes = {name: value for name, value in given.items() if value is not None}
    return replace(PropagationSettings.from_stored(chosen), **changes)
