import csv
import io
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sheafprop.data.file_kinds import decompress
from sheafprop.errors import DataError, FormatError
from sheafprop.files import storage_errors
from sheafprop.pretrained.importers.arrays import import_arrays, norm_notes
from sheafprop.pretrained.importers.inert_unpickler import (
    Inert,
    load_inert,
    state_of,
    strip_prefixes,
    unwrap,
)
from sheafprop.pretrained.stored_model import StoredModel

_MODELS = {"TransE": "transe", "RotatE": "rotate", "TransR": "transr", "SE": "se"}
_ENTITIES = "entity_representations.0._embeddings.weight"
_RELATIONS = "relation_representations.{}._embeddings.weight"


def import_pykeen(folder: str | PathLike[str], *, keep_unused: bool = False) -> StoredModel:
    r"""Imports a pipeline folder of PyKEEN (``PipelineResult.save_to_directory``).

    The model object is not unpickled: its tensors are read, and all else in the file stays inert.
    PyKEEN need not be installed. TransE, RotatE, TransR and SE can be imported.

    Warns of what does not carry over: a norm other than the 2-norm, which propagation
    does not minimize, and TransR's clamp after the projection, which is not linear.

    Args:
        folder: The folder, with ``trained_model.pkl`` and ``training_triples``.
        keep_unused: See :func:`import_arrays`.

    Raises:
        FormatError: If a file is missing or truncated, or holds another model.
        StorageError: If a file cannot be read.
    """
    path = Path(folder).expanduser()
    training = path / "training_triples"
    for file in (path / "trained_model.pkl", training / "entity_to_id.tsv.gz"):
        if not file.is_file():
            raise FormatError(
                f"'{path}' is not a pipeline folder of PyKEEN with labels: '{file.name}' is missing"
            )
    entities = _labels(training / "entity_to_id.tsv.gz")
    relations = _labels(training / "relation_to_id.tsv.gz")
    facts = _triples(training / "numeric_triples.tsv.gz")
    module = load_inert(path / "trained_model.pkl")
    module = unwrap(module) if isinstance(module, Inert) else module
    kind = type(module).__name__
    if not isinstance(module, Inert) or kind not in _MODELS:
        raise FormatError(
            f"'{path}' holds a {kind}: only {', '.join(_MODELS)} have a sheaf that is known here"
        )
    state = strip_prefixes(state_of(module))
    try:
        parts = _convert(_MODELS[kind], state, _child(module, "interaction"), len(relations), facts)
    except KeyError as error:
        raise FormatError(f"'{path}': the model has no parameter {error}") from error
    return import_arrays(
        _MODELS[kind],
        entities=entities,
        relations=relations,
        fact_ids=facts,
        keep_unused=keep_unused,
        **parts,
    )


def _convert(
    name: str,
    state: dict[str, Tensor],
    interaction: dict[str, Any],
    num_relations: int,
    facts: Tensor,
) -> dict[str, Any]:
    """The arguments of :func:`import_arrays` that follow from the model alone."""
    vectors = state[_ENTITIES]
    width = vectors.shape[1]
    tables: list[Tensor] = []
    while _RELATIONS.format(len(tables)) in state:
        tables.append(state[_RELATIONS.format(len(tables))].to(vectors.dtype))
    notes = []
    if tables and len(tables[0]) == 2 * num_relations:
        # With inverse triples, relation r has the rows 2r and 2r + 1.
        tables = [table[0::2] for table in tables]
        notes.append("the relations' inverses were skipped: propagation needs none")
    p = float(interaction.get("p", 2))
    powered = bool(interaction.get("power_norm", False))
    if powered and p not in (1.0, 2.0):
        notes.append(f"scores are {p:g}-norms here, not their {p:g}-th powers: the order is equal")
    notes += norm_notes(p)
    layout = None
    if name == "transe":
        parameters = {"rel_emb.weight": tables[0]}
    elif name == "rotate":
        turns = torch.view_as_complex(tables[0].unflatten(1, (-1, 2)).contiguous())
        if not bool(((turns.abs() - 1).abs() < 1e-3).all()):
            notes.append("relations that are not pure rotations were scaled to be ones")
        parameters = {"rel_emb.weight": turns.angle()}
        layout = "pairs"
    elif name == "transr":
        # PyKEEN multiplies rows: x @ M with M of shape [d, k].
        maps = tables[1].unflatten(1, (width, -1)).transpose(1, 2)
        parameters = {"rel_emb.weight": tables[0], "rel_map": maps}
        clamp = float(interaction.get("max_projection_norm", 1.0))
        if _is_clamped(vectors, maps, facts, clamp, p):
            notes.append(
                f"the model clamps projected vectors to length {clamp:g}, which no linear map "
                "does: scores of entities that are projected further out differ"
            )
    else:
        maps = [table.unflatten(1, (width, width)) for table in tables[:2]]
        parameters = {"rel_map_head": maps[0], "rel_map_tail": maps[1]}
    return {
        "vectors": vectors,
        "parameters": parameters,
        "layout": layout,
        "p": p,
        "squared": powered and p == 2.0,
        "notes": notes,
    }


def _is_clamped(vectors: Tensor, maps: Tensor, facts: Tensor, clamp: float, p: float) -> bool:
    for relation in torch.unique(facts[:, 1]).tolist():
        ends = torch.unique(facts[facts[:, 1] == relation][:, [0, 2]])
        lengths = torch.linalg.vector_norm(vectors[ends] @ maps[relation].T, ord=p, dim=1)
        if bool((lengths > clamp * (1 + 1e-6)).any()):
            return True
    return False


def _child(module: Inert, name: str) -> dict[str, Any]:
    child = (module.state.get("_modules") or {}).get(name)
    return child.state if isinstance(child, Inert) and isinstance(child.state, dict) else {}


def _rows(path: Path) -> list[list[str]]:
    with storage_errors(path, "read"):
        try:
            text = decompress(path.read_bytes(), path.name).decode("utf-8")
            rows = list(csv.reader(io.StringIO(text, newline=""), delimiter="\t", strict=True))
        except (DataError, UnicodeDecodeError, csv.Error) as error:
            raise FormatError(f"'{path}' is truncated or was edited: {error}") from error
    if not rows:
        raise FormatError(f"'{path}' is empty")
    return rows[1:]


def _labels(path: Path) -> list[str]:
    try:
        by_id = {int(number): label for number, label in _rows(path)}
        return [by_id[number] for number in range(len(by_id))]
    except (ValueError, KeyError) as error:
        raise FormatError(f"'{path}' does not number its labels from 0 on") from error


def _triples(path: Path) -> Tensor:
    try:
        array = np.array(_rows(path), dtype=np.int64).reshape(-1, 3)
    except ValueError as error:
        raise FormatError(f"'{path}' holds no triples of ids: {error}") from error
    return torch.from_numpy(array)
