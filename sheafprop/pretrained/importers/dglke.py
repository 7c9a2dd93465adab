import math
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sheafprop.errors import FormatError
from sheafprop.files import storage_errors
from sheafprop.pretrained.importers.arrays import norm_notes
from sheafprop.pretrained.importers.id_files import id_then_label, read_labels
from sheafprop.pretrained.importers.tables import (
    Facts,
    check_shape,
    import_table,
    is_object,
    read_json,
    row_blocks,
)
from sheafprop.pretrained.stored_model import StoredModel

#: The models with a sheaf, and the exponents of their norms.
_MODELS = {
    "TransE": ("transe", 2.0),
    "TransE_l2": ("transe", 2.0),
    "TransE_l1": ("transe", 1.0),
    "RotatE": ("rotate", 1.0),
    "TransR": ("transr", 1.0),
}
#: What DGL-KE adds to gamma for the range of the start.
_EPSILON = 2.0


def import_dglke(
    folder: str | PathLike[str],
    *,
    entities: str | PathLike[str] | None = None,
    relations: str | PathLike[str] | None = None,
    facts: Facts | None = None,
    keep_unused: bool = False,
    scratch: str | PathLike[str] | None = None,
) -> StoredModel:
    r"""Imports a TransE, RotatE or TransR of `DGL-KE <https://github.com/awslabs/dgl-ke>`_.

    Model, width and :math:`\gamma` are read from ``config.json``; the table is copied a block at a
    time. The published formulas (``models/pytorch/score_fun.py``):

    ==========================  ====================================================================
    ``TransE``, ``TransE_l2``   :math:`\gamma - \|\mathbf{h} + \mathbf{r} - \mathbf{t}\|_2`
    ``TransE_l1``               the same with the 1-norm
    ``RotatE``                  :math:`\gamma - \sum_j |h_j e^{i \theta_j} - t_j|`, all real parts
                                first, :math:`\theta = \pi \mathbf{r} / \epsilon` with the range
                                :math:`\epsilon = (\gamma + 2) / d` that its start is drawn from
    ``TransR``                  :math:`\gamma - \|\mathbf{h} \mathbf{M} + \mathbf{r} - \mathbf{t}
                                \mathbf{M}\|_1`, with ``...projection.npy`` as rows of
                                :math:`\mathbf{M}`, ``[d, k]``
    ==========================  ====================================================================

    Args:
        folder: What ``--save_path`` was, with ``config.json`` and the ``.npy`` files.
        entities, relations: Files of ids and labels, one a line (``entities.tsv`` or
            ``entities.dict``). (default: those that the configuration names, beside it or in the
            folder of the data)
        facts (iterable, optional): The training triples as labels.
        keep_unused (bool): See :func:`import_arrays`.
        scratch: Where the table is copied to, see :func:`import_table`.

    Raises:
        FormatError: If a file is missing or does not fit the configuration.
        StorageError: If a file cannot be read.
    """
    path = Path(folder).expanduser()
    advice = "give the folder that dglke_train saved the model to"
    config = read_json(path / "config.json", is_object, "the configuration of DGL-KE", advice)
    name, dataset = _entry(path, config, "model_name", "model"), _entry(path, config, "dataset")
    if name not in _MODELS:
        raise FormatError(
            f"'{path / 'config.json'}' is of a {name}: only {', '.join(_MODELS)} have a sheaf that "
            "is known here"
        )
    kind, p = _MODELS[name]
    channels = int(_entry(path, config, "hidden_dim", "emb_size"))
    labels = [
        read_labels(_mapping(path, config, given, what), id_then_label)
        for given, what in ((entities, "entities"), (relations, "relations"))
    ]
    vectors = _open(path / f"{dataset}_{name}_entity.npy")
    translations_path = path / f"{dataset}_{name}_relation.npy"
    rows = _open(translations_path)
    doubled = {key: bool(config.get(key, False)) for key in ("double_ent", "double_rel")}
    width = channels * (1 + doubled["double_ent"])
    check_shape(path / f"{dataset}_{name}_entity.npy", vectors, (len(labels[0]), width), "vectors")
    columns = channels * (1 + doubled["double_rel"])
    check_shape(translations_path, rows, (len(labels[1]), columns), "relation vectors")
    parameters: dict[str, Tensor] = {"rel_emb.weight": _tensor(rows)}
    if kind == "rotate":
        if width != 2 * columns:
            raise FormatError(
                f"'{path / 'config.json'}': a RotatE has two columns of entities for each of "
                f"relations, as with --double_ent (got {width} and {columns})"
            )
        scale = math.pi * channels / (float(_entry(path, config, "gamma")) + _EPSILON)
        parameters["rel_emb.weight"] = _tensor(rows) * scale
    elif kind == "transr":
        file = path / f"{dataset}_{name}projection.npy"
        maps = _open(file)
        check_shape(file, maps, (len(labels[1]), width * columns), "projections")
        found = _tensor(maps).view(-1, width, columns)
        parameters["rel_map"] = found.transpose(1, 2).contiguous()
    return import_table(
        kind,
        entities=labels[0],
        relations=labels[1],
        blocks=row_blocks(vectors),
        width=width,
        parameters=parameters,
        facts=facts,
        keep_unused=keep_unused,
        scratch=scratch,
        p=p,
        notes=norm_notes(p),
    )


def _entry(path: Path, config: dict[str, Any], *names: str) -> Any:
    """An entry of the configuration, which has other names in other versions."""
    for name in names:
        if name in config:
            return config[name]
    raise FormatError(
        f"'{path / 'config.json'}' has no entry '{names[0]}': it is not a configuration of DGL-KE"
    )


def _mapping(
    path: Path, config: dict[str, Any], given: str | PathLike[str] | None, what: str
) -> Path:
    """The file of ids and labels."""
    if given is not None:
        return Path(given).expanduser()
    keys = ("emap_file", "emp_file") if what == "entities" else ("rmap_file",)
    named = [str(config[key]) for key in keys if config.get(key)]
    names = named or [f"{what}.tsv", f"{what}.dict"]
    data = Path(str(config.get("data_path", path)))
    folders = (path, data, data / str(config.get("dataset", "")))
    places = [folder / name for folder in folders for name in names]
    for place in places:
        if place.is_file():
            return place
    raise FormatError(
        f"'{path}': there is no file of ids and labels of {what} (looked for "
        f"{', '.join(map(str, dict.fromkeys(places)))}): give it with --{what} FILE"
    )


def _open(path: Path) -> np.ndarray:
    """An array of a ``.npy`` file, mapped."""
    if not path.is_file():
        beside = sorted(entry.name for entry in path.parent.glob("*.npy"))
        raise FormatError(
            f"'{path}' is missing: the configuration names it (the folder holds "
            f"{', '.join(beside) or 'no .npy file'})"
        )
    with storage_errors(path, "read"):
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise FormatError(f"'{path}' is not a complete array of NumPy: {error}") from error
    if array.dtype.kind != "f":
        raise FormatError(f"'{path}' must hold real numbers (got {array.dtype})")
    return array


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.array(array, dtype=np.float32))
