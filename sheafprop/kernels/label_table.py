"""Labels of a large graph numbered without a Python string for each."""

import hashlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sheafprop.kernels.numba_loops import compile_loops

_compiled = compile_loops()
# Fields that are looked up at once, for which the table has room beforehand.
_FIELDS = 2**18


@_compiled
def _hash(raw, begin, end):  # type: ignore[no-untyped-def]
    """FNV-1a of 64 bits, finished by a bijection that mixes all of them."""
    value = np.uint64(0xCBF29CE484222325)
    for i in range(begin, end):
        value = (value ^ np.uint64(raw[i])) * np.uint64(0x100000001B3)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return value ^ (value >> np.uint64(31))


@_compiled
def _place(hashes, slots):  # type: ignore[no-untyped-def]
    """Puts numbers into an empty table by their hashes."""
    mask = np.uint64(slots.size - 1)
    for number in range(hashes.size):
        at = hashes[number] & mask
        while slots[at] >= 0:
            at = (at + np.uint64(1)) & mask
        slots[at] = number


@_compiled
def _number(raw, begin, end, text, offset, hashes, slots, count, out):  # type: ignore[no-untyped-def]
    """Numbers of fields; those of new labels follow on ``count``, and are added. Returns the
    number of labels then."""
    mask = np.uint64(slots.size - 1)
    for i in range(begin.size):
        size = end[i] - begin[i]
        value = _hash(raw, begin[i], end[i])
        at = value & mask
        while True:
            number = slots[at]
            if number < 0:
                slots[at] = number = count
                hashes[count] = value
                first = offset[count]
                for j in range(size):
                    text[first + j] = raw[begin[i] + j]
                count += 1
                offset[count] = first + size
                break
            first = offset[number]
            if hashes[number] == value and offset[number + 1] - first == size:
                j = 0
                while j < size and text[first + j] == raw[begin[i] + j]:
                    j += 1
                if j == size:
                    break
            at = (at + np.uint64(1)) & mask
        out[i] = number
    return count


class LabelTable:
    """Numbers labels by their first appearance; a label takes its UTF-8 bytes and about 30 more."""

    def __init__(self) -> None:
        self._size = 0
        self._text = np.empty(2**12, np.uint8)
        self._offset = np.zeros(2**10 + 1, np.int64)
        self._hashes = np.empty(2**10, np.uint64)
        self._slots = np.full(2**11, -1, np.int32)

    def __len__(self) -> int:
        return self._size

    def number(self, raw: NDArray, begin: NDArray, end: NDArray) -> NDArray:
        """Numbers of the fields ``raw[begin:end]``, int32 ``[m]``; new labels are added.

        Args:
            raw: Bytes of some text, uint8.
            begin, end: Where the fields lie in it, int64 ``[m]``.
        """
        out = np.empty(len(begin), np.int32)
        for start in range(0, len(begin), _FIELDS):
            part = slice(start, start + _FIELDS)
            self._reserve(len(begin[part]), int((end[part] - begin[part]).sum()))
            arrays = self._text, self._offset, self._hashes, self._slots
            self._size = _number(raw, begin[part], end[part], *arrays, self._size, out[part])
        return out

    def _reserve(self, fields: int, num_bytes: int) -> None:
        """Makes room for so many labels more."""
        size, used = self._size + fields, int(self._offset[self._size])
        if size > 2**31 - 1:
            raise OverflowError("there are more than 2^31 labels")
        self._text = _grow(self._text, used, used + num_bytes)
        self._offset = _grow(self._offset, self._size + 1, size + 1)
        self._hashes = _grow(self._hashes, self._size, size)
        if 2 * size > len(self._slots):
            self._slots = np.full(1 << (4 * size - 1).bit_length() - 1, -1, np.int32)
            _place(self._hashes[: self._size], self._slots)

    def labels(self) -> "LabelList":
        """The labels by their number, in the memory of the table."""
        offset = self._offset[: self._size + 1]
        return LabelList(self._text[: offset[-1]], offset)


class LabelList:
    """Labels in one piece of text.

    Args:
        text: Their UTF-8 bytes, uint8.
        offset: Where each begins, and the end of the last, int64 ``[n + 1]``.
    """

    def __init__(self, text: NDArray, offset: NDArray):
        self.text, self.offset = text, offset

    def __len__(self) -> int:
        return len(self.offset) - 1

    def encoded(self, numbers: NDArray) -> Iterator[bytes]:
        """The UTF-8 bytes of some labels."""
        for begin, end in zip(self.offset[numbers], self.offset[numbers + 1], strict=True):
            yield self.text[begin:end].tobytes()

    def labels(self, numbers: NDArray) -> list[str]:
        """Some labels as strings."""
        return [label.decode("utf-8", "surrogatepass") for label in self.encoded(numbers)]

    def select(self, numbers: NDArray) -> "LabelList":
        """Some labels, numbered anew in their order."""
        size = self.offset[numbers + 1] - self.offset[numbers]
        offset = np.concatenate([np.zeros(1, np.int64), np.cumsum(size)])
        text = np.empty(offset[-1], np.uint8)
        for start in range(0, len(numbers), _FIELDS):
            part = slice(start, start + _FIELDS)
            first, last = offset[start], offset[min(start + _FIELDS, len(numbers))]
            moved = self.offset[numbers[part]] - offset[:-1][part]
            text[first:last] = self.text[np.arange(first, last) + np.repeat(moved, size[part])]
        return LabelList(text, offset)

    def keys(self, numbers: NDArray) -> NDArray:
        """What :func:`sheafprop.seeding.label_keys` gives for some labels, uint64."""
        digests = (
            hashlib.blake2b(label, digest_size=8).digest() for label in self.encoded(numbers)
        )
        return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


def _grow(array: NDArray, used: int, size: int) -> NDArray:
    """The array, or a larger one with its used entries."""
    if size <= len(array):
        return array
    larger = np.zeros(max(size, 3 * len(array) // 2), array.dtype)
    larger[:used] = array[:used]
    return larger
