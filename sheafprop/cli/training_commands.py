"""``fit``, ``validate`` and ``test``, up to the point where Lightning is needed.

Arguments, configurations and the data's files are checked here, before anything large is imported.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sheafprop.cli.command_parser import LiteralParser, add_file_options, report_warnings
from sheafprop.cli.run_folder import RunFolder, own_classes, read_run, read_run_to_continue
from sheafprop.config_files import dump_yaml, load_config, merge, nest, parse_option
from sheafprop.data import build_dataset
from sheafprop.errors import DataError

if TYPE_CHECKING:
    from sheafprop.distributed import Ranks

#: How the user's own files are read; also without the section, as in every other command.
_READING = ("data.columns", "data.header", "data.delimiter", "data.input_format", "data.prefixes")
#: What a data set is built from, and what the run folder is called after.
_OPTIONS = (
    "data.dataset",
    "data.name",
    "data.root",
    "data.mode",
    "data.hold_out",
    "data.on_unknown_relation",
    "data.seed",
    *_READING,
    "model.kge",
    "seed_everything",
)
_ALL = "all"

_HELP = {
    "fit": """\
usage: sheafprop fit --config FILE [--config FILE ...] [options]
       sheafprop fit --resume RUN

Trains a model on the training graph, selects the propagation settings on the validation triples of
the inference graph (without them, on training entities that are treated as new), and saves both in
a run folder.

options:
  --config FILE             a configuration; later ones override earlier ones. Those of the package
                            are given by name: experiment/folder, experiment/grail,
                            experiment/umls_rotate, data/fb237_v1, model/transe, logger/csv ...
  --data.root FOLDER        folder with your files, or with those of the benchmark
  --data.mode MODE          semi-inductive: entities of the training graph are fixed;
                            fully-inductive: all entities of the inference graph are new
  --columns H,R,T           columns of head, relation and tail, by number or name
  --header yes|no           whether the first line names the columns (default: inferred)
  --delimiter C, --input-format FORMAT, --prefixes FILE
                            format of the files (default: inferred from content and name)
  --data.on_unknown_relation drop
                            drop triples of relations without training triples
  --data.features FILE      numbers, types and text embeddings of entities, used for new ones
  --model.hidden_channels N dimension of the vectors
  --model.lr X              learning rate
  --model.sparse true|false update only the rows of a batch (default: above 200 000 entities)
  --model.table sharded     under torchrun: shard the entity table by rows
  --timeout SECONDS         under torchrun: timeout of a process that does not respond (300)
  --model.optimizer NAME    adam, adagrad, sgd, or rowwise_adagrad (needs least memory)
  --trainer.max_epochs N    number of epochs (experiment/folder: by the size of the graph)
  --seed_everything N       seed of parameters, batches and random starts (0)
  --run.group FOLDER        parent of the run folder (runs/DATA)
  --run.name NAME           name of the run folder (name of the model)
  --run.callbacks replace   replace the callbacks of the configuration (default: add to them)
  --resume RUN              resume an interrupted run, or train a finished one for more epochs (a
                            larger --trainer.max_epochs, which the learning rate schedule spans)
  --trust MODULE            with --resume: allow the run to import your classes from this module
  --help=all                all options

example:
  sheafprop fit --config experiment/folder --data.root my_files --data.mode semi-inductive
""",
    "validate": """\
usage: sheafprop validate --run RUN [options]

Propagates with a finished run and ranks the validation triples of the inference graph.

options:
  --run RUN                 the run folder
  --data.root FOLDER        the data, if it has moved
  --trust MODULE            allow the run to import your classes from this module
  --help=all                all options

example:
  sheafprop validate --run runs/umls/rotate
""",
    "test": """\
usage: sheafprop test --run RUN [options]

Propagates with a finished run, ranks the test triples once, and writes the report of the run and
of its group.

