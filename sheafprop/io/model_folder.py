"""A trained model as a folder of plain files; loading it checks every file and runs no code.

===================== ==============================================================================
``model.safetensors`` parameters, prototypes and residual variances; real tensors only
``facts.npy``         the observed triples, int64 ``[m, 3]``
``entities.jsonl``    one ``{"label": ..., "origin": ...}`` per entity
``relations.jsonl``   one ``{"label": ...}`` per relation
``model.json``        the model's name and arguments, and the chosen propagation
``metrics.json``      what was measured
``manifest.json``     format version, library version, size and SHA-256 of every other file
===================== ==============================================================================
"""

import hashlib
import io
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from sheafprop.data import KnowledgeGraph, Vocabulary
from sheafprop.errors import DivergenceError, FormatError
from sheafprop.io.atomic import check_plain, sync_folder, write_bytes, write_json
from sheafprop.io.storage_error import storage_errors
from sheafprop.io.stored_model import StoredModel
from sheafprop.kge import KGEModel, build_model
from sheafprop.nn import RelationPrototypes
from sheafprop.nn.relation_weights import residual_variance
from sheafprop.version import __version__

FORMAT_VERSION = 1

_MANIFEST = "manifest.json"
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
    origins: Sequence[str] | None = None,
    overwrite: bool = False,
) -> Path:
    """Writes a model folder: complete or not at all.

    Everything is written into a temporary folder beside it, which is renamed at the end. While an
    old folder is replaced it carries the name ``.NAME.previous`` for the moment between two
    renames.

    Args:
        folder: Where to write; missing parents are made.
        model (KGEModel): The trained model.
        entities (Vocabulary): Labels of its entities.
        relations (Vocabulary): Labels of its relations.
        train (KnowledgeGraph): The triples that it was trained on.
        settings (dict): The chosen propagation, as plain values.
        metrics (dict): What was measured, as plain values.
        origins (sequence of str, optional): Where each entity's vector comes from.
            (default: ``"trained"`` for all)
        overwrite (bool, optional): Replaces an existing model folder. (default: :obj:`False`)

    Returns:
        Path: The folder.

    Raises:
        ValueError: If model, labels and graph do not belong together, a value is not plain, the
            folder exists and may not be overwritten, or it holds other files than a model's.
        DivergenceError: If a parameter is not finite.
        StorageError: If the disk refuses; what was there before is still there.
    """
    target = Path(os.path.realpath(folder))
    origins = ("trained",) * len(entities) if origins is None else tuple(origins)
    _check_parts(model, entities, relations, train, origins)
    check_plain(settings, "settings")
    check_plain(metrics, "metrics")
    tensors = _tensors(model, train)
    with storage_errors(folder, "written"):
        _check_target(target, overwrite)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".sheafprop-{secrets.token_hex(8)}.tmp")
        try:
            temporary.mkdir()
            write_bytes(temporary / "model.safetensors", save(tensors))
            write_bytes(temporary / "facts.npy", _npy(train.triples))
            write_bytes(
                temporary / "entities.jsonl",
                _json_lines(
                    {"label": label, "origin": origin}
                    for label, origin in zip(entities.labels, origins, strict=True)
                ),
            )
            write_bytes(
                temporary / "relations.jsonl",
                _json_lines({"label": label} for label in relations.labels),
            )
            write_json(
                temporary / "model.json",
                {"model": model.name, "config": model.config(), "settings": settings},
            )
            write_json(temporary / "metrics.json", metrics)
            write_json(
                temporary / _MANIFEST,
                {
                    "format": FORMAT_VERSION,
                    "library": f"sheafprop {__version__}",
                    "files": {name: _fingerprint(temporary / name) for name in _FILES},
                },
            )
            _move_into_place(temporary, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        sync_folder(target.parent)
    return Path(folder)


def load_model_folder(folder: str | PathLike[str]) -> StoredModel:
    """Reads a model folder after checking every file of it against its manifest.

    Raises:
        FormatError: If a file is missing, truncated, edited or of another format version; names it.
        StorageError: If a file cannot be read.
    """
    path = Path(folder)
    with storage_errors(folder, "read"):
        _check_manifest(path)
        try:
            return _read_model(path)
        except (ValueError, TypeError, KeyError, RuntimeError, EOFError, SafetensorError) as error:
            raise FormatError(
                f"'{path}' agrees with its manifest but holds no model that this version of "
                f"sheafprop reads: {error}"
            ) from error


# Writing -----------------------------------------------------------------------------------------


def _check_parts(
    model: KGEModel,
    entities: Vocabulary,
    relations: Vocabulary,
    train: KnowledgeGraph,
    origins: tuple[str, ...],
) -> None:
    train.validate_ids()
    for kind, labels, sizes in (
        ("entities", entities, (model.num_nodes, train.num_nodes)),
        ("relations", relations, (model.num_relations, train.num_relations)),
    ):
        if sizes != (len(labels), len(labels)):
            raise ValueError(
                f"model, training graph and labels must have the same {kind} "
                f"(got {sizes[0]}, {sizes[1]} and {len(labels)})"
            )
    for kind, labels, own in (
        ("entities", entities, train.entities),
        ("relations", relations, train.relations),
    ):
        if own is not None and own != labels:
            raise ValueError(f"'{kind}' are not the labels of the {kind} of the training graph")
    if len(origins) != len(entities):
        raise ValueError(
            f"'origins' must have one entry for each of the {len(entities)} entities "
            f"(got {len(origins)})"
        )


def _tensors(model: KGEModel, train: KnowledgeGraph) -> dict[str, Tensor]:
    state = {name: value.detach() for name, value in model.state_dict().items()}
    for name, value in state.items():
        if not bool(torch.isfinite(value).all()):
            raise DivergenceError(
                f"The parameter '{name}' of the model is not finite: the model was not saved. "
                "Train again with a smaller learning rate"
            )
    with torch.no_grad():
        x, sheaf = model.entity_vectors(), model.sheaf()
    head, edge_type, tail = train.triples.to(x.device).unbind(1)
    edge_index = torch.stack([head, tail])
    prototypes = RelationPrototypes.from_triples(x, edge_index, edge_type, model.num_relations)
    mean = prototypes.mean
    state |= {
        "prototypes.mean": torch.view_as_real(mean) if mean.is_complex() else mean,
        "prototypes.count": prototypes.count,
        "residual_variance": residual_variance(x, edge_index, edge_type, sheaf),
    }
    return {name: value.cpu().contiguous() for name, value in state.items()}


def _check_target(target: Path, overwrite: bool) -> None:
    if not target.exists() or _is_empty_folder(target):
        return
    if not overwrite:
        raise ValueError(f"'{target}' exists: choose another folder, or pass overwrite=True")
    foreign = "it is a file"
    if target.is_dir():
        names = sorted({entry.name for entry in target.iterdir()} - {*_FILES, _MANIFEST})
        if not names:
            return
        foreign = f"it holds '{names[0]}', which is no file of a model"
    raise ValueError(f"'{target}' is not overwritten, since {foreign}: choose another folder")


def _move_into_place(temporary: Path, target: Path) -> None:
    if not target.exists() or _is_empty_folder(target):
        os.replace(temporary, target)
        return
    previous = _previous(target)
    shutil.rmtree(previous, ignore_errors=True)
    os.replace(target, previous)
    try:
        os.replace(temporary, target)
    except BaseException:
        os.replace(previous, target)
        raise
    shutil.rmtree(previous, ignore_errors=True)


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and next(path.iterdir(), None) is None


def _previous(target: Path) -> Path:
    return target.with_name(f".{target.name}.previous")


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


def _check_manifest(path: Path) -> None:
    manifest_path = path / _MANIFEST
    if not manifest_path.is_file():
        previous = _previous(Path(os.path.realpath(path)))
        hint = (
            f" Writing it was interrupted: the model before it is in '{previous}'; rename that."
            if previous.is_dir()
            else ""
        )
        raise FormatError(f"There is no model in '{path}': '{_MANIFEST}' is missing.{hint}")
    try:
        manifest = json.loads(manifest_path.read_bytes())
        version, library, files = manifest["format"], manifest["library"], manifest["files"]
        recorded = {name: (files[name]["size"], files[name]["sha256"]) for name in files}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _refusal(manifest_path, "it is truncated or was edited") from error
    if version != FORMAT_VERSION:
        raise _refusal(
            manifest_path,
            f"it has format version {version!r} and was written by {library}, while sheafprop "
            f"{__version__} reads format version {FORMAT_VERSION}; install the other version",
        )
    if set(recorded) != set(_FILES):
        odd = sorted(set(recorded) ^ set(_FILES))[0]
        raise _refusal(manifest_path, f"it was edited, see the entry of {odd!r}")
    for name, (size, digest) in recorded.items():
        file = path / name
        if not file.is_file():
            raise _refusal(file, "it is missing")
        found = file.stat().st_size
        if found != size:
            raise _refusal(file, f"it should have {size} bytes (got {found})")
        if _fingerprint(file)["sha256"] != digest:
            raise _refusal(file, "its content was changed after it was written")


def _refusal(path: Path, reason: str) -> FormatError:
    return FormatError(f"'{path}' is refused: {reason}.")


def _read_model(path: Path) -> StoredModel:
    description = json.loads((path / "model.json").read_bytes())
    entity_rows = _read_json_lines(path / "entities.jsonl")
    relation_rows = _read_json_lines(path / "relations.jsonl")
    entities = Vocabulary((row["label"] for row in entity_rows), kind="entities")
    relations = Vocabulary((row["label"] for row in relation_rows), kind="relations")
    facts = torch.from_numpy(np.load(path / "facts.npy", allow_pickle=False))
    KnowledgeGraph.from_triples(facts, entities=entities, relations=relations)

    tensors = load_file(path / "model.safetensors")
    mean, count, variance = (
        tensors.pop(name) for name in ("prototypes.mean", "prototypes.count", "residual_variance")
    )
    # Without numbers of its own, so that loading draws none from the global generator.
    with torch.device("meta"):
        model = build_model(description["model"], **description["config"])
    model.load_state_dict(tensors, assign=True)
    if model.is_complex:
        mean = torch.view_as_complex(mean)
    expected = {
        "number of entities": (model.num_nodes, len(entities)),
        "number of relations": (model.num_relations, len(relations)),
        "shape of prototypes.mean": (list(mean.shape), [2 * len(relations), model.hidden_channels]),
        "shape of prototypes.count": (list(count.shape), [2 * len(relations)]),
        "shape of residual_variance": (list(variance.shape), [len(relations)]),
    }
    for what, (got, wanted) in expected.items():
        if got != wanted:
            raise ValueError(f"the {what} is {got}, and the labels ask for {wanted}")
    return StoredModel(
        model=model,
        entities=entities,
        relations=relations,
        origins=tuple(row["origin"] for row in entity_rows),
        facts=facts,
        prototypes=RelationPrototypes(mean, count),
        residual_variance=variance,
        settings=dict(description["settings"]),
        metrics=dict(json.loads((path / "metrics.json").read_bytes())),
    )


def _read_json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line]
