"""Vectors, labels and facts of a model as folders of mapped files.

============ ======================================================================================
``vectors/`` the tables in shards by rows: safetensors files in the layout that
             :class:`torch.distributed.checkpoint.HuggingFaceStorageWriter` writes for a tensor that
             is shared by rows. Each holds ``node_emb.weight`` ``[n, m]``, a part of the trained
             table (complex numbers as pairs), or ``extended`` ``[n, s, m]``, vectors of added
             entities; the place of its first row is in its metadata
``labels/``  labels and origins, see :mod:`~sheafprop.pretrained.label_file`
``facts/``   the facts with their neighbour lists, see :mod:`~sheafprop.pretrained.fact_index`
============ ======================================================================================

Files are numbered in the order in which their content came, and are never changed: an extended
model has the files of the old one (the same files of the disk where it can) and some more.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from sheafprop.data.finite_rows import Named, check_finite_parts, check_finite_rows
from sheafprop.errors import FormatError
from sheafprop.files import sync_folder
from sheafprop.kernels.backend import all_finite
from sheafprop.kernels.rows import promote
from sheafprop.kge import KGEModel
from sheafprop.pretrained.blocks import RowBlocks
from sheafprop.pretrained.entity_index import EntityIndex, LabelBlock
from sheafprop.pretrained.fact_index import FactBlock, FactIndex
from sheafprop.pretrained.label_file import MappedLabels, label_tensors
from sheafprop.pretrained.model_state import ModelState, real_rows
from sheafprop.pretrained.tensor_file import (
    Pieces,
    StoredFile,
    TensorFile,
    smallest_integers,
    write_tensors,
)

#: Names that a manifest may give to these files: none leads out of the folder.
PART = re.compile(
    r"vectors/[A-Za-z0-9][\w.-]*\.safetensors|(labels|facts)/\d{5}\.safetensors", re.A
)
FOLDERS = ("vectors", "labels", "facts")

TABLE, EXTENDED = "node_emb.weight", "extended"
_SHARDING = "DCP_SHARDING_INFO"
_OFFSETS = "saved_offsets"
#: Types of rows. Those of half precision are computed with in single precision.
TABLE_TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
# Bytes of a shard that is written here; facts and labels of a file.
_SHARD_BYTES = 2**30
_FACTS, _LABELS = 2**24, 2**24

Record = dict[str, tuple[int, str]]


# Writing -----------------------------------------------------------------------------------------


def write_parts(folder: Path, state: ModelState) -> Record:
    """Writes vectors, labels and facts into a new folder.

    Args:
        folder: An empty folder.
        state (ModelState): The model. What is mapped from files that are as they were is linked.

    Returns:
        Size and SHA-256 of each file by name.

    Raises:
        DivergenceError: If a vector is not finite; names the entity.
        StorageError: If the disk refuses.
    """
    for name in FOLDERS:
        (folder / name).mkdir()
    files = _Files(folder)
    trained, added = state.rows.trained(), state.rows.added()
    _write_rows(files, TABLE, trained, None, state.index)
    if len(added):
        _write_rows(files, EXTENDED, added, state.num_sections, state.index, len(trained))
    _write_labels(files, state.index)
    _write_facts(files, state.facts)
    for name in FOLDERS:
        sync_folder(folder / name)
    return files.record


class _Files:
    """The files of a new folder as they come."""

    def __init__(self, folder: Path):
        self.folder, self.record = folder, Record()
        self._count = dict.fromkeys(FOLDERS, 0)

    def _next(self, kind: str) -> str:
        self._count[kind] += 1
        number = f"{self._count[kind]:05}"
        if kind == "vectors":
            return f"vectors/shard-{number}-model-00001-of-00001.safetensors"
        return f"{kind}/{number}.safetensors"

    def link(self, kind: str, file: StoredFile | None) -> bool:
        """Takes a file over as it is, where that is possible."""
        if file is None:
            return False
        name = self._next(kind)
        if not file.link(self.folder / name):
            self._count[kind] -= 1
            return False
        self.record[name] = file.size, file.sha256
        return True

    def write(
        self,
        kind: str,
        tensors: Mapping[str, Tensor | Pieces],
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        name = self._next(kind)
        self.record[name] = write_tensors(self.folder / name, tensors, metadata)


def sharding(key: str, offset: int, dim: int) -> dict[str, str]:
    """The metadata of a shard whose first row has the number ``offset``."""
    info = {key: {_OFFSETS: [offset] + [0] * (dim - 1)}}
    return {"format": "pt", "DCP_VERSION": "1.0", _SHARDING: json.dumps(info)}


def _write_rows(
    files: _Files, key: str, rows: RowBlocks, sections: int | None, labels: Named, first: int = 0
) -> None:
    """Writes a table: rows ``[n, m]``, or ``[n, s, m]`` where there are sections."""
    offset = 0
    for block, file in zip(rows.blocks, rows.files, strict=True):
        is_same = not len(rows.numbering.within(0, offset + len(block)))
        if not (is_same and block.shape[1] == (sections or 1) and files.link("vectors", file)):
            break
        offset += len(block)

    def parts(start: int) -> Iterator[Tensor]:
        for x in real_rows(rows, start):
            if not all_finite(x):
                check_finite_rows(
                    x, labels, "vectors", ids=torch.arange(start, start + len(x)) + first
                )
            yield x[:, 0] if sections is None else x.expand(-1, sections, -1)
            start += len(x)

    example = next(real_rows(rows))
    tail = (example.shape[2],) if sections is None else (sections, example.shape[2])
    width = torch.Size(tail).numel() * example.element_size()
    step = max(1, _SHARD_BYTES // width)
    for start in range(offset, len(rows), step):
        shape = (min(step, len(rows) - start), *tail)
        pieces = Pieces(example.dtype, shape, _first(parts(start), shape[0]))
        files.write("vectors", {key: pieces}, sharding(key, start, len(shape)))


def _first(parts: Iterable[Tensor], number: int) -> Iterator[Tensor]:
    """The first rows of parts."""
    for part in parts:
        yield part[:number]
        number -= len(part)
        if number <= 0:
            return


def _write_labels(files: _Files, index: EntityIndex) -> None:
    start = 0
    for block in index.blocks:
        is_same = not len(index.numbering.within(0, start + len(block)))
        if not (is_same and files.link("labels", block.file)):
            break
        start += len(block)
    labels, origins = index.iterate(start), index.iterate_origins(start)
    for begin in range(start, len(index), _LABELS):
        size = min(_LABELS, len(index) - begin)
        files.write("labels", label_tensors(islice(labels, size), islice(origins, size)))


def _write_facts(files: _Files, facts: FactIndex) -> None:
    start = 0
    for block in facts.blocks:
        if not (facts.is_whole and files.link("facts", block.file)):
            break
        start += len(block)
    # One file more at most: what is not linked is new, or all of it was renumbered.
    for part in _joined(facts.chunks(start), _FACTS):
        largest = int(part.max()) if len(part) else 0
        files.write("facts", FactBlock(part.to(smallest_integers(largest))).tensors())
    if not files.record.keys() & {"facts/00001.safetensors"}:
        files.write("facts", FactBlock(torch.zeros(0, 3, dtype=torch.int32)).tensors())


def _joined(parts: Iterable[Tensor], size: int) -> Iterator[Tensor]:
    """Parts put together up to a size."""
    waiting: list[Tensor] = []
    for part in parts:
        if waiting and sum(map(len, waiting)) + len(part) > size:
            yield torch.cat(waiting)
            waiting = []
        waiting.append(part)
    if waiting:
        yield torch.cat(waiting)


# Reading -----------------------------------------------------------------------------------------


class Parts(NamedTuple):
    """What the three folders hold."""

    rows: RowBlocks
    entities: EntityIndex
    facts: FactIndex

    def check(self) -> None:
        """Reads everything.

        Raises:
            FormatError: If an index is not of its content.
            DivergenceError: If a vector is not finite; names the entity.
        """
        for block in self.entities.blocks:
            if isinstance(block, MappedLabels):
                block.check()
        for facts in self.facts.blocks:
            facts.check()
        check_finite_parts(real_rows(self.rows), self.entities, "vectors")


def open_parts(model: KGEModel, files: Mapping[str, StoredFile], sections: int) -> Parts:
    """Maps the files of the three folders.

    Args:
        model (KGEModel): The model, whose table is not looked at.
        files: The files by their names in the manifest.
        sections (int): How many vectors an added entity may have.

    Raises:
        FormatError: If a file is not what it should be; names it.
        ValueError: If the files are fewer than belong together.
    """
    by_kind = {
        kind: [files[name] for name in sorted(files) if name.startswith(f"{kind}/")]
        for kind in FOLDERS
    }
    rows = open_rows(model, by_kind["vectors"], sections)
    blocks: list[LabelBlock] = [MappedLabels(TensorFile(f.path), f) for f in by_kind["labels"]]
    if not blocks or sum(map(len, blocks)) != len(rows):
        raise ValueError(
            f"the folder holds {sum(map(len, blocks))} labels for {len(rows)} vectors: a file of "
            "'labels' or 'vectors' is missing"
        )
    limits = len(rows), model.num_relations
    facts = [FactBlock.open(TensorFile(f.path), f, limits) for f in by_kind["facts"]]
    if not facts:
        raise ValueError("a file of 'facts' is missing")
    return Parts(rows, EntityIndex.of(blocks), FactIndex(*facts))


class _Shard(NamedTuple):
    first: int
    rows: Tensor
    file: StoredFile


def open_rows(model: KGEModel, files: Iterable[StoredFile], sections: int = 1) -> RowBlocks:
    """Maps shards of the trained table and of the vectors of added entities.

    Shards that :mod:`torch.distributed.checkpoint` wrote in this layout are read as well, whatever
    their names and however many ranks there were.

    Args:
        model (KGEModel): The model, whose table is not looked at.
        files: The shards, in any order.
        sections (int): How many vectors an added entity may have.

    Raises:
        FormatError: If rows between shards are missing or there twice, or a shard has another type
            or width; names it.
        ValueError: If rows at the end are missing.
    """
    found: dict[str, list[_Shard]] = {TABLE: [], EXTENDED: []}
    alone: dict[Path, bool] = {}
    for stored in files:
        file = TensorFile(stored.path)
        alone[stored.path] = len(file.tensors) == 1
        for key in found.keys() & file.tensors.keys():
            rows = file.take(key, dim=2 if key == TABLE else 3, dtypes=TABLE_TYPES)
            found[key].append(_Shard(_offset(file, key, rows), rows, stored))
    width = model.hidden_channels * (2 if model.is_complex else 1)
    kind = promote(model.like()).dtype
    blocks: list[Tensor] = []
    kept: list[StoredFile | None] = []
    for key, shards in found.items():
        end = 0
        # An empty shard begins where another does.
        for shard in sorted(shards, key=lambda shard: (shard.first, len(shard.rows))):
            rows, path = shard.rows, shard.file.path
            if shard.first != end:
                raise FormatError(
                    f"'{path}' is refused: it begins at row {shard.first} of {key!r}, where row "
                    f"{end} is next; a shard is missing, or is there twice"
                )
            if rows.shape[-1] != width or promote(rows[:0]).dtype != kind:
                raise FormatError(
                    f"'{path}' is refused: rows of {key!r} must be {width} numbers of {kind} "
                    f"(got {rows.shape[-1]} of {rows.dtype})"
                )
            if rows.dim() == 3 and rows.shape[1] not in (1, sections):
                raise FormatError(
                    f"'{path}' is refused: an entity must have {sections} vectors "
                    f"(got {rows.shape[1]})"
                )
            end += len(rows)
            if len(rows):
                vectors = model.as_vectors(promote(rows))
                blocks.append(vectors.unsqueeze(1) if rows.dim() == 2 else vectors)
                kept.append(shard.file if alone[path] else None)
        if key == TABLE:
            fixed = len(blocks)
            if end != model.num_nodes:
                raise ValueError(
                    f"the shards hold {end} of {model.num_nodes} rows of {key!r}: one is missing"
                )
    return RowBlocks(blocks, fixed=fixed, files=kept)


def _offset(file: TensorFile, key: str, rows: Tensor) -> int:
    """The number of the first row of a shard; zero for a table that is in one piece."""
    text = file.metadata.get(_SHARDING)
    if text is None:
        return 0
    try:
        offsets = json.loads(text)[key][_OFFSETS]
        wrong = not all(type(x) is int and x >= 0 for x in offsets) or len(offsets) != rows.dim()
        if wrong or any(offsets[1:]):
            raise ValueError(f"offsets {offsets} are not of rows")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(
            f"'{file.path}' is refused: its metadata does not say which rows of {key!r} it holds "
            f"({error})"
        ) from error
    return offsets[0]
