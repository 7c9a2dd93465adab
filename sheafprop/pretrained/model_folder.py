"""A trained model as a folder of plain files; loading it checks every file and runs no code.

===================== ==============================================================================
``model.safetensors`` real tensors only: relation parameters, prototypes, residual variances,
                      parameters of episodes, and the vectors as ``[N, s, d]``, of trained and of
                      added entities; complex ones as ``[N, s, d, 2]``
``facts.npy``         the observed triples, int64 ``[m, 3]``
``entities.jsonl``    one ``{"label": ..., "origin": ...}`` per entity
``relations.jsonl``   one ``{"label": ...}`` per relation
``model.json``        the model's name and arguments, the chosen propagation, section weights,
                      settings of episodes and proximity, the calibration
``metrics.json``      what was measured
``manifest.json``     format version, library version, size and SHA-256 of every other file
===================== ==============================================================================

Long because what is written and what is read of every file stand together.
"""

import hashlib
import io
import json
import os
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from sheafprop.data import KnowledgeGraph, Vocabulary
from sheafprop.errors import FormatError
from sheafprop.files import (
    check_folder_target,
    check_plain,
    new_folder,
    previous_folder,
    storage_errors,
    write_bytes,
    write_json,
)
from sheafprop.inductive.episode_model import EpisodeModel
from sheafprop.inductive.proximity_scorer import ProximitySettings
from sheafprop.kge import KGEModel, build_model
from sheafprop.nn import RelationPrototypes
from sheafprop.pretrained.calibration import ModelCalibration
from sheafprop.pretrained.stored_model import StoredModel
from sheafprop.version import __version__

FORMAT_VERSION = 3
#: Format 1 had no added entities; their trained vectors were a parameter among the others. Only
#: format 3 has episodes, proximity and a calibration; a model without is written in format 2.
_READABLE = (1, 2, 3)

_TRAINED, _EXTENDED = "vectors.trained", "vectors.extended"
_EPISODES = "episodes."
_TABLE = "node_emb.weight"
_MANIFEST = "manifest.json"
_AGAIN = "; copy or write the model folder again"
_FILES = (
    "model.safetensors",
    "facts.npy",
    "entities.jsonl",
    "relations.jsonl",
    "model.json",
    "metrics.json",
)


def save_model_folder(
    folder: str | PathLike[str],
    *,
    model: KGEModel,
    entities: Vocabulary,
    relations: Vocabulary,
    train: KnowledgeGraph,
    settings: dict[str, Any],
    metrics: dict[str, Any],
    episodes: EpisodeModel | None = None,
    proximity: ProximitySettings | None = None,
    overwrite: bool = False,
) -> Path:
    """Writes the model folder of a model that was just trained; see :func:`write_model_folder`.

    Args:
        folder: Where to write; missing parents are made.
        model (KGEModel): The trained model.
        entities (Vocabulary): Labels of its entities.
        relations (Vocabulary): Labels of its relations.
        train (KnowledgeGraph): The triples that it was trained on.
        settings (dict): The chosen propagation, as plain values.
        metrics (dict): What was measured, as plain values.
        episodes (EpisodeModel, optional): Relations trained through the diffusion.
        proximity (ProximitySettings, optional): Proximity beside the scores.
        overwrite (bool, optional): Replaces an existing model folder. (default: :obj:`False`)

    Raises:
        ValueError: If model, labels and graph do not belong together.
    """
    train.validate_ids()
    for kind, labels, size, own in (
        ("entities", entities, train.num_nodes, train.entities),
        ("relations", relations, train.num_relations, train.relations),
    ):
        if size != len(labels):
            raise ValueError(
                f"training graph and labels must have the same {kind} (got {size} and "
                f"{len(labels)})"
            )
        if own is not None and own != labels:
            raise ValueError(f"'{kind}' are not the labels of the {kind} of the training graph")
    check_plain(settings, "settings")
    check_plain(metrics, "metrics")
    stored = StoredModel.from_training(
        model,
        entities,
        relations,
        train.triples,
        settings=settings,
        metrics=metrics,
        episodes=episodes,
        proximity=proximity,
    )
    return write_model_folder(folder, stored, overwrite=overwrite)


