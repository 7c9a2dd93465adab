"""Readers of inductive query data sets: the folder of the authors, and one compact archive."""

import collections
import io
import os
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.query_data import COLUMNS, GRAPHS, QueryData
from sheafprop.data.answer_sets import AnswerSets
from sheafprop.data.file_kinds import read_file
from sheafprop.data.text_rows import decode
from sheafprop.data.triples import read_triples
from sheafprop.data.vocabulary import Vocabulary
from sheafprop.errors import DataError

__all__ = ["load_builtins", "read_compact_queries", "read_released_queries"]

Members = dict[str, NDArray]

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
# Names that a pickle may hold.
_ADMITTED = {
    **{("builtins", kind.__name__): kind for kind in (set, frozenset, list, dict, tuple, int, str)},
    ("collections", "defaultdict"): collections.defaultdict,
}


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
    found = {}
    for number, line in enumerate(decode(read_file(path), str(path)).splitlines(), 1):
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


class BuiltinUnpickler(pickle.Unpickler):
    r"""An unpickler that admits builtin containers, integers, strings and ``defaultdict`` only.

    A pickle is a program: whoever writes one may name any function of any module to be called when
    it is read. Here every other name is refused before it is looked up, and so are persistent ids,
    extension codes and whatever is no such value.

    Args:
        content: The bytes of the pickle.
        source: The file, for error messages.
    """

    def __init__(self, content: bytes, source: str) -> None:
        super().__init__(io.BytesIO(content))
        self.source = source

    def find_class(self, module: str, name: str) -> Any:
        # Python 2 and protocols up to 2 call the builtins by another name.
        home = "builtins" if module == "__builtin__" else module
        if (home, name) not in _ADMITTED:
            raise DataError(
                f"{self.source}: refused to load {module}.{name}. Files of queries may hold "
                "builtin containers, integers, strings and defaultdict only; this one could run "
                "code"
            )
        return _ADMITTED[home, name]

    def persistent_load(self, pid: Any) -> NoReturn:
        raise DataError(f"{self.source}: refused to load an object from outside (id {pid!r})")


def load_builtins(path: str | os.PathLike[str]) -> Any:
    """Reads a pickle of builtin containers, integers and strings.

    Raises:
        DataError: If the file cannot be read, is no pickle, or names anything else.
    """
    source = os.fspath(path)
    content = read_file(path)
    try:
        return BuiltinUnpickler(content, source).load()
    except DataError:
        raise
    except Exception as error:
        # A damaged pickle may fail anywhere in the machine that reads it.
        raise DataError(
            f"{source}: not a complete pickle of plain values ({type(error).__name__}: {error})"
        ) from error


def read_compact_queries(path: str | os.PathLike[str]) -> QueryData:
    r"""Reads an inductive query data set from one compressed NumPy archive.

    The archive holds ``counts`` (entities, relations with inverse ones, training entities, new
    validation entities, new test entities), ``entity_label``, ``relation_label``, the five graphs
    as forward triples, and the queries as ``valid_<type>`` and ``test_<type>``. Answers follow from
    the graphs, see :class:`~sheafprop.query.GraphExecutor`. No member is a pickle.

    Raises:
        DataError: If the file cannot be read, or a member is missing or does not fit.
    """
    source = os.fspath(path)
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("it holds a single array")
        with archive:
            members = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, NotImplementedError) as error:
        raise DataError(f"{source}: not a readable NumPy archive ({error})") from error
    wanted = ["counts", "entity_label", "relation_label", *GRAPHS]
    missing = [name for name in wanted if name not in members]
    if missing:
        raise DataError(f"{source}: the archive lacks {', '.join(missing)}")
    counts = _integer_member(members, "counts", source, 1).tolist()
    entities, relations = (
        _label_member(members, f"{k}_label", source) for k in ("entity", "relation")
    )
    parts = counts[2:]
    if len(parts) != 3 or sum(parts) != counts[0] or counts[1] != 2 * len(relations):
        raise DataError(
            f"{source}: 'counts' does not fit (got {counts} for "
            f"{len(entities)} entities and {len(relations)} relations)"
        )
    queries = {
        split: {
            kind: _integer_member(members, f"{split}_{kind}", source, 2)
            for kind in COLUMNS
            if f"{split}_{kind}" in members
        }
        for split in ("valid", "test")
    }
    return QueryData(
        Path(path).stem,
        Vocabulary(entities, kind="entities"),
        Vocabulary(relations, kind="relations"),
        (parts[0], parts[1], parts[2]),
        {name: torch.from_numpy(_integer_member(members, name, source, 2)) for name in GRAPHS},
        queries,
    )


def _integer_member(members: Members, name: str, source: str, dimensions: int) -> NDArray[np.int64]:
    values = members[name]
    if values.dtype.kind not in "iu" or values.ndim != dimensions:
        raise DataError(
            f"{source}: '{name}' must hold integers in {dimensions} dimensions (got {values.dtype} "
            f"of shape {list(values.shape)})"
        )
    return values.astype(np.int64)


def _label_member(members: Members, name: str, source: str) -> list[str]:
    values = members[name]
    if values.dtype.kind != "S" or values.ndim != 1:
        raise DataError(
            f"{source}: '{name}' must hold labels as bytes (got {values.dtype} of shape "
            f"{list(values.shape)})"
        )
    try:
        return [label.decode("utf-8") for label in values.tolist()]
    except UnicodeDecodeError as error:
        raise DataError(f"{source}: '{name}' is not UTF-8 ({error})") from error
