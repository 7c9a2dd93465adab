"""Partitions of the entities of a graph among processes."""

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sheafprop.checks import check_integer
from sheafprop.errors import DataError
from sheafprop.seeding import GOLDEN_WORD, mix_words


@dataclass(frozen=True, eq=False)
class Partition:
    """An assignment of the entities of a graph to parts.

    Args:
        assignment (ndarray): The part of each entity, int32 ``[N]``.
        num_parts (int): Number of parts.

    Raises:
        ValueError: If a part is out of range.
    """

    assignment: NDArray
    num_parts: int

    def __post_init__(self) -> None:
        check_integer("num_parts", self.num_parts, 1)
        wrong = (self.assignment < 0) | (self.assignment >= self.num_parts)
        if wrong.any():
            place = int(wrong.argmax())
            raise ValueError(
                f"parts must be numbers from 0 to {self.num_parts - 1} (got "
                f"{self.assignment[place]} for entity {place})"
            )


@dataclass(frozen=True)
class PartitionCosts:
    """The costs of a diffusion step under a partition.

    Args:
        cut (float): Fraction of triples between two parts.
        rows_sent (float): Number of rows exchanged before each step if all entities are free, that
            is, of distinct pairs of an entity and another part adjacent to it, divided by the
            number of entities.
        balance (float): Number of messages received by the part that receives most, divided by the
            mean.
        entities, halo, messages (tuple of int): For each part, the numbers of its entities, of
            adjacent entities of other parts, and of messages that its entities receive in a step.
    """

    cut: float
    rows_sent: float
    balance: float
    entities: tuple[int, ...]
    halo: tuple[int, ...]
    messages: tuple[int, ...]


def hash_partition(num_nodes: int, num_parts: int) -> Partition:
    """Partitions entities evenly by a hash of their ids, independently of the graph."""
    check_integer("num_parts", num_parts, 1)
    value = mix_words(np.arange(1, num_nodes + 1, dtype=np.uint64) * GOLDEN_WORD)
    return Partition((value % np.uint64(num_parts)).astype(np.int32), num_parts)


def import_metis() -> Any:
    """Imports pymetis.

    Raises:
        DataError: If pymetis is not installed.
    """
    try:
        import pymetis
    except ImportError as error:
        raise DataError(
            "partitioning by METIS needs pymetis: pip install 'sheafprop[partition]', or choose "
            "another method"
        ) from error
    return pymetis


def metis_partition(edge_index: NDArray, num_nodes: int, num_parts: int) -> Partition:
    """Partitions entities by METIS (Karypis and Kumar, 1998): few triples connect two parts.

    Parts are balanced by the number of messages that their entities receive. METIS needs about 350
    bytes of memory per triple.

    Args:
        edge_index (ndarray): Heads and tails, ``[2, E]``.
        num_nodes (int): Number of entities.
        num_parts (int): Number of parts.

    Raises:
        DataError: If pymetis is not installed.
    """
    pymetis = import_metis()
    from scipy.sparse import coo_array

    check_integer("num_parts", num_parts, 1)
    head, tail = edge_index
    if num_parts == 1 or not len(head):
        return hash_partition(num_nodes, num_parts)
    proper = head != tail
    ends = (head[proper], tail[proper]), np.ones(int(proper.sum()), np.int32)
    matrix = coo_array((ends[1], ends[0]), shape=(num_nodes, num_nodes)).tocsr()
    matrix = (matrix + matrix.T).tocsr()
    degree = np.bincount(edge_index.ravel(), minlength=num_nodes)
    _, found = pymetis.part_graph(
        num_parts,
        xadj=matrix.indptr,
        adjncy=matrix.indices,
        eweights=matrix.data,
        vweights=degree + 1,
        options=pymetis.Options(seed=0),
    )
    return Partition(np.asarray(found, np.int32), num_parts)


def read_partition(
    path: str | os.PathLike[str], num_nodes: int | None, num_parts: int
) -> Partition:
    """Reads a partition from a ``.npy`` file of ``[N]`` integers in the order of the ids.

    Args:
        path: The file.
        num_nodes (int, optional): :math:`N`, None if unknown.
        num_parts (int): Number of parts.

    Raises:
        DataError: If the file does not hold such a partition.
    """
    name = os.fspath(path)
    try:
        found = np.load(name, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{name}: cannot be read as numpy's .npy ({error})") from error
    fits = found.ndim == 1 and num_nodes in (None, len(found))
    if not fits or found.dtype.kind not in "iu":
        count = "" if num_nodes is None else f"{num_nodes} "
        raise DataError(
            f"{name}: must hold {count}integers, one part per entity in the order of first "
            f"appearance in the facts (got {found.dtype} {list(found.shape)})"
        )
    try:
        return Partition(Partition(found, num_parts).assignment.astype(np.int32), num_parts)
    except ValueError as error:
        raise DataError(f"{name}: {error}") from error


def partition_costs(edge_index: NDArray, partition: Partition) -> PartitionCosts:
    """Computes the costs of a step from heads and tails ``[2, E]``; no step is executed."""
    assignment, parts = partition.assignment, partition.num_parts
    head, tail = edge_index
    at_head, at_tail = assignment[head], assignment[tail]
    crosses = at_head != at_tail
    # Encodes an entity and an adjacent part as one number.
    pairs = np.concatenate(
        [
            head[crosses].astype(np.int64) * parts + at_tail[crosses],
            tail[crosses].astype(np.int64) * parts + at_head[crosses],
        ]
    )
    pairs = np.unique(pairs)
    proper = head != tail
    messages = np.bincount(at_head[proper], minlength=parts)
    messages += np.bincount(at_tail[proper], minlength=parts)
    mean = messages.mean()
    return PartitionCosts(
        cut=float(crosses.mean()) if len(head) else 0.0,
        rows_sent=len(pairs) / max(1, len(assignment)),
        balance=float(messages.max() / mean) if mean else 1.0,
        entities=tuple(np.bincount(assignment, minlength=parts).tolist()),
        halo=tuple(np.bincount(pairs % parts, minlength=parts).tolist()),
        messages=tuple(messages.tolist()),
    )
