"""Vectors with their labels as safetensors, npy, TSV, word2vec text and CSV for Neo4j."""

import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sheafprop.data.finite_rows import check_finite_rows
from sheafprop.errors import DataError
from sheafprop.files import label_file, write_bytes, written_after
from sheafprop.pretrained.blocks import RowBlocks
from sheafprop.pretrained.entity_index import EntityIndex
from sheafprop.pretrained.node_export import load_nodes, node_lines
from sheafprop.pretrained.tensor_file import Pieces, tensor_bytes

EXPORT_FORMATS = ("safetensors", "npy", "tsv", "word2vec", "neo4j")
_SUFFIXES = {
    ".safetensors": "safetensors",
    ".npy": "npy",
    ".tsv": "tsv",
    ".txt": "word2vec",
    ".csv": "neo4j",
}
# Rows that are written at once.
_STEP = 2**13


def export_vectors(
    path: str | PathLike[str],
    labels: Sequence[str] | EntityIndex,
    vectors: Tensor | RowBlocks,
    *,
    format: str | None = None,
    num_sections: int | None = None,
    nodes: str | PathLike[str] | None = None,
) -> list[Path]:
    r"""Writes vectors for other programs, in blocks.

    Each row is the vector of an entity in single precision: complex numbers as alternating real and
    imaginary parts, several sections concatenated.

    - ``"safetensors"``: the tensor ``vectors``, ``[n, s, d]`` or ``[n, s, d, 2]``, unrounded, and
      the labels in ``FILE.labels.json``
    - ``"npy"``: the matrix, and the labels in ``FILE.labels.json``
    - ``"tsv"``: a line ``label<TAB>v1<TAB>v2...`` for each entity
    - ``"word2vec"``: the text format of gensim and of many vector stores; white space in labels
      becomes ``_``
    - ``"neo4j"``: nodes for ``neo4j-admin database import``, with the label as their id, or those
      of ``nodes`` with all their columns

    Args:
        path: The file to write.
        labels (sequence of str or EntityIndex): The labels of the rows.
        vectors (Tensor or RowBlocks): ``[n, s, d]``.
        format (str, optional): One of the above. (default: by the name of the file)
        num_sections (int, optional): Number of vectors to write for an entity with a single vector.
            (default: one)
        nodes (str or PathLike, optional): Nodes as Neo4j exported them, for ``"neo4j"``; see
            :func:`~sheafprop.pretrained.node_export.node_lines`.

    Returns:
        list of Path: The files written.

    Raises:
        DataError: If a label cannot be represented in the format, or the format is unknown.
        DivergenceError: If a vector is not finite; the message names the entity.
        StorageError: If a file cannot be written.
        ValueError: If labels and vectors differ in number.
    """
    path = Path(path)
    kind = format or _SUFFIXES.get(path.suffix.lower())
    if kind not in EXPORT_FORMATS:
        raise DataError(
            f"'{path}' does not say a format: give one of {', '.join(EXPORT_FORMATS)}"
            + ("" if kind is None else f" (got {kind})")
        )
    if nodes is not None and kind != "neo4j":
        raise DataError(f"nodes are for the format neo4j (got {kind})")
    table = None if nodes is None else load_nodes(nodes)
    if len(labels) != len(vectors):
        raise ValueError(
            f"there must be a label for each vector (got {len(labels)} labels and {len(vectors)})"
        )

    def texts() -> Iterable[str]:
        return labels.iterate() if isinstance(labels, EntityIndex) else labels

    rows = RowBlocks([vectors]) if isinstance(vectors, Tensor) else vectors

    def real(part: Tensor) -> Tensor:
        x = part.detach().cpu()
        x = x if num_sections is None else x.expand(-1, num_sections, -1)
        return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x

    def parts() -> Iterator[Tensor]:
        return map(real, rows.slices(_STEP))

    start = 0
    for part in rows.slices(_STEP):
        numbers = torch.arange(start, start + len(part))
        check_finite_rows(part.detach(), labels, "vectors", ids=numbers)
        start += len(part)
    example = real(rows.blocks[0][:0])
    width = torch.Size(example.shape[1:]).numel()
    if kind == "safetensors":
        pieces = Pieces(example.dtype, (len(rows), *example.shape[1:]), parts())
        return _write_with_labels(path, tensor_bytes({"vectors": pieces}), texts())
    matrix = (part.flatten(1).float().numpy() for part in parts())
    if kind == "npy":
        header = io.BytesIO()
        shape = {"descr": "<f4", "fortran_order": False, "shape": (len(rows), width)}
        np.lib.format.write_array_header_1_0(header, shape)
        data = (part.astype("<f4").tobytes() for part in matrix)
        return _write_with_labels(path, _chain(header.getvalue(), data), texts())
    if kind == "tsv":
        bad = next((label for label in texts() if re.search("[\t\n\r]", label)), None)
        if bad is not None:
            raise DataError(f"label {bad!r} holds a tab or a line break, which TSV cannot hold")
        write_bytes(path, _text(texts(), matrix, "\t"))
        return [path]
    if kind == "neo4j":
        write_bytes(path, node_lines(texts(), matrix, table))
        return [path]
    _check_words(texts)
    first = f"{len(rows)} {width}\n".encode()
    write_bytes(path, _chain(first, _text(map(_word, texts()), matrix, " ")))
    return [path]


def _word(label: str) -> str:
    return re.sub(r"\s+", "_", label)


def _check_words(labels: Callable[[], Iterable[str]]) -> None:
    """Refuses labels that are not a single word, or equal without their white space."""
    changed: dict[str, tuple[int, str]] = {}

    def refuse(word: str, number: int, label: str) -> None:
        pair = sorted([changed.get(word, (-1, "")), (number, label)])
        raise DataError(
            f"labels {pair[0][1]!r} and {pair[1][1]!r} are both {word!r} in word2vec format: "
            "export as npy or safetensors"
        )

    for number, label in enumerate(labels()):
        word = _word(label)
        if not word or (word != label and word in changed):
            refuse(word, number, label)
        if word != label:
            changed[word] = number, label
    if changed:
        for number, label in enumerate(labels()):
            if label in changed:
                refuse(label, number, label)


def _chain(first: bytes, more: Iterable[bytes]) -> Iterator[bytes]:
    yield first
    yield from more


def _write_with_labels(
    path: Path, content: Iterable[bytes | memoryview], labels: Iterable[str]
) -> list[Path]:
    """Vectors and a list of labels in JSON, a label in each line: both files or neither."""
    target = label_file(path)
    with written_after(target, _json_list(labels)):
        write_bytes(path, content)
    return [path, target]


def _json_list(labels: Iterable[str]) -> Iterator[bytes]:
    before = "[\n  "
    for label in labels:
        text = before + json.dumps(label, ensure_ascii=False)
        yield text.encode("utf-8", "surrogatepass")
        before = ",\n  "
    yield b"[]\n" if before[0] == "[" else b"\n]\n"


def _text(labels: Iterable[str], parts: Iterable[np.ndarray], separator: str) -> Iterator[bytes]:
    # Nine digits give every single-precision number back.
    names = iter(labels)
    for rows in parts:
        lines = (
            separator.join([label, *(f"{value:.9g}" for value in row)]) + "\n"
            for row, label in zip(rows.tolist(), names, strict=False)
        )
        yield "".join(lines).encode("utf-8", "surrogatepass")
