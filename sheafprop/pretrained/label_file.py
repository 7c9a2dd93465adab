"""Labels and origins of entities in a file that is looked up without being read.

===================== ==============================================================================
``bytes``             the labels in UTF-8, one after the other, uint8
``offset``            where each begins, and the end, int32 or int64, ``[n + 1]``
``hash``, ``id``      the first 8 bytes of BLAKE2b of each label (as int64), ascending as unsigned
                      numbers, and the label's number, ``[n]``
``fold_hash``,        the same of the folded text (:func:`~sheafprop.data.label_checks.fold`) of
``fold_id``           the labels that are not folded already
``origin``            the place of each origin in :obj:`ORIGINS`, uint8 ``[n]``
===================== ==============================================================================

A hash only says where to look: labels are compared in full.
"""

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sheafprop.checks import quote
from sheafprop.data.label_checks import fold
from sheafprop.errors import DataError, FormatError
from sheafprop.pretrained.stored_model import ORIGINS
from sheafprop.pretrained.tensor_file import StoredFile, TensorFile, smallest_integers
from sheafprop.seeding import label_keys

_INTEGERS = (torch.int32, torch.int64)
_STEP = 2**16
_CODES = {origin: code for code, origin in enumerate(ORIGINS)}


def _encode(label: str) -> bytes:
    return label.encode("utf-8", "surrogatepass")


def label_tensors(labels: Iterable[str], origins: Iterable[str]) -> dict[str, Tensor]:
    """What a file of labels holds.

    Raises:
        DataError: If a label occurs twice.
    """
    data, sizes = bytearray(), [np.zeros(1, dtype=np.int64)]
    keys: list[NDArray[np.uint64]] = []
    fold_keys: list[NDArray[np.uint64]] = []
    fold_ids: list[NDArray[np.int64]] = []
    number = 0
    for part in _parts(labels):
        encoded = [_encode(label) for label in part]
        data += b"".join(encoded)
        sizes.append(np.fromiter(map(len, encoded), np.int64, len(encoded)))
        keys.append(label_keys(part))
        texts = [(number + i, fold(label)) for i, label in enumerate(part)]
        texts = [(i, text) for (i, text), label in zip(texts, part, strict=True) if text != label]
        fold_ids.append(np.array([i for i, _ in texts], dtype=np.int64))
        fold_keys.append(label_keys([text for _, text in texts]))
        number += len(part)
    offset = np.cumsum(np.concatenate(sizes))
    hashes, ids = _sorted(keys, np.arange(number))
    same = np.flatnonzero(hashes[1:] == hashes[:-1]).tolist()
    for place in same:
        end = place + 1
        while end < number and hashes[end] == hashes[place]:
            pair = [int(ids[place]), int(ids[end])]
            first, second = (bytes(data[offset[i] : offset[i + 1]]) for i in pair)
            if first == second:
                label = first.decode("utf-8", "surrogatepass")
                raise DataError(
                    f"Every label must occur once among the entities (got {quote(label)} at "
                    f"{pair[0]} and at {pair[1]})"
                )
            end += 1
    fold_hashes, folded = _sorted(fold_keys, np.concatenate([np.zeros(0, np.int64), *fold_ids]))
    kind = smallest_integers(number)
    codes = np.fromiter((_CODES[origin] for origin in origins), np.uint8, number)
    return {
        "bytes": torch.frombuffer(data or bytearray(1), dtype=torch.uint8)[: len(data)],
        "offset": torch.from_numpy(offset).to(smallest_integers(len(data))),
        "hash": torch.from_numpy(hashes.view(np.int64)),
        "id": torch.from_numpy(ids).to(kind),
        "fold_hash": torch.from_numpy(fold_hashes.view(np.int64)),
        "fold_id": torch.from_numpy(folded).to(kind),
        "origin": torch.from_numpy(codes),
    }


def _parts(labels: Iterable[str]) -> Iterator[list[str]]:
    part: list[str] = []
    for label in labels:
        part.append(label)
        if len(part) == _STEP:
            yield part
            part = []
    if part:
        yield part


