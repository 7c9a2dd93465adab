"""Vectors with their labels as safetensors, npy, TSV, word2vec text and CSV for Neo4j; and a model
as plain files of vectors, relations and facts, which ``import arrays`` reads again."""

import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from sheafprop.data.finite_rows import check_finite_parts
from sheafprop.data.triples import format_triples
from sheafprop.errors import DataError, FormatError
from sheafprop.files import as_json, label_file, storage_errors, write_bytes, written_after
from sheafprop.kge import KGEModel
from sheafprop.pretrained.blocks import RowBlocks
from sheafprop.pretrained.entity_index import EntityIndex
from sheafprop.pretrained.model_state import ModelState
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

    check_finite_parts(map(Tensor.detach, rows.slices(_STEP)), labels, "vectors")
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
        return _write_with_labels(path, chain([header.getvalue()], data), texts())
    if kind == "tsv":
        bad = next((label for label in texts() if re.search("[\t\n\r]", label)), None)
        if bad is not None:
            raise DataError(f"label {bad!r} holds a tab or a line break, which TSV cannot hold")
        content = _text(texts(), matrix, "\t")
    elif kind == "neo4j":
        content = node_lines(texts(), matrix, table)
    else:
        _check_words(texts)
        first = f"{len(rows)} {width}\n".encode()
        content = chain([first], _text(map(_word, texts()), matrix, " "))
    write_bytes(path, content)
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