def write_model_folder(
    folder: str | PathLike[str], stored: StoredModel, *, overwrite: bool = False
) -> Path:
    """Writes a model folder: complete or not at all.

    Everything is written into a temporary folder beside it, which is renamed at the end. While an
    old folder is replaced it carries the name ``.NAME.previous`` for the moment between two
    renames.

    Args:
        folder: Where to write; missing parents are made.
        stored (StoredModel): What to write.
        overwrite (bool, optional): Replaces an existing model folder. (default: :obj:`False`)

    Returns:
        Path: The folder.

    Raises:
        ValueError: If a value is not plain, the folder exists and may not be overwritten, or it
            holds other files than a model's.
        StorageError: If the disk refuses; what was there before is still there.
    """
    target = Path(os.path.realpath(folder))
    check_plain(stored.settings, "settings")
    check_plain(stored.metrics, "metrics")
    with storage_errors(folder, "written"):
        check_model_target(target, overwrite)
        more: dict[str, Any] = {}
        if stored.episodes is not None:
            more["episodes"] = stored.episodes.settings.to_dict()
        if stored.proximity is not None:
            more["proximity"] = stored.proximity.to_dict()
        if stored.calibration is not None:
            more["calibration"] = stored.calibration.state()
        with new_folder(target, replace=overwrite) as temporary:
            write_bytes(temporary / "model.safetensors", save(_tensors(stored)))
            write_bytes(temporary / "facts.npy", _npy(stored.facts))
            write_bytes(
                temporary / "entities.jsonl",
                _json_lines(
                    {"label": label, "origin": origin}
                    for label, origin in zip(stored.entities.labels, stored.origins, strict=True)
                ),
            )
            write_bytes(
                temporary / "relations.jsonl",
                _json_lines({"label": label} for label in stored.relations.labels),
            )
            write_json(
                temporary / "model.json",
                {
                    "model": stored.model.name,
                    "config": stored.model.config(),
                    "settings": stored.settings,
                    "section_weight": list(stored.section_weight),
                }
                | more,
            )
            write_json(temporary / "metrics.json", stored.metrics)
            write_json(
                temporary / _MANIFEST,
                {
                    "format": FORMAT_VERSION if more else FORMAT_VERSION - 1,
                    "library": f"sheafprop {__version__}",
                    "files": {name: _fingerprint(temporary / name) for name in _FILES},
                },
            )
    return Path(folder)


def load_model_folder(folder: str | PathLike[str]) -> StoredModel:
    """Reads a model folder, or that of a run, after checking every file against the manifest.

    Raises:
        FormatError: If a file is missing, truncated, edited or of another format version; names it.
        StorageError: If a file cannot be read.
    """
    path = Path(folder).expanduser()
    if not (path / _MANIFEST).exists() and (path / "model").is_dir():
        path = path / "model"
    with storage_errors(path, "read"):
        version = _check_manifest(path)
        try:
            return _read_model(path, version)
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


def _tensors(stored: StoredModel) -> dict[str, Tensor]:
    state = {name: value.detach() for name, value in stored.model.state_dict().items()}
    table = state.pop(_TABLE).unsqueeze(1)
    mean = stored.prototypes.mean
    state |= {
        _TRAINED: table.unflatten(-1, (-1, 2)) if stored.model.is_complex else table,
        "prototypes.mean": torch.view_as_real(mean) if mean.is_complex() else mean,
        "prototypes.count": stored.prototypes.count,
        "residual_variance": stored.residual_variance,
    }
    if stored.episodes is not None:
        own = stored.episodes.stored()["state"]
        state |= {f"{_EPISODES}{name}": value for name, value in own.items()}
    if stored.extended is not None:
        x = stored.extended.detach()
        state[_EXTENDED] = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    return {name: value.cpu().contiguous() for name, value in state.items()}


def check_model_target(folder: str | PathLike[str], overwrite: bool = False) -> None:
    """Refuses a place where no model can be written, before there is a model to write.

    Args:
        folder: The folder that is to be made.
        overwrite (bool): Whether a model that is there may be replaced.

    Raises:
        ValueError: If something is there that must stay.
    """
    check_folder_target(folder, overwrite, names=_FILES, record=_MANIFEST, what="a model")


