"""Brings triples into rows by counting: in memory, or into files that are mapped."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from sheafprop.kernels.backend import leave_inference_mode
from sheafprop.kernels.fact_csr import FactCSR, Rows
from sheafprop.kernels.threads import run_rows

#: Makes an array of a name, size and number type; fewer entries may be kept in the end.
Allocate = Callable[[str, int, Any], NDArray]


class TripleChunk(NamedTuple):
    """Some triples, as integer arrays ``[m]`` of any kind, and their weights (None for ones)."""

    head: NDArray
    edge_type: NDArray
    tail: NDArray
    weight: NDArray | None = None


def number_vertices(
    chunks: Callable[[], Iterator[TripleChunk]], boundary_mask: Tensor
) -> tuple[NDArray, Tensor]:
    """Numbers the free vertices, then the known ones that a free one meets.

    Returns:
        The number of every vertex (any for others), and the known ones that are met, ascending.
    """
    known = boundary_mask.numpy()
    met = np.zeros(len(known), dtype=bool)
    for chunk in chunks():
        head, tail = chunk.head, chunk.tail
        met[head[~known[tail]]] = True
        met[tail[~known[head]]] = True
    met &= known
    number = np.zeros(len(known), dtype=np.int32 if len(known) < 2**31 else np.int64)
    free = ~known
    num_free = int(free.sum())
    number[free] = np.arange(num_free)
    # Others that no free vertex meets may have any number behind these.
    number[known] = num_free
    sources = np.flatnonzero(met)
    number[sources] = num_free + np.arange(len(sources))
    return number, torch.from_numpy(sources)


@leave_inference_mode()
def build_fact_csr(
    chunks: Callable[[], Iterator[TripleChunk]],
    num_free: int,
    num_known: int,
    num_relations: int,
    *,
    merge: bool,
    ends: bool,
    weighted: bool = False,
    distinct: bool = False,
    dtype: torch.dtype = torch.float32,
    allocate: Allocate | None = None,
) -> FactCSR:
    """Brings triples into rows by counting: two passes over them, then one over the rows.

    Args:
        chunks: Returns the triples in pieces, the same at every call; vertices are numbered free
            ones first.
        num_free, num_known, num_relations (int): Sizes.
        merge (bool): Merge entries of one source, for identity maps, whose labels go.
        ends (bool): Keep the labels of all ends, which translations and maps that are not unitary
            need.
        weighted (bool): Whether the triples have weights.
        distinct (bool): Count repeated triples once.
        dtype (torch.dtype): Real number type of weights.
        allocate: Makes the arrays. (default: in memory)
    """
    from sheafprop.kernels import counting_loops

    make = allocate or _in_memory
    sizes = _Sizes(num_free, num_known, num_relations, _numpy_type(dtype))
    free, known, loops = _count(chunks, sizes, weighted, distinct, make)
    total = make("total", num_free, sizes.real)
    total[:] = 0
    for part in (free, known):
        counting_loops.row_sums(part.start, part.weight, total)
    all_ends = _gather(free, known, sizes, make) if ends else None
    if merge:
        free, known = _merge(free, "free", sizes, make), _merge(known, "known", sizes, make)
    return FactCSR(
        num_free,
        num_known,
        num_relations,
        free.rows(),
        known.rows(),
        None if all_ends is None else all_ends.rows(),
        replace(loops.rows(), src=None),
        torch.from_numpy(total),
    )


class _Sizes(NamedTuple):
    num_free: int
    num_known: int
    num_relations: int
    real: Any

    def source(self, part: str) -> DTypeLike:
        size = self.num_known if part == "known" else self.num_free
        return np.int32 if size < 2**31 else np.int64

    @property
    def label(self) -> DTypeLike:
        return np.int16 if 2 * self.num_relations <= 2**15 else np.int32


class _Part(NamedTuple):
    """Rows as arrays while they are built."""

    start: NDArray
    src: Any
    label: Any
    weight: Any

    def rows(self) -> Rows:
        others = (None if a is None else torch.from_numpy(a) for a in self[1:])
        return Rows(torch.from_numpy(self.start), *others)

    def first(self, size: int) -> "_Part":
        """The part with its first entries only."""
        return _Part(self.start, *(None if a is None else a[:size] for a in self[1:]))


def _count(
    chunks: Callable[[], Iterator[TripleChunk]],
    sizes: _Sizes,
    weighted: bool,
    distinct: bool,
    make: Allocate,
) -> list[_Part]:
    """The messages from free and from known vertices and the loops, in sorted rows."""
    from sheafprop.kernels import counting_loops

    names = ("free", "known", "loops")
    starts = [make(f"{name}.start", sizes.num_free + 1, np.int64) for name in names]
    for start in starts:
        start[:] = 0
    for chunk in chunks():
        head, tail = _integers(chunk.head), _integers(chunk.tail)
        counting_loops.count_ends(head, tail, sizes.num_free, *starts)
    parts = []
    for name, start in zip(names, starts, strict=True):
        size = counting_loops.begin_rows(start)
        parts.append(
            _Part(
                start,
                make(f"{name}.src", size, sizes.source(name)),
                make(f"{name}.label", size, sizes.label),
                make(f"{name}.weight", size, sizes.real) if weighted else None,
            )
        )
    for chunk in chunks():
        weight = np.ascontiguousarray(chunk.weight, sizes.real) if weighted else None
        counting_loops.scatter_ends(
            _integers(chunk.head),
            _integers(chunk.tail),
            _integers(chunk.edge_type),
            weight,
            sizes.num_free,
            sizes.num_relations,
            *map(tuple, parts),
        )
    for i, part in enumerate(parts):
        run_rows(counting_loops.order_rows, (*part, 2 * sizes.num_relations), part.start, 16)
        if distinct:
            parts[i] = part.first(counting_loops.drop_repeated(*part))
    return parts


def _gather(free: _Part, known: _Part, sizes: _Sizes, make: Allocate) -> _Part:
    from sheafprop.kernels import counting_loops

    start = make("ends.start", sizes.num_free + 1, np.int64)
    start[0] = 0
    size = int(free.start[-1] + known.start[-1])
    label = make("ends.label", size, sizes.label)
    weight = None if free.weight is None else make("ends.weight", size, sizes.real)
    columns = [(part.start, part.label, part.weight) for part in (free, known)]
    counting_loops.gather_ends(*columns, start, label, weight)
    return _Part(start, None, label, weight)


def _merge(part: _Part, name: str, sizes: _Sizes, make: Allocate) -> _Part:
    """Entries of one source merged; without a weight where each then counts once."""
    from sheafprop.kernels import counting_loops

    start, src, _, weight = part
    if weight is None:
        most = counting_loops.longest_run(start, src)
        if most < 2:
            return _Part(start, src, None, None)
        weight = make(f"{name}.weight", len(src), np.uint8 if most < 2**8 else sizes.real)
        weight[:] = 1
    size = counting_loops.merge_sources(start, src, weight)
    return _Part(start, src, None, weight).first(size)


def _in_memory(name: str, size: int, dtype: Any) -> NDArray:
    return np.empty(size, dtype)


def _integers(ids: NDArray) -> NDArray:
    # One type, so that the loops are compiled once.
    return np.ascontiguousarray(ids, np.int64)


def _numpy_type(dtype: torch.dtype) -> Any:
    return np.float64 if dtype == torch.float64 else np.float32
