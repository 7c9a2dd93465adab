import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sheafprop.data.answer_sets import AnswerSets
from sheafprop.data.datasets.builtin_unpickler import load_builtins
from sheafprop.data.datasets.query_data import GRAPHS, QueryData
from sheafprop.data.triples import read_triples
from sheafprop.data.vocabulary import Vocabulary
from sheafprop.errors import DataError

_E, _R, _N, _U = "e", ("r",), ("r", "n"), ("u",)
_1P = (_E, _R)
#: How the files name the types.
_STRUCTURES: dict[Any, str] = {
    _1P: "1p",
    (_E, ("r", "r")): "2p",
    (_E, ("r", "r", "r")): "3p",
    (_1P, _1P): "2i",
    (_1P, _1P, _1P): "3i",
    ((_E, ("r", "r")), _1P): "pi",
    ((_1P, _1P), _R): "ip",
    (_1P, (_E, _N)): "2in",
    (_1P, _1P, (_E, _N)): "3in",
    ((_E, ("r", "r")), (_E, _N)): "pin",
    ((_E, ("r", "r", "n")), _1P): "pni",
    ((_1P, (_E, _N)), _R): "inp",
    (_1P, _1P, _U): "2u",
    ((_1P, _1P, _U), _R): "up",
}
_STATS = (
    "numentity",
    "numrelations",
    "entities in train",
    "entities in validation",
    "entities in test",
)


def read_released_queries(folder: str | os.PathLike[str]) -> QueryData:
    r"""Reads an inductive query data set from the folder that its authors released.

    The folder holds five graphs as text, ``stats.txt``, and pickles of labels, queries and answers,
    which are read by an unpickler that admits builtin values only. Inverse triples, which the files
    spell out, are checked and dropped. Without ``og_mappings.pkl`` entities and relations are
    called by their numbers.

    Raises:
        DataError: If a file is missing, damaged, or does not fit the others.
    """
    root = Path(folder)
    numbers = _stats(root / "stats.txt")
    total, directed, *parts = (numbers[key] for key in _STATS)
    if sum(parts) != total or directed % 2:
        raise DataError(f"{root / 'stats.txt'}: the numbers contradict each other ({numbers})")
    half = directed // 2
    entities, relations = _labels(root / "og_mappings.pkl", total, half)
    graphs = {name: _forward(root / f"{name}.txt", half) for name in GRAPHS}
    queries: dict[str, dict[str, NDArray[np.int64]]] = {}
    answers: dict[str, dict[str, tuple[AnswerSets, AnswerSets]]] = {}
    for split in ("train", "valid", "test"):
        path = root / f"{split}_queries.pkl"
        if not path.exists() and split == "train":
            continue
        queries[split] = {}
        nested: dict[str, list[Any]] = {}
        for kind, members in _by_type(path):
            nested[kind] = sorted(members, key=_flat)
            queries[split][kind] = _array([_flat(query) for query in nested[kind]], path)
        sets = {}
        for part in ("easy", "hard"):
            path = root / f"{split}_answers_{part}.pkl"
            # Training queries have no easy answers.
            sets[part] = dict(_by_type(path)) if split != "train" or part == "hard" else {}
        answers[split] = {
            kind: (
                _answers(sets["easy"].get(kind, {}), members),
                _answers(sets["hard"].get(kind, {}), members),
            )
            for kind, members in nested.items()
        }
    return QueryData(
        root.resolve().name,
        entities,
        relations,
        (parts[0], parts[1], parts[2]),
        graphs,
        queries,
        answers,
    )


def _stats(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    found = {}
    for number, line in enumerate(lines, 1):
        key, _, value = line.partition(":")
        if not line.strip():
            continue
        if not value.strip().isdigit():
            raise DataError(f"{path}, line {number}: expected 'name: number' (got {line!r})")
        found[key.strip()] = int(value)
    missing = [key for key in _STATS if key not in found]
    if missing:
        raise DataError(f"{path}: {', '.join(map(repr, missing))} is missing")
    return found


def _labels(path: Path, total: int, half: int) -> tuple[Vocabulary, Vocabulary]:
    if not path.exists():
        return (
            Vocabulary(map(str, range(total)), kind="entities"),
            Vocabulary(map(str, range(half)), kind="relations"),
        )
    value = load_builtins(path)
    tables = (
        [table for table in value.values() if isinstance(table, dict)]
        if isinstance(value, dict)
        else []
    )
    if len(tables) != 2:
        raise DataError(f"{path}: expected two dictionaries from label to id")
    tables.sort(key=len)
    out = []
    for table, count, kind in zip(tables, (half, total), ("relations", "entities"), strict=True):
        by_id = {number: label for label, number in table.items()}
        if not all(isinstance(by_id.get(i), str) for i in range(count)):
            raise DataError(f"{path}: not all of the {count} {kind} have a label")
        out.append(Vocabulary((by_id[i] for i in range(count)), kind=kind))
    return out[1], out[0]


def _forward(path: Path, half: int) -> Tensor:
    """The forward triples of a graph, after a look at the inverse ones."""
    labels = read_triples(path, columns=(0, 1, 2), header=False)
    try:
        ids = labels.astype(np.int64)
    except ValueError as error:
        raise DataError(f"{path}: triples are of numbers ({error})") from error
    forward, inverse = ids[ids[:, 1] < half], ids[ids[:, 1] >= half]
    turned = np.stack([inverse[:, 2], inverse[:, 1] - half, inverse[:, 0]], axis=1)
    if len(turned) != len(forward) or not np.array_equal(
        forward[np.lexsort(forward.T)], turned[np.lexsort(turned.T)]
    ):
        raise DataError(
            f"{path}: expected every triple once more, backwards, with {half} added to its "
            f"relation (got {len(forward)} forward and {len(inverse)} inverse triples)"
        )
    return torch.from_numpy(np.ascontiguousarray(forward))


def _by_type(path: Path) -> Iterator[tuple[str, Any]]:
    value = load_builtins(path)
    if not isinstance(value, dict):
        raise DataError(f"{path}: expected a dictionary by type (got {type(value).__name__})")
    for key, members in value.items():
        if key not in _STRUCTURES:
            raise DataError(f"{path}: unknown type of query {key!r}")
        yield _STRUCTURES[key], members


def _flat(query: Any) -> tuple[int, ...]:
    """The ids of a nested query in order, without the marks of negation and union."""
    if isinstance(query, int):
        return () if query in (-1, -2) else (query,)
    return tuple(number for part in query for number in _flat(part))


def _array(rows: list[tuple[int, ...]], path: Path) -> NDArray[np.int64]:
    if len({len(row) for row in rows}) > 1:
        raise DataError(f"{path}: queries of one type differ in length")
    return np.array(rows, dtype=np.int64).reshape(len(rows), -1)


def _answers(sets: dict[Any, set[int]], queries: list[Any]) -> AnswerSets:
    return AnswerSets.from_sets(sets.get(query, ()) for query in queries)
