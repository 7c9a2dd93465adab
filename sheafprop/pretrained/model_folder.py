"""A trained model as a folder of plain files; loading it checks every file and runs no code.

===================== ==============================================================================
``model.safetensors`` real tensors only: relation parameters, prototypes, residual variances,
                      parameters of episodes, the map of features, and the vectors as
                      ``[N, s, d]``, of trained and of added entities; complex ones as
                      ``[N, s, d, 2]``
``facts.npy``         the observed triples, int64 ``[m, 3]``
``entities.jsonl``    one ``{"label": ..., "origin": ...}`` per entity
``relations.jsonl``   one ``{"label": ...}`` per relation, ``"origin": "fitted"`` beside it where
                      it was not trained
``model.json``        the model's name and arguments, the chosen propagation, section weights,
                      settings of episodes and proximity, the calibration, scales of features
``metrics.json``      what was measured
``manifest.json``     format version, library version, size and SHA-256 of every other file
===================== ==============================================================================

The folder of a large model has ``vectors/``, ``labels/`` and ``facts/`` in place of the vectors in
``model.safetensors``, ``facts.npy`` and ``entities.jsonl``: mapped files, see
:mod:`~sheafprop.pretrained.mapped_folder`.

Long because what is written and what is read of every file stand together.
"""

import hashlib
import json
import os
import shlex
from dataclasses import fields, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from sheafprop.checks import check_choice
from sheafprop.data import Vocabulary
from sheafprop.errors import FormatError
from sheafprop.files import (
    check_folder_target,
    check_plain,
    json_lines,
    new_folder,
    previous_folder,
    storage_errors,
    write_bytes,
    write_json,
)
from sheafprop.inductive.episode_model import EpisodeModel
from sheafprop.inductive.proximity_scorer import ProximitySettings
from sheafprop.kge import build_model
from sheafprop.kge.base import TableSummary
from sheafprop.nn import RelationPrototypes
from sheafprop.pretrained.entity_features import PREFIX, EntityFeatures
from sheafprop.pretrained.mapped_folder import PART, TABLE_TYPES, Record, open_parts, write_parts
from sheafprop.pretrained.model_calibration import ModelCalibration
from sheafprop.pretrained.model_state import ModelState, real_rows
from sheafprop.pretrained.stored_model import ModelHead, StoredModel
from sheafprop.pretrained.tensor_file import StoredFile
from sheafprop.version import __version__

FORMAT_VERSION = 4
#: Format 1 had no added entities; their trained vectors were a parameter among the others. Format 3
#: has some of the optional parts, and format 2 none of them. Format 4 has mapped files.
_READABLE = (1, 2, 3, 4)
_OPTIONAL = ("episodes", "proximity", "calibration", "features")
#: From so many entities on, a model is written in format 4.
LARGE = 200_000

Verify = Literal["sizes", "full"]
Layout = Literal["auto", "plain", "mapped"]

_TRAINED, _EXTENDED = "vectors.trained", "vectors.extended"
_EPISODES = "episodes."
_TABLE = "node_emb.weight"
_MANIFEST = "manifest.json"
_AGAIN = "; copy or write the model folder again"
# Files of every folder, and of small models.
_COMMON = ("model.safetensors", "relations.jsonl", "model.json", "metrics.json")
_PLAIN = ("facts.npy", "entities.jsonl")


