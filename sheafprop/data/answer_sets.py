from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class AnswerSets:
    """The answers of many queries as two arrays, in the layout of CSR.

    Args:
        start: Offset of the set of each query in ``values``, int64 ``[Q + 1]``.
        values: Concatenated sets, each sorted, int32.
    """

    start: NDArray[np.int64]
    values: NDArray[np.int32]

    @classmethod
    def from_sizes(cls, sizes: NDArray[np.int64], values: NDArray[np.int32]) -> "AnswerSets":
        """Creates the sets from their sizes and the concatenated values."""
        return cls(np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)]), values)

    @classmethod
    def from_sets(cls, sets: Iterable[Iterable[int]]) -> "AnswerSets":
        """Creates the sets from Python integers."""
        rows = [sorted(values) for values in sets]
        sizes = np.array([len(row) for row in rows], dtype=np.int64)
        flat = np.fromiter((v for row in rows for v in row), dtype=np.int32, count=int(sizes.sum()))
        return cls.from_sizes(sizes, flat)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The size of every set, ``[Q]``."""
        return np.diff(self.start)

    @property
    def rows(self) -> NDArray[np.int64]:
        """The query of every value."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def select(self, rows: NDArray[np.int64]) -> "AnswerSets":
        """Returns the sets of the queries ``rows``, in the given order."""
        sizes = self.sizes[rows]
        out = np.repeat(self.start[rows] - (np.cumsum(sizes) - sizes), sizes)
        return AnswerSets.from_sizes(sizes, self.values[out + np.arange(out.size)])

    def __getitem__(self, row: int) -> NDArray[np.int32]:
        if not -len(self) <= row < len(self):
            raise IndexError(f"there are {len(self)} sets (got {row})")
        row %= len(self)
        return self.values[self.start[row] : self.start[row + 1]]

    def __iter__(self) -> Iterator[NDArray[np.int32]]:
        return (self[row] for row in range(len(self)))

    def __len__(self) -> int:
        return self.start.size - 1

    def __repr__(self) -> str:
        return f"{self.__class__.__name__}({len(self)} sets, {self.values.size} entities)"