options:
  --run RUN                 the run folder
  --data.root FOLDER        the data, if it has moved. Results on other data are written to a
                            subfolder of the run; their propagation settings are selected on
                            their own validation triples or, without these, are those of the run
  --model.protocols LIST    list of protocols: full, sampled50, merged, strict; the results
                            replace earlier ones of the run ('[full, sampled50]')
  --reselect                repeat the selection on validation instead of using that of 'fit'
  --trust MODULE            allow the run to import your classes from this module
  --model.reference true    also train a reference model on the inference graph itself
  --help=all                all options

example:
  sheafprop test --run runs/umls/rotate
""",
}


def run(command: str, words: Sequence[str]) -> int:
    """Runs one of Lightning's commands, under torchrun by all its processes together."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return _run(command, words, None)
    from sheafprop.distributed.process_group import TIMEOUT, choose_device, process_group

    parser = LiteralParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--timeout", type=float, default=TIMEOUT)
    own, words = parser.parse_known_args(list(words))
    # The first process has work to do at the end that the others do not wait for.
    with (
        process_group(device=choose_device(), timeout=own.timeout, wait=False) as ranks,
        ranks.watch(command),
    ):
        return _run(command, words, ranks if ranks.size > 1 else None)


def _run(command: str, words: Sequence[str], ranks: "Ranks | None") -> int:
    parser = LiteralParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-h", "--help", nargs="?", const="short", choices=["short", _ALL])
    parser.add_argument("--config", action="append", default=[])
    parser.add_argument("--run")
    parser.add_argument("--resume")
    parser.add_argument("--run.group", dest="group")
    parser.add_argument("--run.name", dest="name")
    parser.add_argument("--run.callbacks", dest="callbacks", choices=["add", "replace"])
    parser.add_argument("--trust", action="append", default=[])
    parser.add_argument("--reselect", action="store_true")
    for option in _OPTIONS:
        if option not in _READING:
            parser.add_argument(f"--{option}", dest=option)
    add_file_options(parser, "data")
    own, rest = parser.parse_known_args(list(words))
    if own.help == "short":
        print(_HELP[command], end="")
        return 0
    if own.help == _ALL:
        print(_HELP[command] + "\nEvery option of the configuration:\n")
        from sheafprop.cli.lightning import SheafCLI

        SheafCLI(RunFolder("."), "", args=[command, "--help"])
    if own.resume and command != "fit":
        raise DataError(f"--resume goes with fit (got {command})")
    finished = own.resume or own.run
    if finished and own.config:
        raise DataError("give --config for a new run, or the folder of a run there is, not both")
    if command != "fit" and not own.run:
        raise DataError(f"'sheafprop {command}' needs --run FOLDER, the folder of a finished fit")
    if command == "fit" and own.run:
        raise DataError("fit makes its own run folder; to go on with one, give --resume FOLDER")
    if own.trust and not finished:
        raise DataError("--trust goes with the folder of a run: a new one imports what it is given")
    if own.callbacks and command != "fit":
        raise DataError(f"--run.callbacks goes with fit (got {command})")
    if own.reselect and command != "test":
        raise DataError(f"--reselect goes with test (got {command})")
    if finished:
        if own.group is not None or own.name is not None:
            raise DataError(
                "--run.group and --run.name say where a new run is made; one that is there stays: "
                "move its folder instead"
            )
        folder = RunFolder(finished, ranks=ranks)
        stored = read_run_to_continue(folder.path, own.trust)
        config = merge(stored, _nest_options(vars(own)))
        same = config == stored and not rest
        checkpoint = _checkpoint(folder.path, bool(own.resume))
    else:
        if not own.config:
            raise DataError(
                "'sheafprop fit' needs --config: experiment/folder with --data.root FOLDER for "
                "files of your own, or a file, for example configs/experiment/umls_rotate.yaml"
            )
        config, word = {}, {"run": {"callbacks": own.callbacks}} if own.callbacks else {}
        for name in own.config:
            config = merge(config, merge(load_config(name), word))
        config = merge(config, _nest_options(vars(own)))
        place = config.pop("run", {})
        own.callbacks = own.callbacks or place.get("callbacks")
        folder = _new_folder(place, config, own.group, own.name, ranks)
        if ranks is not None and (begun := folder.find_restarted()) is not None:
            # Classes that are the user's own are those of the options that began it.
            trusted = [f"--trust={path}" for path in own_classes(read_run(begun))]
            return _run(command, ["--resume", str(begun), *trusted], ranks)
    if own.callbacks != "replace":
        rest = _append_callbacks(rest)
    check_data(config.get("data", {}), rest)
    digest = config_digest(config, rest)
    if finished and same:
        digest = (config.get("report") or {}).get("config_hash") or digest
    if command != "fit":
        rest = ["--verbose", "false", *rest]

    from sheafprop.cli.lightning import launch  # some seconds

    # A stored text such as 12e3 stays one as JSON; in a file of the user it is meant as a number.
    if finished:
        text = json.dumps(config | {"ckpt_path": str(checkpoint)}, default=str)
    else:
        text = dump_yaml(config)
    launch(
        command,
        folder,
        digest,
        ["--config", text, *rest],
        reselect=own.reselect,
        replace_callbacks=own.callbacks == "replace",
    )
    return 0