def write_model_folder(
    folder: str | PathLike[str],
    model: StoredModel | ModelState,
    *,
    overwrite: bool = False,
    layout: Layout = "auto",
) -> Path:
    """Writes a model folder atomically.

    All files are written to a temporary folder next to it, which is renamed at the end. Between the
    two renames that replace an old folder, the old folder is named ``.NAME.previous``. Unchanged
    files of a mapped model are hard-linked if the file system supports it, and copied otherwise.

    Args:
        folder: The folder; missing parents are created.
        model (StoredModel or ModelState): The model.
        overwrite (bool, optional): Whether to replace an existing model folder. (default:
            :obj:`False`)
        layout (str, optional): ``"plain"`` for formats 2 and 3, ``"mapped"`` for format 4. By
            default, models with 200 000 or more entities are mapped, and mapped models stay mapped.

    Returns:
        Path: The folder.

    Raises:
        ValueError: If a value is not plain, the folder exists and ``overwrite`` is False, or it
            contains files that are not part of a model.
        StorageError: If a file cannot be written; an existing folder then does not change.
    """
    check_choice("layout", layout, ("auto", "plain", "mapped"))
    target = Path(os.path.realpath(folder))
    head = model if isinstance(model, StoredModel) else model.trained
    check_plain(head.settings, "settings")
    check_plain(head.metrics, "metrics")
    with storage_errors(folder, "written"):
        check_model_target(target, overwrite)
        if layout == "mapped" or (layout == "auto" and _is_large(model)):
            state = ModelState.from_stored(model) if isinstance(model, StoredModel) else model
            with new_folder(target, replace=overwrite) as temporary:
                files = write_parts(temporary, state)
                head = replace(state.trained, section_weight=state.section_weight)
                more = {
                    "num_trained_facts": state.num_trained_facts,
                    "num_facts": len(state.facts),
                    "table": _describe_table(state),
                }
                _write_common(temporary, head, _head_tensors(head), more, 4, files)
        else:
            stored = model if isinstance(model, StoredModel) else model.stored()
            with new_folder(target, replace=overwrite) as temporary:
                facts = partial(np.save, arr=stored.facts.cpu().numpy(), allow_pickle=False)
                write_bytes(temporary / "facts.npy", facts)
                rows = zip(stored.entities.labels, stored.origins, strict=True)
                lines = json_lines({"label": label, "origin": origin} for label, origin in rows)
                write_bytes(temporary / "entities.jsonl", lines)
                files = {name: _fingerprint(temporary / name) for name in _PLAIN}
                tensors = _head_tensors(stored) | _vector_tensors(stored)
                version = 3 if _additions(stored) else 2
                _write_common(temporary, stored, tensors, {}, version, files)
    return Path(folder)


def _is_large(model: StoredModel | ModelState) -> bool:
    if isinstance(model, StoredModel):
        return len(model.entities) >= LARGE
    return model.is_mapped or model.num_entities >= LARGE


def load_model_folder(folder: str | PathLike[str], *, verify: Verify | None = None) -> StoredModel:
    """Reads a model folder, or that of a run, into memory; see :func:`open_model_folder`.

    Raises:
        FormatError: If a file is missing, truncated, modified or of another format version.
        StorageError: If a file cannot be read.
    """
    found = _read(folder, verify)
    return found if isinstance(found, StoredModel) else found.stored()


def open_model_folder(folder: str | PathLike[str], *, verify: Verify | None = None) -> ModelState:
    """Opens a model folder, or that of a run, after checking every file against the manifest.

    Files of format 4 are mapped: what is not looked at is not read.

    Args:
        folder: The folder.
        verify (str, optional): ``"full"`` compares the SHA-256 of every file, and reads the mapped
            ones whole; ``"sizes"`` compares the size of the mapped ones only. What is read later is
            checked to be in range either way. (default: ``"sizes"`` for format 4, ``"full"`` for
            the others, which are read whole)

    Raises:
        FormatError: If a file is missing, truncated, modified or of another format version.
        StorageError: If a file cannot be read.
    """
    found = _read(folder, verify)
    return ModelState.from_stored(found) if isinstance(found, StoredModel) else found


def find_model_folder(folder: str | PathLike[str]) -> Path:
    """The folder itself, or the model folder of a run."""
    path = Path(folder).expanduser()
    is_run = not (path / _MANIFEST).exists() and (path / "model").is_dir()
    return path / "model" if is_run else path


