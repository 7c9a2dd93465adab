"""A model as plain files: vectors, relations and facts. ``import arrays`` reads them again."""

import json
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from sheafprop.data.triples import format_triples
from sheafprop.errors import DataError, FormatError
from sheafprop.files import as_json, label_file, storage_errors, written_after
from sheafprop.kge import KGEModel
from sheafprop.pretrained.model_state import ModelState
from sheafprop.pretrained.vector_export import export_vectors

_TABLE = "node_emb.weight"
_KEY = "sheafprop"


class RelationFile(NamedTuple):
    """What a file of relations holds.

    Args:
        model (str): The name of the model.
        parameters (dict): Its relation parameters by their names in the model, ``[R, ...]``.
        p (float): The exponent of the norm of its score.
        squared (bool): Whether its scores are squared norms.
    """

    model: str
    parameters: dict[str, Tensor]
    p: float
    squared: bool


def export_model(
    state: ModelState,
    path: str | PathLike[str],
    *,
    format: str | None = None,
    relations: str | PathLike[str] | None = None,
    facts: str | PathLike[str] | None = None,
    nodes: str | PathLike[str] | None = None,
) -> list[Path]:
    """Writes vectors, and relations and facts where asked; see :meth:`SheafModel.export`."""
    files: list[tuple[Path, bytes]] = []
    if relations is not None:
        place = Path(relations)
        files.append((place, relation_bytes(state.kge)))
        files.append((label_file(place), as_json(list(state.relations.labels))))
    if facts is not None:
        place = Path(facts)
        rows = state.frame(state.facts.from_row(0)).to_numpy(dtype=object).tolist()
        files.append((place, format_triples(rows, str(place))))
    places = [place for place, _ in files]
    taken = [Path(path), label_file(Path(path)), *places]
    if len({place.absolute() for place in taken}) < len(taken):
        raise DataError("vectors, relations and facts need files of their own")
    with ExitStack() as stack:
        for place, content in files:
            stack.enter_context(written_after(place, content))
        written = export_vectors(
            path,
            state.index,
            state.rows,
            format=format,
            num_sections=state.num_sections,
            nodes=nodes,
        )
    return [*written, *places]


def relation_bytes(model: KGEModel) -> bytes:
    """The relation parameters of a model as a safetensors file, unrounded, with its name and the
    norm of its score in the metadata."""
    state = {k: v.detach().cpu().contiguous() for k, v in model.state_dict().items() if k != _TABLE}
    described = {"model": model.name, "p": model.p, "squared": model.squared}
    return save(state, metadata={_KEY: json.dumps(described)})


def read_relation_file(path: str | PathLike[str]) -> RelationFile:
    """Reads what :func:`relation_bytes` wrote.

    Raises:
        FormatError: If the file is something else.
        StorageError: If it cannot be read.
    """
    place = Path(path).expanduser()
    with storage_errors(place, "read"):
        place.stat()
        try:
            with safe_open(place, framework="pt") as file:
                described: Any = json.loads((file.metadata() or {})[_KEY])
                name, p, squared = (described[key] for key in ("model", "p", "squared"))
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            return RelationFile(str(name), tensors, float(p), bool(squared))
        except (KeyError, SafetensorError, TypeError, ValueError) as error:
            raise FormatError(
                f"'{path}' does not hold relations that 'sheafprop export --relations' wrote: give "
                "arrays of another origin by --relation-vectors and the like"
            ) from error
