from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from sheafprop.errors import DataError, FormatError
from sheafprop.pretrained.importers.id_files import require_file
from sheafprop.pretrained.importers.tables import (
    Block,
    Facts,
    check_shape,
    import_table,
    is_label_list,
    is_object,
    read_json,
    row_blocks,
)
from sheafprop.pretrained.stored_model import StoredModel

#: The comparators that are distances, and whether they are squared.
_COMPARATORS = {"l2": False, "squared_l2": True}
#: Each operator's parameters and the model that it makes.
_OPERATORS = {
    "none": ("um", ()),
    "translation": ("transe", ("translation",)),
    "diagonal": ("pairre", ("diagonal",)),
    "linear": ("se", ("linear_transformation",)),
    "affine": ("stranse", ("linear_transformation", "translation")),
    "complex_diagonal": ("rotate", ("real", "imag")),
}
_UNIT_TOLERANCE = 1e-3


def import_pbg(
    folder: str | PathLike[str],
    *,
    entity_path: str | PathLike[str] | None = None,
    operator_side: Literal["lhs", "rhs"] = "lhs",
    facts: Facts | None = None,
    keep_unused: bool = False,
    scratch: str | PathLike[str] | None = None,
) -> StoredModel:
    r"""Imports a checkpoint of `PyTorch-BigGraph
    <https://github.com/facebookresearch/PyTorch-BigGraph>`_ whose score is a distance.

    Entity types, operators and comparator are read from ``config.json``; partitions are copied a
    block at a time. An edge :math:`(u, r, v)` has the score
    :math:`- \| \mathbf{u} - f_r(\mathbf{v}) \|` there (comparator ``l2``, or its square), so
    that a translation changes its sign here. With ``dynamic_relations`` there are two operators for
    each relation: :math:`- \| g_r(\mathbf{u}) - \mathbf{v} \|` ranks right-hand sides, and the
    former ranks left-hand sides; one of them becomes the sheaf.

    =====================  =========================================================================
    ``none``               UM
    ``translation``        TransE
    ``diagonal``           PairRE with ones at the other side
    ``linear``             SE with the identity at the other side
    ``affine``             STransE with the identity at the other side
    ``complex_diagonal``   RotatE, where all of its numbers have modulus one; real parts first
    =====================  =========================================================================

    The comparators ``dot`` and ``cos`` are not distances, and have no sheaf.

    Args:
        folder: The checkpoint, with ``config.json`` and ``checkpoint_version.txt``.
        entity_path: The folder with ``entity_names_*.json`` and ``dynamic_rel_names.json``.
            (default: that of the configuration)
        operator_side (str): Which operator of dynamic relations is taken.
        facts (iterable, optional): The training triples as labels.
        keep_unused (bool): See :func:`import_arrays`.
        scratch: Where the table is copied to, see :func:`import_table`.

    Raises:
        DataError: If ``h5py`` is not installed.
        FormatError: If a file is missing, or the model has no sheaf.
        StorageError: If a file cannot be read.
    """
    path = Path(folder).expanduser()
    advice = "give the folder of checkpoint_path"
    config = read_json(path / "config.json", is_object, "a configuration of PBG", advice)
    version = _version(path)
    names_at = Path(entity_path or str(config.get("entity_path", path))).expanduser()
    kind, squared, dynamic = _model(path, config)
    relations = _relation_names(config, names_at, dynamic)
    dimension = int(config["dimension"])
    types = config["entities"]
    model_file = path / f"model.v{version}.h5"
    with _open(model_file) as file:
        operators = [
            _operator(file, model_file, index, entry, dynamic, operator_side)
            for index, entry in enumerate(config["relations"])
        ]
        shifts = {name: _global_embedding(file, name) for name in types}
    stacked = {
        key: np.concatenate([part[key] for part in operators])
        if dynamic
        else np.stack([part[key] for part in operators])
        for key in (operators[0] if operators else ())
    }
    parameters = _parameters(
        kind, stacked, len(relations), dimension, operator_side if dynamic else "rhs", model_file
    )
    entities: list[str] = []
    parts: list[tuple[Path, int, int, np.ndarray | None]] = []
    for name, entry in types.items():
        for part in range(int(entry["num_partitions"])):
            place = names_at / f"entity_names_{name}_{part}.json"
            where = "give the folder of entity_path (--entities FOLDER)"
            labels = read_json(place, is_label_list, "the labels of a partition", where)
            at = path / f"embeddings_{name}_{part}.v{version}.h5"
            parts.append((at, len(entities), len(labels), shifts[name]))
            entities += labels
    notes = []
    if dynamic:
        notes.append(
            f"relations have an operator for each side, and those of '{operator_side}' are taken: "
            f"they rank {'tails' if operator_side == 'lhs' else 'heads'}, and the others "
            "are left out"
        )
    return import_table(
        kind,
        entities=entities,
        relations=relations,
        blocks=_blocks(parts, dimension, config.get("max_norm")),
        width=dimension,
        parameters=parameters,
        facts=facts,
        keep_unused=keep_unused,
        scratch=scratch,
        squared=squared,
        notes=notes,
    )


def _open(path: Path) -> Any:
    try:
        import h5py
    except ImportError as error:
        raise DataError(
            "checkpoints of PyTorch-BigGraph are HDF5 files: pip install 'sheafprop[pbg]'"
        ) from error
    require_file(
        path,
        "the checkpoint is not whole, or of another version than 'checkpoint_version.txt' says",
    )
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise FormatError(f"'{path}' is not a complete HDF5 file: {error}") from error


