"""The facts of large files in ids: int32 on the disk, labels as one piece of text."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sheafprop.checks import agree, count_noun, quote
from sheafprop.data.triple_blocks import TripleBlock, triple_blocks
from sheafprop.errors import DataError, UnknownRelationError
from sheafprop.files import storage_errors
from sheafprop.kernels.build_fact_csr import TripleChunk, number_vertices
from sheafprop.kernels.label_table import LabelList, LabelTable
from sheafprop.pretrained.mapped.array_folder import ArrayFolder
from sheafprop.pretrained.model_state import ModelState

# Facts and labels that are looked at together.
_CHUNK = 2**18
_NAMED = 5


@dataclass(frozen=True, eq=False)
class FactIds:
    """Facts in ids, and which entities they are of.

    Args:
        facts: Labels of head and tail by their number, and relations, int32 ``[3 m]``.
        number: Of each label: new entities in their order, then the known ones that they meet.
        known: The model's ids of these, ascending, int64.
        new: Labels of the new entities by their number, int32 ``[n]``.
        labels (LabelList): All labels.
        counts: ``facts``, ``new_entities``, ``known_entities``, ``dropped_facts``.
    """

    facts: NDArray
    number: NDArray
    known: NDArray
    new: NDArray
    labels: LabelList
    counts: dict[str, Any]

    @property
    def num_facts(self) -> int:
        return len(self.facts) // 3

    def chunks(self, relation_weight: NDArray | None = None) -> Iterator[TripleChunk]:
        """The facts between numbered entities, with the weights of their relations."""
        facts = self.facts.reshape(-1, 3)
        for start in range(0, len(facts), _CHUNK):
            head, relation, tail = facts[start : start + _CHUNK].T
            weight = None if relation_weight is None else relation_weight[relation]
            yield TripleChunk(self.number[head], relation, self.number[tail], weight)

    def new_keys(self, start: int, stop: int) -> NDArray:
        """The keys of some new entities' labels, for draws."""
        return self.labels.keys(self.new[start:stop])

    def new_labels(self, start: int, stop: int) -> list[str]:
        """The labels of some new entities."""
        return self.labels.labels(self.new[start:stop])


def read_fact_ids(folder: ArrayFolder) -> FactIds | None:
    """What :func:`write_fact_ids` has written; None if it was not finished."""
    counts = folder.facts()
    if counts is None:
        return None
    arrays = folder.open()
    labels = LabelList(arrays.pop("text"), arrays.pop("offset"))
    return FactIds(**arrays, labels=labels, counts=counts["counts"])


def write_fact_ids(
    folder: ArrayFolder,
    paths: Sequence[Path],
    state: ModelState,
    *,
    on_unknown_relation: str,
    options: dict[str, Any],
    on_read: Callable[[int], None] = lambda count: None,
) -> FactIds:
    """Reads files of facts once and writes their ids; ``on_read`` gets how many bytes.

    Raises:
        UnknownRelationError: If the model has no maps for a relation, unless such facts are to be
            dropped.
        DataError: If a file is malformed, or no fact touches a new entity.
    """
    folder.clear()
    table, relations = LabelTable(), _Relations(state)
    num_facts = 0
    with storage_errors(folder.path, "written"), open(folder.path / "facts.bin", "wb") as file:
        for path in paths:
            for block in triple_blocks(path, known=state.index, **options):
                on_read(len(block.raw))
                ids, block = relations.of(block)
                ends = table.number(
                    block.raw, block.begin[:, [0, 2]].ravel(), block.end[:, [0, 2]].ravel()
                ).reshape(-1, 2)
                facts = np.stack([ends[:, 0], ids, ends[:, 1]], axis=1)
                file.write(np.ascontiguousarray(facts, np.int32).data)
                num_facts += len(facts)
        file.flush()
        os.fsync(file.fileno())
    relations.check(num_facts, on_unknown_relation)
    labels = table.labels()
    ids = _look_up(state, labels)
    number, known = _number_entities(folder.path / "facts.bin", num_facts, ids)
    new = np.flatnonzero(ids < 0)
    counts = {
        "facts": num_facts,
        "new_entities": len(new),
        "known_entities": int((ids >= 0).sum()),
        "dropped_facts": dict(relations.dropped.most_common()),
    }
    if not len(new):
        raise DataError(
            f"there is nothing to propagate to: the model has a vector for all "
            f"{count_noun(len(ids), 'entity')} of these facts"
        )
    made = {
        "number": number,
        "known": known,
        "new": new.astype(np.int32),
        "text": labels.text,
        "offset": labels.offset,
    }
    kept = {}
    for name, values in made.items():
        kept[name] = folder.make(name, len(values), values.dtype)
        kept[name][:] = values
    facts = np.memmap(folder.path / "facts.bin", np.int32, "r")
    folder.finish({"facts": np.asarray(facts), **kept}, counts=counts)
    found = read_fact_ids(folder)
    assert found is not None
    return found


