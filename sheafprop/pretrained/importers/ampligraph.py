import pickle
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from sheafprop.data.triples import as_label
from sheafprop.errors import FormatError
from sheafprop.files import storage_errors
from sheafprop.pretrained.importers.arrays import import_arrays, norm_notes
from sheafprop.pretrained.importers.id_files import require_file
from sheafprop.pretrained.importers.inert_unpickler import Inert
from sheafprop.pretrained.importers.tables import Facts, check_shape
from sheafprop.pretrained.stored_model import StoredModel

#: AmpliGraph's own default.
_NORM = 1.0
_KERAS = (".h5", ".keras", ".ampkl", ".pb", ".index")


def import_ampligraph(
    path: str | PathLike[str], *, facts: Facts | None = None, keep_unused: bool = False
) -> StoredModel:
    r"""Imports a TransE of `AmpliGraph <https://github.com/Accenture/AmpliGraph>`_ 1.x.

    Its score is :math:`- \|\mathbf{h} + \mathbf{r} - \mathbf{t}\|_p` (``_fn`` of ``TransE``), with
    ``norm`` of its hyperparameters as :math:`p`. Of the pickle, dictionaries and arrays of numbers
    are read; nothing else is imported or called. The Keras models of 2.x cannot be read so, and
    the error says what to export there.

    Args:
        path: What ``save_model`` wrote.
        facts (iterable, optional): The training triples as labels.
        keep_unused (bool): See :func:`import_arrays`.

    Raises:
        FormatError: If the file is missing or malformed, of version 2, or of another model.
        StorageError: If it cannot be read.
    """
    path = Path(path).expanduser()
    if path.is_dir() or path.suffix in _KERAS:
        raise FormatError(
            f"'{path}' is a Keras model, as AmpliGraph 2 saves it, which only TensorFlow reads. "
            "Where AmpliGraph is installed, save model.get_embeddings(labels, 'e') and "
            "model.get_embeddings(relations, 'r') by numpy.save, and the labels a line each; then "
            "'sheafprop import arrays --model transe -p 1'"
        )
    found = _load(require_file(path, "give the file that save_model wrote"))
    keys = {"class_name", "hyperparams", "ent_to_idx", "rel_to_idx", "model_params"}
    if not isinstance(found, dict) or not keys <= set(found):
        raise FormatError(f"'{path}' is not a model of AmpliGraph 1: it has no {sorted(keys)}")
    if found["class_name"] != "TransE":
        raise FormatError(
            f"'{path}' holds a {found['class_name']}: only TransE of AmpliGraph has a sheaf"
        )
    labels = [_labels(path, found[name]) for name in ("ent_to_idx", "rel_to_idx")]
    tables = found["model_params"]
    is_whole = isinstance(tables, list | tuple) and len(tables) >= 2
    arrays = [np.asarray(table) for table in tables[:2]] if is_whole else []
    if not is_whole or any(array.dtype.kind != "f" for array in arrays):
        raise FormatError(f"'{path}' holds no arrays of numbers: was the model fitted?")
    for array, names, what in zip(arrays, labels, ("entities", "relations"), strict=True):
        check_shape(path, array, (len(names), None), f"vectors of the {what}")
    options = found["hyperparams"]
    inner = options.get("embedding_model_params") if isinstance(options, Mapping) else None
    norm = float((inner if isinstance(inner, Mapping) else {}).get("norm", _NORM))
    notes = norm_notes(norm)
    return import_arrays(
        "transe",
        entities=labels[0],
        relations=labels[1],
        vectors=arrays[0],
        parameters={"rel_emb.weight": arrays[1]},
        facts=facts,  # type: ignore[arg-type]
        p=norm,
        notes=notes,
        keep_unused=keep_unused,
    )


def _labels(path: Path, ids: Any) -> list[str]:
    values = list(ids.values()) if isinstance(ids, dict) else []
    if not values or sorted(map(_as_id, values)) != list(range(len(values))):
        raise FormatError(f"'{path}' does not number its labels from 0 on, each once")
    names = {_as_id(value): as_label(label, f"'{path}': a label") for label, value in ids.items()}
    return [names[number] for number in range(len(names))]


def _as_id(value: Any) -> int:
    is_id = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return int(value) if is_id else -1


def _load(path: Path) -> Any:
    with storage_errors(path, "read"), path.open("rb") as file:
        try:
            return _ArrayUnpickler(file).load()
        except OSError:
            raise
        except Exception as error:
            raise FormatError(
                f"'{path}' is not a complete pickle of AmpliGraph 1: {error}"
            ) from error


class _ArrayUnpickler(pickle.Unpickler):
    """Reads containers and arrays of numbers; any other object stays inert."""

    def find_class(self, module: str, name: str) -> Any:
        made = _NUMPY.get((module.replace("numpy._core", "numpy.core"), name))
        return made or type(name, (Inert,), {"origin": f"{module}.{name}"})

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it names another file")


def _empty_array(kind: Any, shape: Any, code: Any) -> np.ndarray:
    return np.ndarray.__new__(np.ndarray, (0,), dtype=np.int8)


def _from_buffer(content: Any, dtype: np.dtype, shape: Any, order: str) -> np.ndarray:
    return np.frombuffer(content, dtype=_of_numbers(dtype)).reshape(shape, order=order)  # type: ignore[call-overload]


def _latin1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes in {encoding!r}")
    return text.encode("latin1")


def _of_numbers(dtype: Any) -> np.dtype:
    if not isinstance(dtype, np.dtype) or dtype.hasobject:
        raise pickle.UnpicklingError("an array of something else than numbers and text")
    return dtype


def _scalar(dtype: np.dtype, content: bytes = b"") -> Any:
    return np.frombuffer(content, dtype=_of_numbers(dtype))[0].item()


#: What pickles of arrays call, by protocol: our own functions in place of NumPy's.
_NUMPY = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("_codecs", "encode"): _latin1,
}