def _read(folder: str | PathLike[str], verify: Verify | None) -> StoredModel | ModelState:
    if verify is not None:
        check_choice("verify", verify, ("sizes", "full"))
    path = find_model_folder(folder)
    with storage_errors(path, "read"):
        version, files = _check_manifest(path, verify)
        try:
            if version < 4:
                return _read_model(path, version)
            return _open_model(path, files, verify == "full")
        except FormatError:
            raise
        except (
            ArithmeticError,
            AttributeError,
            EOFError,
            KeyError,
            RuntimeError,
            SafetensorError,
            TypeError,
            ValueError,
        ) as error:
            raise FormatError(
                f"'{path}' agrees with its manifest but holds no model that this version of "
                f"sheafprop reads: {error}"
            ) from error


# Writing -----------------------------------------------------------------------------------------


def _write_common(
    folder: Path,
    head: ModelHead,
    tensors: dict[str, Tensor],
    more: dict[str, Any],
    version: int,
    files: Record,
) -> None:
    """Writes what every folder has, and the manifest at the end."""
    write_bytes(folder / "model.safetensors", save(tensors))
    origins = [{} if o == "trained" else {"origin": o} for o in head.relation_origins()]
    rows = ({"label": n} | o for n, o in zip(head.relations.labels, origins, strict=True))
    write_bytes(folder / "relations.jsonl", json_lines(rows))
    description = {
        "model": head.model.name,
        "config": head.model.config(),
        "settings": head.settings,
        "section_weight": list(head.section_weight),
    }
    write_json(folder / "model.json", description | _additions(head) | more)
    write_json(folder / "metrics.json", head.metrics)
    files = files | {name: _fingerprint(folder / name) for name in _COMMON}
    write_json(
        folder / _MANIFEST,
        {
            "format": version,
            "library": f"sheafprop {__version__}",
            "files": {
                name: {"size": size, "sha256": digest}
                for name, (size, digest) in sorted(files.items())
            },
        },
    )


def _additions(head: ModelHead) -> dict[str, Any]:
    """What only some models have."""
    more: dict[str, Any] = {}
    if head.episodes is not None:
        more["episodes"] = head.episodes.settings.to_dict()
    if head.proximity is not None:
        more["proximity"] = head.proximity.to_dict()
    if head.calibration is not None:
        more["calibration"] = head.calibration.state()
    if head.features is not None:
        more["features"] = head.features.to_dict()
    return more


def _describe_table(state: ModelState) -> dict[str, Any]:
    """What need not be read from the table again: the type and :class:`TableSummary`."""
    summarize = state.kge.summarize_table
    if summarize is None:
        summary = TableSummary.of(part.flatten(1) for part in real_rows(state.rows.trained()))
    else:
        summary = summarize()
    dtype = state.rows.blocks[0].real.dtype
    return {"dtype": str(dtype).removeprefix("torch.")} | summary._asdict()


def _head_tensors(head: ModelHead) -> dict[str, Tensor]:
    state = {name: value.detach() for name, value in head.model.state_dict().items()}
    del state[_TABLE]
    mean = head.prototypes.mean
    state |= {
        "prototypes.mean": torch.view_as_real(mean) if mean.is_complex() else mean,
        "prototypes.count": head.prototypes.count,
        "residual_variance": head.residual_variance,
    }
    if head.episodes is not None:
        own = head.episodes.stored()["state"]
        state |= {f"{_EPISODES}{name}": value for name, value in own.items()}
    if head.features is not None:
        state |= head.features.tensors()
    return {name: value.cpu().contiguous() for name, value in state.items()}


def _vector_tensors(stored: StoredModel) -> dict[str, Tensor]:
    table = stored.model.node_emb.weight.detach().unsqueeze(1)
    state = {_TRAINED: table.unflatten(-1, (-1, 2)) if stored.model.is_complex else table}
    if stored.extended is not None:
        x = stored.extended.detach()
        state[_EXTENDED] = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    return {name: value.cpu().contiguous() for name, value in state.items()}