class _Relations:
    """Looks up relations, and counts those that the model does not know."""

    def __init__(self, state: ModelState):
        self._state, self._table = state, LabelTable()
        self._ids = np.zeros(0, np.int64)
        self.dropped: Counter[str] = Counter()
        self._places: list[str] = []

    def of(self, block: TripleBlock) -> tuple[NDArray, TripleBlock]:
        """The ids of a block's relations, and the block without facts of unknown ones."""
        begin, end = (np.ascontiguousarray(at[:, 1]) for at in (block.begin, block.end))
        numbers = self._table.number(block.raw, begin, end)
        if len(self._table) > len(self._ids):
            fresh = np.arange(len(self._ids), len(self._table))
            labels = self._table.labels().labels(fresh)
            found = self._state.relations.lookup(labels).numpy()
            self._ids = np.concatenate([self._ids, found])
        ids = self._ids[numbers]
        lost = np.flatnonzero(ids < 0)
        if not len(lost):
            return ids, block
        labels = self._table.labels().labels(numbers[lost])
        self.dropped.update(labels)
        room = max(0, _NAMED - len(self._places))
        self._places += [f"{block.place} {block.lines[i]}" for i in lost[:room].tolist()]
        kept = ids >= 0
        return ids[kept], block.select(kept)

    def check(self, num_facts: int, on_unknown_relation: str) -> None:
        """Refuses unknown relations, unless their facts were to be dropped and some are left."""
        count = sum(self.dropped.values())
        if not count or (num_facts and on_unknown_relation == "drop"):
            return
        named = ", ".join(
            f"{quote(label)} ({count_noun(of, 'fact')})" + self._state.relations.suggestion(label)
            for label, of in self.dropped.most_common(_NAMED)
        )
        advice = "; drop these facts by --on-unknown-relation drop" if num_facts else ""
        raise UnknownRelationError(
            f"{count_noun(len(self.dropped), 'relation')} "
            f"{agree(len(self.dropped), 'is', 'are')} unknown to the model, so it has no maps: "
            f"{named}; {count} of {count_noun(num_facts + count, 'fact')} affected "
            f"({'; '.join(self._places)}){advice}"
        )


def _look_up(state: ModelState, labels: LabelList) -> NDArray:
    """The model's ids of all labels, -1 for new ones, int64."""
    out = np.empty(len(labels), np.int64)
    for start in range(0, len(labels), _CHUNK):
        part = np.arange(start, min(start + _CHUNK, len(labels)))
        out[part] = state.index.lookup(labels.labels(part)).numpy()
    return out


def _number_entities(path: Path, num_facts: int, ids: NDArray) -> tuple[NDArray, NDArray]:
    """Numbers of all labels, new ones first, and the model's ids of the known ones that are met.

    Known entities are in the order of their ids, as in an extension of the model.
    """
    facts = np.asarray(np.memmap(path, np.int32, "r", shape=(num_facts, 3)))

    def chunks() -> Iterator[TripleChunk]:
        for start in range(0, num_facts, _CHUNK):
            yield TripleChunk(*facts[start : start + _CHUNK].T)

    number, sources = number_vertices(chunks, torch.from_numpy(ids >= 0))
    met = sources.numpy()
    met = met[np.argsort(ids[met], kind="stable")]
    number[met] = int((ids < 0).sum()) + np.arange(len(met))
    return number, ids[met]