def _version(path: Path) -> int:
    place = path / "checkpoint_version.txt"
    text = place.read_text("utf-8").strip() if place.is_file() else ""
    if not text.isdecimal() or not int(text):
        raise FormatError(
            f"'{place}' names no version of a checkpoint (got {text!r}): was the model trained?"
        )
    return int(text)


def _model(path: Path, config: dict[str, Any]) -> tuple[str, bool, bool]:
    """The model, whether its distances are squared, and whether its relations are dynamic."""
    place = path / "config.json"
    for key in ("entities", "relations", "dimension"):
        if not config.get(key):
            raise FormatError(f"'{place}' has no '{key}': it is not a configuration of PBG")
    comparator = config.get("comparator", "cos")
    if comparator not in _COMPARATORS:
        raise FormatError(
            f"'{place}': the comparator '{comparator}' is not a distance, so the model has no "
            f"sheaf; only {', '.join(_COMPARATORS)} have one"
        )
    if config.get("bias"):
        raise FormatError(f"'{place}': scores have a bias of the entities, so there is no sheaf")
    for name, entry in config["entities"].items():
        if entry.get("featurized"):
            raise FormatError(f"'{place}': '{name}' are sums of features and have no rows")
        if entry.get("dimension") not in (None, config["dimension"]):
            raise FormatError(f"'{place}': '{name}' have another dimension than the others")
    dynamic = bool(config.get("dynamic_relations"))
    operators = sorted({entry.get("operator", "none") for entry in config["relations"]})
    if len(operators) > 1:
        raise FormatError(f"'{place}': relations have several operators ({', '.join(operators)})")
    if operators[0] not in _OPERATORS:
        raise FormatError(f"'{place}': the operator '{operators[0]}' is not known here")
    return _OPERATORS[operators[0]][0], _COMPARATORS[comparator], dynamic


def _relation_names(config: dict[str, Any], names_at: Path, dynamic: bool) -> list[str]:
    if not dynamic:
        return [str(entry["name"]) for entry in config["relations"]]
    where = "give the folder of entity_path (--entities FOLDER)"
    place = names_at / "dynamic_rel_names.json"
    return read_json(place, is_label_list, "the labels of relations", where)


def _operator(
    file: Any, path: Path, index: int, entry: dict[str, Any], dynamic: bool, side: str
) -> dict[str, np.ndarray]:
    """The parameters of a relation's operator, or of all where relations are dynamic."""
    chosen = side if dynamic else "rhs"
    found = {}
    for name in _OPERATORS[entry.get("operator", "none")][1]:
        plural = {"real": "real", "imag": "imag"}.get(name, f"{name}s")
        key = f"model/relations/{index}/operator/{chosen}/{plural if dynamic else name}"
        if key not in file:
            raise FormatError(f"'{path}' has no parameter '{key}', which its configuration names")
        found[name] = np.asarray(file[key], dtype=np.float32)
    return found


def _global_embedding(file: Any, name: str) -> np.ndarray | None:
    key = f"model/entities/{name}/global_embedding"
    return np.asarray(file[key], dtype=np.float32) if key in file else None


def _parameters(
    kind: str, found: dict[str, np.ndarray], count: int, width: int, side: str, path: Path
) -> dict[str, Tensor]:
    """The parameters of our model, whose operator stands at heads ('lhs') or at tails."""
    for name, value in found.items():
        columns = width // 2 if kind == "rotate" else width
        shape = (count, width, width) if name == "linear_transformation" else (count, columns)
        check_shape(path, value, shape, f"'{name}' of the relations")
    if kind == "um":
        return {}
    own, other = ("head", "tail") if side == "lhs" else ("tail", "head")
    sign = 1.0 if side == "lhs" else -1.0
    out: dict[str, Tensor] = {}
    if "translation" in found:
        out["rel_emb.weight"] = sign * torch.from_numpy(found["translation"])
    if kind == "rotate":
        turn = torch.complex(*(torch.from_numpy(found[name]) for name in ("real", "imag")))
        if not bool(((turn.abs() - 1).abs() < _UNIT_TOLERANCE).all()):
            raise FormatError(
                f"'{path}': the complex numbers of the relations have other moduli than one, so "
                "they are not rotations, and no model here has their sheaf"
            )
        out["rel_emb.weight"] = sign * turn.angle()
    elif kind == "pairre":
        out[f"rel_map_{own}"] = torch.from_numpy(found["diagonal"])
        out[f"rel_map_{other}"] = torch.ones(count, width)
    elif kind in ("se", "stranse"):
        out[f"rel_map_{own}"] = torch.from_numpy(found["linear_transformation"])
        out[f"rel_map_{other}"] = torch.eye(width).expand(count, -1, -1)
    return out


def _blocks(
    parts: list[tuple[Path, int, int, np.ndarray | None]], width: int, max_norm: float | None
) -> Iterator[Block]:
    """Rows as scores see them: within their largest length, then with what all have in common."""
    for path, first, count, shift in parts:
        with _open(path) as file:
            if "embeddings" not in file:
                raise FormatError(f"'{path}' has no dataset 'embeddings'")
            rows = file["embeddings"]
            check_shape(path, rows, (count, width), "vectors of the labels of its partition")
            for numbers, block in row_blocks(rows, first):
                if max_norm is not None:
                    length = np.linalg.norm(block, axis=1, keepdims=True)
                    block = block * np.minimum(1.0, max_norm / np.maximum(length, 1e-30))
                yield numbers, block if shift is None else block + shift
