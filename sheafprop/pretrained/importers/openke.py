import json
import math
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sheafprop.errors import DataError, FormatError
from sheafprop.files import storage_errors
from sheafprop.pretrained.importers.arrays import import_arrays, norm_notes
from sheafprop.pretrained.importers.id_files import (
    label_then_id,
    read_id_triples,
    read_labels,
    require_file,
)
from sheafprop.pretrained.importers.inert_unpickler import Inert, load_inert, state_of
from sheafprop.pretrained.importers.tables import Facts, check_shape
from sheafprop.pretrained.stored_model import StoredModel

#: Parameters by which other models of OpenKE are known, and their names.
_OTHERS = {
    "norm_vector": "TransH",
    "ent_transfer": "TransD",
    "ent_re_embeddings": "ComplEx",
    "rel_matrices": "RESCAL",
    "ent_head_embeddings": "SimplE",
    "rel_inv_embeddings": "SimplE",
}


def import_openke(
    path: str | PathLike[str],
    *,
    data: str | PathLike[str] | None = None,
    model: str | None = None,
    p: float | None = None,
    normalized: bool | None = None,
    facts: Facts | None = None,
    keep_unused: bool = False,
) -> StoredModel:
    r"""Imports a TransE, RotatE or TransR of `OpenKE <https://github.com/thunlp/OpenKE>`_.

    The published formulas (``openke/module/model``):

    ==========  ====================================================================================
    ``TransE``  :math:`\|\mathbf{h} + \mathbf{r} - \mathbf{t}\|_p`, each vector scaled to length one
                where ``norm_flag`` is set
    ``RotatE``  :math:`\sum_j |h_j e^{i \theta_j} - t_j|`, all real parts first, :math:`\theta =
                \pi \mathbf{r} / \epsilon`, and :math:`\epsilon = (\gamma + 2) / d` is stored
    ``TransR``  :math:`\|\mathbf{h} \mathbf{M} + \mathbf{r} - \mathbf{t} \mathbf{M}\|_p`, scaled to
                length one behind :math:`\mathbf{M}` where ``norm_flag`` is set
    ==========  ====================================================================================

    OpenKE stores neither ``p_norm`` nor ``norm_flag``: its defaults are taken with a note.

    Args:
        path: What ``save_checkpoint`` or ``save_parameters`` (JSON) wrote.
        data: The folder with ``entity2id.txt``, ``relation2id.txt`` and ``train2id.txt``. (default:
            that of ``path``)
        model (str, optional): ``"transe"``, needed for one: DistMult has the same parameters.
        p (float, optional): The norm. (default: 1; RotatE has no other)
        normalized (bool, optional): ``norm_flag``. (default: True)
        facts (iterable, optional): The training triples as labels. (default: ``train2id.txt``,
            where it is there)
        keep_unused (bool): See :func:`import_arrays`.

    Raises:
        FormatError: If a file is missing or malformed, or it is another model.
        StorageError: If a file cannot be read.
        ValueError: If the model is not said where it must be.
    """
    path = Path(path).expanduser()
    state = _state(path)
    kind = _kind(path, state, model)
    folder = Path(data).expanduser() if data is not None else path.parent
    advice = "give the folder of OpenKE's data (--data FOLDER)"
    labels = [
        read_labels(require_file(folder / name, advice), label_then_id, counted=True)
        for name in ("entity2id.txt", "relation2id.txt")
    ]
    vectors, rows = state["ent_embeddings.weight"].float(), state["rel_embeddings.weight"].float()
    check_shape(path, vectors, (len(labels[0]), None), "vectors of the entities of entity2id.txt")
    check_shape(path, rows, (len(labels[1]), None), "vectors of the relations of relation2id.txt")
    notes = []
    options: dict[str, Any] = {}
    if kind == "rotate":
        scale = math.pi / float(state["rel_embedding_range"])
        options = {"layout": "halves", "phase_scale": scale}
        norm = 1.0
        if p not in (None, 1.0) or normalized:
            raise ValueError("RotatE of OpenKE has the 1-norm, and no 'norm_flag'")
    else:
        norm = 1.0 if p is None else p
        if p is None or normalized is None:
            notes.append(
                "OpenKE stores neither p_norm nor norm_flag: where they were not its defaults (1 "
                "and True), give them (-p 2, --norm-flag no)"
            )
    parameters = {"rel_emb.weight": rows}
    if kind == "transr":
        maps = state["transfer_matrix.weight"].float()
        width, columns = vectors.shape[1], rows.shape[1]
        check_shape(path, maps, (len(labels[1]), width * columns), "matrices of TransR")
        parameters["rel_map"] = maps.view(-1, width, columns).transpose(1, 2).contiguous()
    if kind != "rotate" and normalized is not False:
        parameters["rel_emb.weight"] = torch.nn.functional.normalize(rows, dim=-1)
        if kind == "transe":
            vectors = torch.nn.functional.normalize(vectors, dim=-1)
        else:
            notes.append(
                "the model scales projected vectors to length one, which no linear map does: "
                "scores differ"
            )
    notes += norm_notes(norm)
    ids = None
    file = folder / "train2id.txt"
    if facts is None and file.is_file():
        # Heads and tails come first there.
        sizes = len(labels[0]), len(labels[1])
        ids = read_id_triples(file, (0, 2, 1), sizes, counted=True)
    return import_arrays(
        kind,
        entities=labels[0],
        relations=labels[1],
        vectors=vectors,
        parameters=parameters,
        facts=facts,  # type: ignore[arg-type]
        fact_ids=ids,
        p=norm,
        notes=notes,
        keep_unused=keep_unused,
        **options,
    )


