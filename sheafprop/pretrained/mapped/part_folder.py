"""The facts of a graph in parts, one for each process that is to work on it.

============== ====================================================================================
``parts.json`` relations, sizes, costs of a step, and the files of facts with size and SHA-256
``part-00000`` a part: labels and numbers of its entities and of those that they meet, the parts
               that own these, and the facts that touch its own; int32 and UTF-8
============== ====================================================================================
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sheafprop.data.partition import Partition, partition_costs
from sheafprop.data.triple_blocks import triple_blocks
from sheafprop.errors import DataError
from sheafprop.files import check_folder_target, new_folder, storage_errors, write_json
from sheafprop.kernels.label_table import LabelList, LabelTable
from sheafprop.pretrained.mapped.array_folder import ArrayFolder
from sheafprop.pretrained.mapped.job_record import describe_input, read_record
from sheafprop.version import __version__

#: The file that describes a folder of parts.
RECORD = "parts.json"
_ARRAYS = ("facts", "owned", "remote", "owner", "text", "offset")


@dataclass(frozen=True, eq=False)
class FactNumbers:
    """Distinct facts, numbered.

    Args:
        facts: Heads, relations and tails, int32 ``[m, 3]``.
        labels (LabelList): Labels of the entities, in the order in which facts first name them.
        relations (list of str): Labels of the relations, likewise.
        read (int): Facts that were read, repeated ones too.
    """

    facts: NDArray
    labels: LabelList
    relations: list[str]
    read: int

    @property
    def edge_index(self) -> NDArray:
        """Heads and tails, ``[2, m]``."""
        return self.facts[:, [0, 2]].T


def number_facts(
    paths: Sequence[Path],
    options: dict[str, Any],
    on_read: Callable[[int], None] = lambda count: None,
) -> FactNumbers:
    """Reads files of facts; ``on_read`` gets how many bytes.

    Raises:
        DataError: If a file is malformed.
    """
    entities, relations, pieces = LabelTable(), LabelTable(), []
    for path in paths:
        for block in triple_blocks(path, **options):
            on_read(len(block.raw))
            begin, end = block.begin, block.end
            ends = entities.number(block.raw, begin[:, [0, 2]].ravel(), end[:, [0, 2]].ravel())
            places = (np.ascontiguousarray(at[:, 1]) for at in (begin, end))
            kind = relations.number(block.raw, *places)
            pieces.append(np.stack([ends[0::2], kind, ends[1::2]], axis=1))
    facts = np.concatenate(pieces)
    kinds = relations.labels()
    distinct = np.unique(facts, axis=0)
    return FactNumbers(distinct, entities.labels(), kinds.labels(np.arange(len(kinds))), len(facts))


def write_parts(
    out: Path,
    numbers: FactNumbers,
    partition: Partition,
    *,
    inputs: Sequence[Path],
    options: dict[str, Any],
    method: str,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Writes a folder of parts: it is complete or not there. Returns its record.

    Raises:
        ValueError: If something is there that must stay.
        StorageError: If the disk is full.
    """
    check_parts_target(out, overwrite)
    facts, assignment = numbers.facts, partition.assignment
    at = assignment[numbers.edge_index]
    costs = partition_costs(numbers.edge_index, partition)
    record = {
        "library": f"sheafprop {__version__}",
        "num_parts": partition.num_parts,
        "method": method,
        "facts": len(facts),
        "facts_read": numbers.read,
        "entities": len(numbers.labels),
        "relations": numbers.relations,
        "costs": asdict(costs),
        "inputs": {str(path.absolute()): describe_input(path) for path in inputs},
        "options": options,
    }
    with storage_errors(out, "written"), new_folder(out, replace=overwrite) as temporary:
        for part in range(partition.num_parts):
            mine = facts[(at == part).any(0)]
            owned = np.flatnonzero(assignment == part).astype(np.int32)
            ends = mine[:, [0, 2]]
            remote = np.unique(ends[assignment[ends] != part]).astype(np.int32)
            local = np.where(
                assignment[ends] == part,
                np.searchsorted(owned, ends),
                len(owned) + np.searchsorted(remote, ends),
            )
            labels = numbers.labels.select(np.concatenate([owned, remote]))
            found = {
                "facts": np.stack([local[:, 0], mine[:, 1], local[:, 1]], 1).astype(np.int32),
                "owned": owned,
                "remote": remote,
                "owner": assignment[remote],
                "text": labels.text,
                "offset": labels.offset,
            }
            folder = ArrayFolder(temporary / _name(part)).clear()
            kept: dict[str, NDArray | None] = {}
            for name, values in found.items():
                array = kept[name] = folder.make(name, values.size, values.dtype)
                array[:] = values.ravel()
            folder.finish(kept)
        write_json(temporary / RECORD, record)
    return record


def check_parts_target(out: Path, overwrite: bool) -> None:
    """Raises :class:`ValueError` for a place where no folder of parts can be written."""
    files = {"arrays.json", *(f"{name}.bin" for name in _ARRAYS)}

    def is_part(name: str) -> bool:
        folder, _, file = name.partition("/")
        return folder.startswith("part-") and file in files

    check_folder_target(
        out, overwrite, names=(), record=RECORD, what="a folder of parts", is_part=is_part
    )


def is_part_folder(path: Path) -> bool:
    """Whether a path is a folder of parts."""
    return (path / RECORD).is_file()


def read_parts(path: Path) -> dict[str, Any]:
    """The record of a folder of parts.

    Raises:
        DataError: If there is none.
    """
    found = read_record(path / RECORD)
    if found is None or "num_parts" not in found:
        raise DataError(f"'{path}' is not a folder of parts: 'sheafprop partition' makes one")
    return found


@dataclass(frozen=True, eq=False)
class Part:
    """A part of a graph; see :func:`write_parts`.

    Args:
        facts: Heads, relations and tails, int32 ``[m, 3]``: places in ``owned``, then in
            ``remote``.
        owned, remote: Numbers of its entities, and of others that they meet, ascending.
        owner: The parts of these.
        labels (LabelList): Labels of ``owned``, then of ``remote``.
    """

    facts: NDArray
    owned: NDArray
    remote: NDArray
    owner: NDArray
    labels: LabelList


def read_part(path: Path, part: int) -> Part:
    """A part, mapped.

    Raises:
        FormatError: If a file was cut.
        DataError: If there is no such part.
    """
    folder = ArrayFolder(path / _name(part))
    if folder.facts() is None:
        raise DataError(f"'{folder.path}' is missing: make the parts anew by 'sheafprop partition'")
    arrays = folder.open()
    labels = LabelList(arrays["text"], arrays["offset"])
    facts = arrays["facts"].reshape(-1, 3)
    return Part(facts, arrays["owned"], arrays["remote"], arrays["owner"], labels)


def _name(part: int) -> str:
    return f"part-{part:05d}"
