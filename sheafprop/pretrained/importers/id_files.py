"""Files that number the labels and the training triples of other libraries."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sheafprop.errors import FormatError
from sheafprop.files import storage_errors

#: Reads a line as its id and its label; raises ValueError if it holds neither.
LineReader = Callable[[str], tuple[int, str]]


def id_then_label(line: str) -> tuple[int, str]:
    """A line of an id and a label, with a tab or a comma between (DGL-KE, LibKGE)."""
    key, separator, label = line.partition("\t" if "\t" in line else ",")
    label = label.strip()
    if len(label) > 1 and label[0] == label[-1] == '"':
        label = label[1:-1]
    if not separator or not key.strip().isdecimal():
        raise ValueError(line)
    return int(key), label


def label_then_id(line: str) -> tuple[int, str]:
    """A line of a label and an id, with white space between (OpenKE)."""
    label, key = line.rstrip().rsplit(None, 1)
    if not key.isdecimal():
        raise ValueError(line)
    return int(key), label


def read_labels(path: Path, read: LineReader, *, counted: bool = False) -> list[str]:
    """The labels of a file, in the order of their ids, which begin with 0.

    Args:
        path: The file, with a line for each label.
        read: Reads a line.
        counted: Whether the first line is the number of labels.

    Raises:
        FormatError: If a line is malformed, an id is missing or there twice; names the line.
        StorageError: If the file cannot be read.
    """
    lines = _lines(path)
    first = 1 + counted
    count = _count(path, lines) if counted else len(lines)
    found: list[str | None] = [None] * count
    for number, line in enumerate(lines[counted:], first):
        try:
            index, label = read(line)
        except ValueError:
            index, label = -1, ""
        if not label or not 0 <= index < count or found[index] is not None:
            raise FormatError(
                f"'{path}', line {number}: expected a label and an id from 0 to {count - 1}, each "
                f"once (got {line[:80]!r})"
            )
        found[index] = label
    if None in found:
        raise FormatError(f"'{path}' is truncated: it has no line of id {found.index(None)}")
    return [label for label in found if label is not None]


def read_id_triples(
    path: Path, order: tuple[int, int, int], sizes: tuple[int, int], *, counted: bool = False
) -> Tensor:
    """The triples of a file of ids, int64 ``[m, 3]``.

    Args:
        path: The file, with three ids a line, separated by white space.
        order: The columns of head, relation and tail.
        sizes: The numbers of entities and relations.
        counted: Whether the first line is the number of triples.

    Raises:
        FormatError: If a line does not hold three ids that have labels, or lines are missing.
        StorageError: If the file cannot be read.
    """
    lines = _lines(path)
    rows = []
    for number, line in enumerate(lines[counted:], 1 + counted):
        ids = line.split()
        if len(ids) != 3 or not all(map(str.isdecimal, ids)):
            raise FormatError(f"'{path}', line {number}: expected three ids (got {line[:80]!r})")
        rows.append(ids)
    if counted and _count(path, lines) != len(rows):
        raise FormatError(f"'{path}' is truncated: it holds {len(rows)} triples of {lines[0]}")
    found = torch.from_numpy(np.array(rows, dtype=np.int64).reshape(-1, 3)[:, list(order)])
    num_entities, num_relations = sizes
    wrong = (found >= torch.tensor([num_entities, num_relations, num_entities])).any(1)
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise FormatError(
            f"'{path}', line {row + 1 + counted}: an id has no label (got {lines[row + counted]!r} "
            f"of {num_entities} entities and {num_relations} relations)"
        )
    return found


def require_file(path: Path, advice: str) -> Path:
    """The path of a file that must be there.

    Raises:
        FormatError: If it is missing.
    """
    if not path.is_file():
        raise FormatError(f"'{path}' is missing: {advice}")
    return path


def _lines(path: Path) -> list[str]:
    with storage_errors(path, "read"):
        data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(f"'{path}' is not UTF-8 text: {error}") from error
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n")


def _count(path: Path, lines: list[str]) -> int:
    if not lines[0].strip().isdecimal():
        raise FormatError(
            f"'{path}', line 1: expected the number of lines that follow (got {lines[0][:80]!r})"
        )
    return int(lines[0])
