from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor

from sheafprop.errors import FormatError
from sheafprop.pretrained.importers.arrays import import_arrays, norm_notes
from sheafprop.pretrained.importers.id_files import (
    id_then_label,
    read_id_triples,
    read_labels,
    require_file,
)
from sheafprop.pretrained.importers.inert_unpickler import Inert, load_inert
from sheafprop.pretrained.importers.tables import Facts, check_shape
from sheafprop.pretrained.stored_model import StoredModel

_MODELS = ("transe", "rotate")
_RECIPROCAL = "reciprocal_relations_model"


def import_libkge(
    path: str | PathLike[str],
    *,
    data: str | PathLike[str] | None = None,
    facts: Facts | None = None,
    keep_unused: bool = False,
) -> StoredModel:
    r"""Imports a TransE or RotatE of `LibKGE <https://github.com/uma-pi1/kge>`_.

    Model and norm are read from the configuration in the checkpoint. Nothing of it is unpickled as
    an object: its classes are not imported. The published formulas (``kge/model``):

    ==========  ====================================================================================
    ``transe``  :math:`- \|\mathbf{h} + \mathbf{r} - \mathbf{t}\|_p`, ``l_norm`` being :math:`p`
    ``rotate``  :math:`- \| (|h_j e^{i r_j} - t_j|)_j \|_p`, all real parts first, phases in radians
    ==========  ====================================================================================

    Of ``reciprocal_relations_model`` the relations that rank tails are taken.

    Args:
        path: A checkpoint (``checkpoint_best.pt``), or what ``kge package`` made of it.
        data: The folder of the dataset, with ``entity_ids.del``, ``relation_ids.del`` and
            ``train.del``. (default: the folder of ``path``; a package has labels in itself)
        facts (iterable, optional): The training triples as labels. (default: ``train.del``, where
            it is there)
        keep_unused (bool): See :func:`import_arrays`.

    Raises:
        FormatError: If a file is missing or malformed, or it is another model.
        StorageError: If a file cannot be read.
    """
    path = Path(path).expanduser()
    checkpoint = load_inert(require_file(path, "give a checkpoint of LibKGE"))
    if not isinstance(checkpoint, Mapping) or not {"model", "config"} <= set(checkpoint):
        raise FormatError(
            f"'{path}' is not a checkpoint of LibKGE: it has no model and configuration"
        )
    kind, norm, reciprocal = _model(path, checkpoint["config"])
    state = checkpoint["model"]
    state = state[0] if isinstance(state, list | tuple) else state
    vectors, rows = (_table(path, state, side, reciprocal) for side in ("entity", "relation"))
    folder = Path(data).expanduser() if data is not None else path.parent
    labels = [_labels(checkpoint, folder, name) for name in ("entity_ids", "relation_ids")]
    notes = []
    if reciprocal:
        check_shape(path, rows, (2 * len(labels[1]), None), "vectors of relations and reciprocals")
        rows = rows[: len(labels[1])]
        notes.append(
            "relations have vectors of their own to rank heads, which are skipped: heads are "
            "ranked by those that rank tails"
        )
    check_shape(path, vectors, (len(labels[0]), None), "vectors of the entities")
    check_shape(path, rows, (len(labels[1]), None), "vectors of the relations")
    notes += norm_notes(norm)
    ids, file = None, folder / "train.del"
    if facts is None and file.is_file():
        ids = read_id_triples(file, (0, 1, 2), (len(labels[0]), len(labels[1])))
    return import_arrays(
        kind,
        entities=labels[0],
        relations=labels[1],
        vectors=vectors,
        parameters={"rel_emb.weight": rows},
        facts=facts,  # type: ignore[arg-type]
        fact_ids=ids,
        layout="halves" if kind == "rotate" else None,
        p=norm,
        notes=notes,
        keep_unused=keep_unused,
    )


def _model(path: Path, config: Any) -> tuple[str, float, bool]:
    """The model, its norm, and whether it has reciprocal relations."""
    state = config.state if isinstance(config, Inert) else config
    options = state.get("options", state) if isinstance(state, Mapping) else None
    if not isinstance(options, Mapping) or "model" not in options:
        raise FormatError(f"'{path}': its configuration names no model")
    name = options["model"]
    own = options.get(name)
    section: Mapping[str, Any] = own if isinstance(own, Mapping) else {}
    reciprocal = name == _RECIPROCAL
    if reciprocal:
        base = section.get("base_model")
        base = base if isinstance(base, Mapping) else {}
        name = base.get("type")
        default = options.get(name)
        section = {**(default if isinstance(default, Mapping) else {}), **base}
    if name not in _MODELS:
        raise FormatError(
            f"'{path}' holds a {name}: only {' and '.join(_MODELS)} of LibKGE have a sheaf that is "
            "known here"
        )
    norm = section.get("l_norm")
    if not isinstance(norm, int | float):
        raise FormatError(f"'{path}': its configuration has no norm ('{name}.l_norm')")
    return str(name), float(norm), reciprocal


def _table(path: Path, state: Any, side: str, reciprocal: bool) -> Tensor:
    """The embeddings of a side, which other versions call otherwise."""
    prefix = "_base_model." if reciprocal else ""
    found = state if isinstance(state, Mapping) else {}
    own = {k: v for k, v in found.items() if str(k).startswith(f"{prefix}_{side}_embedder.")}
    names = [f"{prefix}_{side}_embedder.{key}.weight" for key in ("_embeddings", "embeddings")]
    tables = [own[name] for name in names if name in own]
    if len(own) != 1 or len(tables) != 1 or not isinstance(tables[0], Tensor):
        raise FormatError(
            f"'{path}': embeddings of the {side} side must be a lookup_embedder (got "
            f"{sorted(map(str, own)) or 'none'})"
        )
    return tables[0].float()


def _labels(checkpoint: Mapping[str, Any], folder: Path, name: str) -> list[str]:
    """The labels of a package, or of the file of the dataset."""
    dataset = checkpoint.get("dataset")
    meta = dataset.get("meta") if isinstance(dataset, Mapping) else None
    labels = meta.get(name) if isinstance(meta, Mapping) else None
    if isinstance(labels, list) and all(isinstance(label, str) for label in labels):
        return labels
    advice = "give the folder of the dataset (--data FOLDER)"
    return read_labels(require_file(folder / f"{name}.del", advice), id_then_label)