def check_model_target(folder: str | PathLike[str], overwrite: bool = False) -> None:
    """Checks that a model can be written to a folder.

    Args:
        folder: The folder.
        overwrite (bool): Whether an existing model may be replaced.

    Raises:
        ValueError: If the folder exists and must not be replaced.
    """
    check_folder_target(
        folder,
        overwrite,
        names=(*_COMMON, *_PLAIN),
        record=_MANIFEST,
        what="a model",
        is_part=lambda name: PART.fullmatch(name) is not None,
    )


def _fingerprint(path: Path) -> tuple[int, str]:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return os.fstat(file.fileno()).st_size, digest


# Reading -----------------------------------------------------------------------------------------


def _check_manifest(path: Path, verify: Verify | None) -> tuple[int, dict[str, StoredFile]]:
    """The format version, and the files of the manifest, which are as it says."""
    manifest_path = path / _MANIFEST
    if not manifest_path.is_file():
        previous = previous_folder(Path(os.path.realpath(path)))
        hint = " 'sheafprop fit', 'extend' and 'import' write such folders."
        if previous.is_dir():
            hint = (
                f" Writing it was interrupted: the model before it is in '{previous}'; rename it."
            )
        elif (path / "checkpoints").is_dir():
            resume = f"sheafprop fit --resume {shlex.quote(str(path))}"
            hint = f" The run was interrupted: '{resume}' resumes it."
        elif runs := sorted(path.glob(f"*/model/{_MANIFEST}")):
            hint = f" It holds runs: name one, such as '{runs[0].parents[1]}'."
        raise FormatError(f"There is no model in '{path}': '{_MANIFEST}' is missing.{hint}")
    try:
        manifest = json.loads(manifest_path.read_bytes())
        version, library, files = manifest["format"], manifest["library"], manifest["files"]
        recorded = {name: (files[name]["size"], files[name]["sha256"]) for name in files}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _refusal(manifest_path, "it is truncated or was edited") from error
    if version not in _READABLE or isinstance(version, bool):
        raise _refusal(
            manifest_path,
            f"it has format version {version!r} and was written by {library}, while sheafprop "
            f"{__version__} reads format versions up to {FORMAT_VERSION}; install the other "
            "version",
        )
    wanted = {*_COMMON, *(() if version > 3 else _PLAIN)}
    parts = {name for name in recorded if version > 3 and PART.fullmatch(name)}
    if odd := sorted(set(recorded) - parts ^ wanted):
        raise _refusal(manifest_path, f"it was edited, see the entry of {odd[0]!r}")
    files = {}
    for name, (size, digest) in recorded.items():
        file = path / name
        if not file.is_file():
            raise _refusal(file, f"it is missing{_AGAIN}")
        found = file.stat().st_size
        if found != size:
            raise _refusal(file, f"it should have {size} bytes (got {found}){_AGAIN}")
        if (name not in parts or verify == "full") and _fingerprint(file)[1] != digest:
            raise _refusal(file, f"its content was changed after it was written{_AGAIN}")
        files[name] = StoredFile.of(file, size, digest)
    return version, files


def _refusal(path: Path, reason: str) -> FormatError:
    return FormatError(f"'{path}' is refused: {reason}.")


def _read_model(path: Path, version: int) -> StoredModel:
    description = json.loads((path / "model.json").read_bytes())
    entity_rows = _read_json_lines(path / "entities.jsonl")
    tensors = load_file(path / "model.safetensors")
    extended = tensors.pop(_EXTENDED, None)
    if version > 1:
        tensors[_TABLE] = tensors.pop(_TRAINED).flatten(1)
    has_more = any(name in description for name in _OPTIONAL)
    if (version > 2) != has_more:
        raise ValueError(f"format version {version} does not fit what '{path}' holds")
    head = _head(path, description, tensors)
    if head.model.is_complex and extended is not None:
        extended = torch.view_as_complex(extended)
    return StoredModel(
        **{part.name: getattr(head, part.name) for part in fields(head)},
        entities=Vocabulary(_labels(entity_rows), kind="entities"),
        origins=tuple(row["origin"] for row in entity_rows),
        facts=torch.from_numpy(np.load(path / "facts.npy", allow_pickle=False)),
        extended=extended,
    )