def _append_callbacks(words: list[str]) -> list[str]:
    """``--trainer.callbacks X`` in the parser's words for adding, instead of replacing."""
    option, out, words = "--trainer.callbacks", [], list(words)
    while words:
        name, equals, value = words.pop(0).partition("=")
        if name not in (option, f"{option}+"):
            out.append(f"{name}{equals}{value}")
            continue
        if not equals and words:
            value = words.pop(0)
        if value in ("", "null", "[]", "{}"):
            raise DataError(
                f"callbacks are added to those of the configuration: {option} {value} needs "
                "'--run.callbacks replace' too"
            )
        out.append(f"{option}+={value}")
    return out


def config_digest(config: dict[str, Any], rest: Sequence[str] = ()) -> str:
    """A short hash of a configuration, without its seed, and of further options."""
    hashed = {key: value for key, value in config.items() if key != "seed_everything"}
    text = json.dumps([hashed, sorted(rest)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _new_folder(
    place: dict[str, Any],
    config: dict[str, Any],
    group: str | None,
    name: str | None,
    ranks: "Ranks | None",
) -> RunFolder:
    data, model = config.get("data", {}), config.get("model", {})
    source = data.get("name")
    if data.get("dataset") == "folder" or not source:
        source = Path(os.path.abspath(data.get("root") or ".")).name
    parent = Path(group or place.get("group") or f"runs/{source}")
    return RunFolder(
        parent / (name or place.get("name") or model.get("kge", "run")), new=True, ranks=ranks
    )


def _checkpoint(folder: Path, resumed: bool) -> Path:
    name = "last" if resumed else "best"
    path = folder / "checkpoints" / f"{name}.ckpt"
    if not path.is_file():
        raise DataError(f"{folder} has no checkpoints/{name}.ckpt: did 'fit' finish?")
    return path


def check_data(options: dict[str, Any], rest: Sequence[str] = ()) -> None:
    """Reads the data's files early; the parser reports what is wrong with an option itself."""
    if any(word == "--data" or word.startswith("--data=") for word in rest):
        return  # given as a whole, in a way only the parser understands
    wanted = {name.removeprefix("data.") for name in _OPTIONS if name.startswith("data.")}
    known = {key: value for key, value in options.items() if key in wanted}
    try:
        dataset = build_dataset(**known)
    except (TypeError, ValueError):
        return
    with report_warnings(once=True):
        dataset.check()


def _nest_options(options: dict[str, Any]) -> dict[str, Any]:
    """``{"data.name": "umls"}`` as ``{"data": {"name": "umls"}}``; without those that are unset."""
    # Numbers as YAML reads them; names and places as they are typed.
    plain = ("data.root", "data.hold_out", "data.seed", "seed_everything")
    given = {name: options[name] for name in _OPTIONS if options[name] is not None}
    return nest({k: parse_option(k, v) if k in plain else v for k, v in given.items()})