def _sorted(
    keys: list[NDArray[np.uint64]], ids: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    every = np.concatenate([np.zeros(0, np.uint64), *keys])
    order = np.argsort(every, kind="stable")
    return every[order], ids[order]


class MappedLabels:
    """Labels and origins in a mapped file.

    Args:
        file (TensorFile): What :func:`label_tensors` gave.
        stored (StoredFile): Where it is.

    Raises:
        FormatError: If sizes do not fit.
    """

    def __init__(self, file: TensorFile, stored: StoredFile):
        def take(name: str, *dtypes: torch.dtype) -> NDArray:
            return file.take(name, dim=1, dtypes=dtypes).numpy()

        self.file: StoredFile | None = stored
        self._bytes, self._offset = take("bytes", torch.uint8), take("offset", *_INTEGERS)
        self._hash, self._id = take("hash", torch.int64).view(np.uint64), take("id", *_INTEGERS)
        self._fold_hash = take("fold_hash", torch.int64).view(np.uint64)
        self._fold_id = take("fold_id", *_INTEGERS)
        self._origin = take("origin", torch.uint8)
        size = len(self._origin)
        fits = (
            len(self._offset) == size + 1
            and len(self._hash) == len(self._id) == size
            and len(self._fold_hash) == len(self._fold_id)
            and self._offset[0] == 0
            and self._offset[-1] == len(self._bytes)
        )
        if not fits:
            raise self._refusal("the sizes of its tables do not fit")

    def lookup(self, labels: Sequence[str]) -> Tensor:
        out = torch.full((len(labels),), -1)
        for row, number in self._matches(self._hash, self._id, label_keys(labels)):
            if self._encoded(number) == _encode(labels[row]):
                out[row] = number
        return out

    def _matches(
        self, hashes: NDArray[np.uint64], ids: NDArray, keys: NDArray[np.uint64]
    ) -> Iterator[tuple[int, int]]:
        """Positions of keys, and the numbers of the labels with their hash."""
        first, last = (np.searchsorted(hashes, keys, side) for side in ("left", "right"))
        found = np.flatnonzero(first < last)
        for row, begin, end in zip(
            found.tolist(), first[found].tolist(), last[found].tolist(), strict=True
        ):
            for number in ids[begin:end].tolist():
                if not 0 <= number < len(self):
                    raise self._refusal("a number in its index is out of range")
                yield row, number

    def _encoded(self, number: int) -> bytes:
        begin, end = self._offset[number : number + 2].tolist()
        if not 0 <= begin <= end <= len(self._bytes):
            raise self._refusal("a label lies outside")
        return self._bytes[begin:end].tobytes()

    def labels(self, start: int, stop: int) -> Sequence[str]:
        if stop - start == 1:
            return [self._decode(self._encoded(start))]
        offset = self._offset[start : stop + 1].tolist()
        data = self._bytes[offset[0] : offset[-1]].tobytes()
        ends = itertools.pairwise(offset)
        return [self._decode(data[a - offset[0] : b - offset[0]]) for a, b in ends]

    def _decode(self, data: bytes) -> str:
        try:
            return data.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise self._refusal(f"a label is not text ({error})") from error

    def origins(self, start: int, stop: int) -> Sequence[str]:
        codes = self._origin[start:stop].tolist()
        if codes and max(codes) >= len(ORIGINS):
            raise self._refusal("an origin is unknown")
        return [ORIGINS[code] for code in codes]

    def find_folded(self, wanted: Collection[str]) -> Iterator[tuple[int, str]]:
        texts = list(wanted)
        keys = label_keys(texts)
        found = set(self._matches(self._hash, self._id, keys))
        found |= set(self._matches(self._fold_hash, self._fold_id, keys))
        for number, row in sorted((number, row) for row, number in found):
            label = self._decode(self._encoded(number))
            if fold(label) == texts[row]:
                yield number, label

    def check(self) -> None:
        """Reads everything.

        Raises:
            FormatError: If the index is not of these labels.
        """
        again = label_tensors(self.labels(0, len(self)), self.origins(0, len(self)))
        for name, own in (
            ("offset", self._offset),
            ("hash", self._hash.view(np.int64)),
            ("id", self._id),
            ("fold_hash", self._fold_hash.view(np.int64)),
            ("fold_id", self._fold_id),
        ):
            if not np.array_equal(again[name].numpy(), own):
                raise self._refusal(f"{name!r} is not of its labels")

    def _refusal(self, reason: str) -> FormatError:
        assert self.file is not None
        return FormatError(
            f"'{self.file.path}' is refused: {reason}; copy or write the model folder again."
        )

    def __len__(self) -> int:
        return len(self._origin)