def _open_model(path: Path, files: dict[str, StoredFile], read_all: bool) -> ModelState:
    description = json.loads((path / "model.json").read_bytes())
    dtype = {str(t).removeprefix("torch."): t for t in TABLE_TYPES}[description["table"]["dtype"]]
    with torch.device("meta"):
        table = torch.empty(0, dtype=dtype)
    tensors = {_TABLE: table} | load_file(path / "model.safetensors")
    head = _head(path, description, tensors)
    summary = TableSummary(
        mean_length=float(description["table"]["mean_length"]),
        is_unit=bool(description["table"]["is_unit"]),
    )
    head.model.summarize_table = lambda: summary
    parts = {name: file for name, file in files.items() if PART.fullmatch(name)}
    rows, index, facts = opened = open_parts(head.model, parts, len(head.section_weight))
    if len(facts) != description["num_facts"]:
        raise ValueError(f"there are {len(facts)} facts of {description['num_facts']}")
    if read_all:
        opened.check()
    trained = int(description["num_trained_facts"])
    return ModelState(head, index, rows, facts, head.section_weight, trained)


def _head(path: Path, description: dict[str, Any], tensors: dict[str, Tensor]) -> ModelHead:
    """The model without entities and facts."""
    mean, count, variance = (
        tensors.pop(name) for name in ("prototypes.mean", "prototypes.count", "residual_variance")
    )
    own = {name: tensors.pop(name) for name in sorted(tensors) if name.startswith(_EPISODES)}
    mapped = {name: tensors.pop(name) for name in sorted(tensors) if name.startswith(PREFIX)}
    # Without numbers of its own, so that loading draws none from the global generator.
    with torch.device("meta"):
        model = build_model(description["model"], **description["config"])
    if tensors[_TABLE].is_meta:  # kept elsewhere: of no rows so far, but of the right type
        tensors[_TABLE] = model.node_emb.weight.detach().to(tensors[_TABLE].dtype)
    model.load_state_dict(tensors, assign=True)
    if model.is_complex:
        mean = torch.view_as_complex(mean)
    near, calibration = description.get("proximity"), description.get("calibration")
    episodes = None
    if "episodes" in description:
        state = {name.removeprefix(_EPISODES): value for name, value in own.items()}
        episodes = EpisodeModel.from_stored(
            model, {"settings": description["episodes"], "state": state}
        )
    relations = _read_json_lines(path / "relations.jsonl")
    origins = [row.get("origin", "trained") for row in relations]
    number = origins.count("fitted")
    if origins != ["trained"] * (len(origins) - number) + ["fitted"] * number:
        raise ValueError("relations must be trained ones first, then fitted ones")
    return ModelHead(
        model=model,
        relations=Vocabulary(_labels(relations), kind="relations"),
        num_fitted_relations=number,
        prototypes=RelationPrototypes(mean, count),
        residual_variance=variance,
        settings=dict(description["settings"]),
        metrics=dict(json.loads((path / "metrics.json").read_bytes())),
        section_weight=tuple(description.get("section_weight", (1.0,))),
        episodes=episodes,
        proximity=None if near is None else ProximitySettings(**near),
        calibration=None if calibration is None else ModelCalibration.from_state(calibration),
        features=EntityFeatures.from_stored(description["features"], mapped, model.is_complex)
        if "features" in description
        else None,
    )


def _labels(rows: list[dict[str, Any]]) -> list[str]:
    labels = [row["label"] for row in rows]
    # A vocabulary takes integers too, which nothing here has written.
    if not all(isinstance(label, str) for label in labels):
        raise TypeError("a label is not a string")
    return labels


def _read_json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line]