def _npy(triples: Tensor) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, triples.cpu().numpy(), allow_pickle=False)
    return buffer.getvalue()


def _json_lines(rows: Iterable[dict[str, str]]) -> bytes:
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return "".join(lines).encode("utf-8", "surrogatepass")


def _fingerprint(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"size": os.fstat(file.fileno()).st_size, "sha256": digest}


# Reading -----------------------------------------------------------------------------------------


def _check_manifest(path: Path) -> int:
    manifest_path = path / _MANIFEST
    if not manifest_path.is_file():
        previous = previous_folder(Path(os.path.realpath(path)))
        hint = " 'sheafprop fit', 'extend' and 'import' write such folders."
        if previous.is_dir():
            hint = (
                f" Writing it was interrupted: the model before it is in '{previous}'; rename it."
            )
        elif (path / "checkpoints").is_dir():
            hint = f" The run was interrupted: 'sheafprop fit --resume {path}' goes on with it."
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
    if set(recorded) != set(_FILES):
        odd = sorted(set(recorded) ^ set(_FILES))[0]
        raise _refusal(manifest_path, f"it was edited, see the entry of {odd!r}")
    for name, (size, digest) in recorded.items():
        file = path / name
        if not file.is_file():
            raise _refusal(file, f"it is missing{_AGAIN}")
        found = file.stat().st_size
        if found != size:
            raise _refusal(file, f"it should have {size} bytes (got {found}){_AGAIN}")
        if _fingerprint(file)["sha256"] != digest:
            raise _refusal(file, f"its content was changed after it was written{_AGAIN}")
    return version


def _refusal(path: Path, reason: str) -> FormatError:
    return FormatError(f"'{path}' is refused: {reason}.")


def _read_model(path: Path, version: int) -> StoredModel:
    description = json.loads((path / "model.json").read_bytes())
    entity_rows = _read_json_lines(path / "entities.jsonl")
    relation_rows = _read_json_lines(path / "relations.jsonl")
    tensors = load_file(path / "model.safetensors")
    mean, count, variance = (
        tensors.pop(name) for name in ("prototypes.mean", "prototypes.count", "residual_variance")
    )
    extended = tensors.pop(_EXTENDED, None)
    own = {name: tensors.pop(name) for name in sorted(tensors) if name.startswith(_EPISODES)}
    if version > 1:
        tensors[_TABLE] = tensors.pop(_TRAINED).flatten(1)
    # Without numbers of its own, so that loading draws none from the global generator.
    with torch.device("meta"):
        model = build_model(description["model"], **description["config"])
    model.load_state_dict(tensors, assign=True)
    if model.is_complex:
        mean = torch.view_as_complex(mean)
        extended = None if extended is None else torch.view_as_complex(extended)
    episodes, near = None, description.get("proximity")
    calibration = description.get("calibration")
    has_more = "episodes" in description or near is not None or calibration is not None
    if (version > 2) != has_more:
        raise ValueError(f"format version {version} does not fit what '{path}' holds")
    if "episodes" in description:
        state = {name.removeprefix(_EPISODES): value for name, value in own.items()}
        episodes = EpisodeModel.from_stored(
            model, {"settings": description["episodes"], "state": state}
        )
    return StoredModel(
        model=model,
        entities=Vocabulary(_labels(entity_rows), kind="entities"),
        relations=Vocabulary(_labels(relation_rows), kind="relations"),
        origins=tuple(row["origin"] for row in entity_rows),
        facts=torch.from_numpy(np.load(path / "facts.npy", allow_pickle=False)),
        prototypes=RelationPrototypes(mean, count),
        residual_variance=variance,
        settings=dict(description["settings"]),
        metrics=dict(json.loads((path / "metrics.json").read_bytes())),
        extended=extended,
        section_weight=tuple(description.get("section_weight", (1.0,))),
        episodes=episodes,
        proximity=None if near is None else ProximitySettings(**near),
        calibration=None if calibration is None else ModelCalibration.from_state(calibration),
    )


def _labels(rows: list[dict[str, Any]]) -> list[str]:
    labels = [row["label"] for row in rows]
    # A vocabulary takes integers too, which nothing here has written.
    if not all(isinstance(label, str) for label in labels):
        raise TypeError("a label is no string")
    return labels


def _read_json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line]