def _state(path: Path) -> dict[str, Tensor]:
    require_file(path, "give the file that OpenKE saved")
    found: Any
    with storage_errors(path, "read"), path.open("rb") as file:
        begin = file.read(1)
        content = begin + file.read() if begin == b"{" else b""
    if content:
        try:
            lists = json.loads(content)
            found = {key: torch.tensor(value) for key, value in lists.items()}
        except (ValueError, TypeError, RecursionError) as error:
            raise FormatError(f"'{path}' is not a JSON file of parameters: {error}") from error
    else:
        found = load_inert(path)
        found = state_of(found) if isinstance(found, Inert) else found
    if not isinstance(found, Mapping) or not all(isinstance(v, Tensor) for v in found.values()):
        raise FormatError(f"'{path}' holds no parameters of OpenKE")
    # Strategies such as NegativeSampling hold the model; version 1 left out '.weight'.
    state = {str(key).removeprefix("model."): value.detach() for key, value in found.items()}
    tables = ("ent_embeddings", "rel_embeddings", "transfer_matrix")
    return {f"{key}.weight" if key in tables else key: value for key, value in state.items()}


def _kind(path: Path, state: Mapping[str, Tensor], model: str | None) -> str:
    names = {key.partition(".")[0] for key in state}
    other = next((name for key, name in _OTHERS.items() if key in names), None)
    if other or not {"ent_embeddings.weight", "rel_embeddings.weight"} <= set(state):
        held = other or f"model with the parameters {sorted(names)}"
        raise FormatError(
            f"'{path}' holds a {held}: only TransE, RotatE and TransR of OpenKE can be imported"
        )
    kind = "transr" if "transfer_matrix.weight" in state else None
    kind = "rotate" if "rel_embedding_range" in state else kind
    if kind is None and model is None:
        raise DataError(
            f"'{path}' does not say what model it is of (DistMult has the parameters of TransE): "
            "give model='transe' (--model transe)"
        )
    if model not in (None, kind or "transe"):
        raise DataError(
            f"'{path}' holds no {model} of OpenKE" + (f", but a {kind}" if kind else "")
        )
    return kind or "transe"
