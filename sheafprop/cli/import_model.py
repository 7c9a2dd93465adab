"""``sheafprop import``: models of other libraries."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sheafprop.cli.command_parser import (
    CommandParser,
    read_facts,
    read_text,
    report,
    report_warnings,
)
from sheafprop.errors import DataError

if TYPE_CHECKING:
    from sheafprop.pretrained.stored_model import StoredModel
    from sheafprop.pretrained.vector_export import RelationFile

#: The relation parameters of each model, as options, as the model calls them, and what they are.
_PARAMETERS = {
    "relation_vectors": (
        "rel_emb.weight",
        "[R, k], translations of transe and transr, phases of rotate in radians",
    ),
    "relation_maps": ("rel_map", "[R, k, d], of transr"),
    "head_maps": ("rel_map_head", "[R, k, d], of se"),
    "tail_maps": ("rel_map_tail", "[R, k, d], of se"),
}


#: Engines whose tables are read a block at a time.
_ENGINES = ("dglke", "pbg", "graphstorm")

#: Libraries whose files hold or lie beside their labels.
_LIBRARIES = ("openke", "libkge", "ampligraph")

#: What checkpoints call the state dict of the model.
_STATES = ("state_dict", "model_state_dict", "model")


def run(words: Sequence[str]) -> int:
    """Converts a model of another library, or plain arrays, to a model folder."""
    parser = CommandParser(
        "import",
        "Convert a trained model of another library, or plain arrays, to a model folder.",
        "sheafprop import pykeen results/transe --out model",
    )
    parser.add_argument("source", choices=("pykeen", "pyg", *_LIBRARIES, *_ENGINES, "arrays"))
    parser.add_argument(
        "path",
        nargs="?",
        help="pykeen: the pipeline folder; pyg: the saved model or state dict; openke, libkge, "
        "ampligraph: the checkpoint, or what save_model wrote; dglke: what "
        "--save_path was; pbg: what checkpoint_path was; graphstorm: what save_embed_path was",
    )
    parser.add_folder("the new model folder", "an existing model")
    parser.add_argument(
        "--entities",
        metavar="FILE",
        help="labels, one per line, or a JSON list; dglke: ids and labels, if the files named in "
        "the configuration are missing; pbg: the folder of entity_path, if it has moved",
    )
    parser.add_argument(
        "--relations", metavar="FILE", help="labels, one per line, or a JSON list; dglke: as above"
    )
    parser.add_argument(
        "--config", metavar="FILE", help="graphstorm: the training YAML, if it is elsewhere"
    )
    parser.add_argument(
        "--data",
        metavar="FOLDER",
        help="openke, libkge: the data folder, with the labels of the ids and the training "
        "triples (default: that of the checkpoint)",
    )
    parser.add_argument(
        "--norm-flag",
        choices=("yes", "no"),
        help="openke: the norm_flag of the model, which is not stored (default: yes)",
    )
    parser.add_argument(
        "--operator-side",
        choices=("lhs", "rhs"),
        default="lhs",
        help="pbg: the operator of dynamic relations to import (default: lhs, which ranks tails)",
    )
    parser.add_argument("--facts", metavar="FILE", nargs="+", help="the training triples")
    parser.add_argument(
        "--model",
        help="arrays: transe, rotate, transr, se; pyg: transe or rotate, needed for a state dict; "
        "openke: needed for transe",
    )
    parser.add_argument(
        "--layout",
        choices=("halves", "pairs"),
        help="arrays of rotate: all real parts first (RotatE's authors, DGL-KE, OpenKE, LibKGE), "
        "or alternating real and imaginary parts (PyKEEN)",
    )
    parser.add_argument(
        "--phase-scale",
        type=float,
        metavar="X",
        help="arrays of rotate: factor that converts the phases to radians, such as pi divided by "
        "the range of the embeddings",
    )
    parser.add_argument(
        "--vectors",
        metavar="FILE",
        help="arrays: [N, d], as .npy, or .safetensors (FILE.safetensors:NAME of several tensors)",
    )
    for name, (_, what) in _PARAMETERS.items():
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, metavar="FILE", help=f"arrays: {what}")
    parser.add_argument(
        "--relation-parameters",
        metavar="FILE",
        help="arrays: a file of 'export --relations', which names the model, its norm and layout; "
        "labels are read from FILE.labels.json, as for the vectors, unless given",
    )
    parser.add_argument("-p", type=float, help="the norm of the score")
    parser.add_argument("--keep-unused", action="store_true", help="keep entities without facts")
    parser.add_file_options()
    options = parser.parse_args(list(words))
    if options.source != "arrays" and options.path is None:
        parser.error(f"{options.source} needs a path")

    from sheafprop.pretrained.model_folder import check_model_target
    from sheafprop.pretrained.sheaf_model import SheafModel

    check_model_target(options.out, options.overwrite)
    with report_warnings():
        model = SheafModel(_import(options))
    model.save(options.out, overwrite=options.overwrite)
    report(repr(model))
    print(options.out)
    return 0


def _import(options: argparse.Namespace) -> "StoredModel":
    from sheafprop.data.label_checks import lookalike_notes
    from sheafprop.pretrained.importers.arrays import import_arrays
    from sheafprop.pretrained.importers.pyg import import_pyg
    from sheafprop.pretrained.importers.pykeen import import_pykeen

    if options.source == "pykeen":
        return import_pykeen(options.path, keep_unused=options.keep_unused)
    if options.source in _LIBRARIES:
        return _import_library(options)
    if options.source in _ENGINES:
        return _import_engine(options)
    exported = _exported_relations(options)
    for name in ("entities", "relations"):
        if getattr(options, name) is None:
            raise DataError(f"{options.source} needs --{name} FILE, the labels in order of ids")
    entities, relations = _labels(options.entities), _labels(options.relations)
    for note in lookalike_notes(entities, relations):
        report(f"note: {note}")
    common: dict[str, Any] = {
        "entities": entities,
        "relations": relations,
        "facts": read_facts(options.facts, options, relations) if options.facts else None,
        "keep_unused": options.keep_unused,
    }
    if options.source == "pyg":
        return import_pyg(_state(options.path), kge=options.model, p=options.p, **common)
    if options.vectors is None:
        raise DataError("arrays needs --vectors FILE")
    if options.model is None:
        raise DataError("arrays needs --model, such as rotate: arrays do not say what they are of")
    try:
        return import_arrays(
            options.model,
            vectors=_vectors(options.vectors),
            parameters=exported.parameters
            if exported
            else {
                parameter: _array(getattr(options, name))
                for name, (parameter, _) in _PARAMETERS.items()
                if getattr(options, name) is not None
            },
            layout=options.layout,
            phase_scale=options.phase_scale,
            p=2.0 if options.p is None else options.p,
            squared=exported is not None and exported.squared,
            **common,
        )
    except ValueError as error:
        # In the words of the command line.
        text = str(error).replace("'node_emb.weight'", "--vectors")
        for name, (parameter, _) in _PARAMETERS.items():
            text = text.replace(f"'{parameter}'", f"--{name.replace('_', '-')}")
        raise DataError(text) from error


def _import_library(options: argparse.Namespace) -> "StoredModel":
    from sheafprop.pretrained.importers import import_ampligraph, import_libkge, import_openke

    common: dict[str, Any] = {
        "facts": read_facts(options.facts, options) if options.facts else None,
        "keep_unused": options.keep_unused,
    }
    if options.source == "ampligraph":
        return import_ampligraph(options.path, **common)
    if options.source == "libkge":
        return import_libkge(options.path, data=options.data, **common)
    return import_openke(
        options.path,
        data=options.data,
        model=options.model,
        p=options.p,
        normalized={None: None, "yes": True, "no": False}[options.norm_flag],
        **common,
    )


def _exported_relations(options: argparse.Namespace) -> "RelationFile | None":
    """The file of relations that was given, and what it says of the model in the options."""
    if options.relation_parameters is None:
        return None
    from sheafprop.files import label_file
    from sheafprop.pretrained.vector_export import read_relation_file

    found = read_relation_file(options.relation_parameters)
    names = (*_PARAMETERS, "model", "layout", "phase_scale")
    given = [f"--{n.replace('_', '-')}" for n in names if getattr(options, n) is not None]
    if options.source != "arrays" or given:
        what = options.source if options.source != "arrays" else given[0]
        raise DataError(f"--relation-parameters says all of the model: give it without {what}")
    options.model = found.model
    options.p = found.p if options.p is None else options.p
    options.layout = "pairs" if found.model == "rotate" else None
    places = {"entities": options.vectors, "relations": options.relation_parameters}
    for name, place in places.items():
        if getattr(options, name) is None and place is not None:
            setattr(options, name, str(label_file(Path(place).expanduser())))
    return found


def _import_engine(options: argparse.Namespace) -> "StoredModel":
    from sheafprop.pretrained.importers.dglke import import_dglke
    from sheafprop.pretrained.importers.graphstorm import import_graphstorm
    from sheafprop.pretrained.importers.pbg import import_pbg

    # On the disk of the model, which takes as much.
    scratch = Path(options.out).absolute().parent
    while not scratch.is_dir():
        scratch = scratch.parent
    common: dict[str, Any] = {
        "facts": read_facts(options.facts, options) if options.facts else None,
        "keep_unused": options.keep_unused,
        "scratch": scratch,
    }
    if options.source == "dglke":
        labels = {"entities": options.entities, "relations": options.relations}
        return import_dglke(options.path, **labels, **common)
    if options.source == "pbg":
        return import_pbg(
            options.path,
            entity_path=options.entities,
            operator_side=options.operator_side,
            **common,
        )
    return import_graphstorm(options.path, config=options.config, **common)


def _labels(name: str) -> list[str]:
    from sheafprop.data.triples import as_label

    text = read_text(name, "labels")
    if name.endswith(".json"):
        try:
            labels = json.loads(text)
        except ValueError as error:
            raise DataError(f"{name}: this is not JSON ({error})") from error
        if not isinstance(labels, list):
            raise DataError(f"{name}: expected a JSON list of labels")
        return [as_label(label, f"{name}: a label") for label in labels]
    lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    for number, line in enumerate(lines, 1):
        if not line or "\t" in line:
            what = "a tab: is this a table of labels and ids?" if line else "no label"
            raise DataError(f"{name}, line {number}: expected one label a line (got {what})")
    return lines


def _state(name: str) -> Any:
    import torch

    from sheafprop.pretrained.importers.inert_unpickler import Inert, load_inert, state_of

    loaded = load_inert(Path(name).expanduser())
    if isinstance(loaded, Inert) and state_of(loaded):
        return loaded
    # Checkpoints of training scripts hold the state dict beside other things.
    inner = [loaded[key] for key in _STATES if isinstance(loaded, dict) and key in loaded]
    state = inner[0] if len(inner) == 1 else loaded
    is_state = isinstance(state, dict) and state
    if not is_state or not all(isinstance(v, torch.Tensor) for v in state.values()):
        held = f"a dictionary of {sorted(map(str, loaded))}" if isinstance(loaded, dict) else "else"
        raise DataError(
            f"{name}: expected a state dict, or a model, that torch.save wrote (got {held})"
        )
    return state


def _array(name: str) -> Any:
    """The array of a .npy file, or a tensor of a .safetensors file: its only one, or FILE:NAME."""
    import numpy as np

    if ".safetensors" in name:
        return _tensor(name)
    try:
        return np.load(Path(name).expanduser(), allow_pickle=False)
    except OSError as error:
        raise DataError(f"{name}: cannot be read ({error.strerror or error})") from error
    except (ValueError, EOFError) as error:
        raise DataError(f"{name}: this is not an array of numbers in the .npy format") from error


def _tensor(name: str) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file, _, key = name.partition(".safetensors")
    path = Path(f"{file}.safetensors").expanduser()
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path}: cannot be read as safetensors ({error})") from error
    names = [key[1:]] if key else list(tensors)
    if len(names) != 1 or names[0] not in tensors:
        raise DataError(
            f"{path} holds the tensors {', '.join(sorted(tensors))}: say which, as {path}:NAME"
        )
    return tensors[names[0]]


def _vectors(name: str) -> Any:
    """Rows of real numbers, from a matrix or from the vectors that ``export`` writes."""
    rows = _array(name)
    if rows.ndim in (3, 4) and rows.shape[1] == 1:
        return rows.reshape(len(rows), -1)
    if rows.ndim > 2:
        raise DataError(f"{name}: a vector for each entity is needed (got {list(rows.shape)})")
    return rows
