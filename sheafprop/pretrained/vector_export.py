"""Vectors with their labels as safetensors, npy, TSV and word2vec text."""

import io
import re
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from sheafprop.data.finite_rows import check_finite_rows
from sheafprop.errors import DataError
from sheafprop.files import as_json, write_bytes, written_after

EXPORT_FORMATS = ("safetensors", "npy", "tsv", "word2vec")
_SUFFIXES = {".safetensors": "safetensors", ".npy": "npy", ".tsv": "tsv", ".txt": "word2vec"}


def export_vectors(
    path: str | PathLike[str],
    labels: Sequence[str],
    vectors: Tensor,
    *,
    format: str | None = None,
) -> list[Path]:
    r"""Writes vectors for other programs.

    A row is an entity's vector: complex numbers as real and imaginary part in turn, several
    sections one after the other, in single precision.

    - ``"safetensors"``: the tensor ``vectors``, ``[n, s, d]`` or ``[n, s, d, 2]``, unrounded, and
      the labels in ``FILE.labels.json``
    - ``"npy"``: the matrix, and the labels in ``FILE.labels.json``
    - ``"tsv"``: a line ``label<TAB>v1<TAB>v2...`` for each entity
    - ``"word2vec"``: the text format of gensim and of many vector stores; white space in labels
      becomes ``_``

    Args:
        path: The file to write.
        labels (sequence of str): The labels of the rows.
        vectors (Tensor): ``[n, s, d]``.
        format (str, optional): One of the above. (default: by the name of the file)

    Returns:
        list of Path: The files written.

    Raises:
        DataError: If a label cannot stand in that format, or the format is unknown.
        DivergenceError: If a vector is not finite; names the entity.
        StorageError: If the disk refuses.
        ValueError: If labels and vectors differ in number.
    """
    path = Path(path)
    kind = format or _SUFFIXES.get(path.suffix.lower())
    if kind not in EXPORT_FORMATS:
        raise DataError(
            f"'{path}' does not say a format: give one of {', '.join(EXPORT_FORMATS)} (got {kind})"
        )
    if len(labels) != len(vectors):
        raise ValueError(
            f"there must be a label for each vector (got {len(labels)} labels and {len(vectors)})"
        )
    check_finite_rows(vectors.detach(), labels, "vectors")
    x = vectors.detach().cpu()
    x = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    if kind == "safetensors":
        return _write_with_labels(path, save({"vectors": x.contiguous()}), labels)
    rows = x.flatten(1).float().numpy()
    if kind == "npy":
        buffer = io.BytesIO()
        np.save(buffer, rows, allow_pickle=False)
        return _write_with_labels(path, buffer.getvalue(), labels)
    if kind == "tsv":
        bad = next((label for label in labels if re.search("[\t\n\r]", label)), None)
        if bad is not None:
            raise DataError(f"label {bad!r} holds a tab or a line break, which TSV cannot hold")
        write_bytes(path, _text(labels, rows, "\t"))
        return [path]
    words = [re.sub(r"\s+", "_", label) for label in labels]
    seen: dict[str, str] = {}
    for word, label in zip(words, labels, strict=True):
        if not word or seen.setdefault(word, label) != label:
            raise DataError(
                f"labels {seen.get(word, '')!r} and {label!r} are both {word!r} in word2vec "
                "format: export as npy or safetensors"
            )
    header = f"{len(rows)} {rows.shape[1]}\n".encode()
    write_bytes(path, header + _text(words, rows, " "))
    return [path]


def _write_with_labels(path: Path, content: bytes, labels: Sequence[str]) -> list[Path]:
    target = path.with_name(path.name + ".labels.json")
    with written_after(target, as_json(list(labels))):
        write_bytes(path, content)
    return [path, target]


def _text(labels: Sequence[str], rows: np.ndarray, separator: str) -> bytes:
    # Nine digits give every single-precision number back.
    lines = (
        separator.join([label, *(f"{value:.9g}" for value in row)]) + "\n"
        for label, row in zip(labels, rows.tolist(), strict=True)
    )
    return "".join(lines).encode("utf-8", "surrogatepass")
