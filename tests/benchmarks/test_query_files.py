"""The two forms in which query data sets come, and the unpickler that reads one of them."""

import collections
import io
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.query_data import GRAPHS
from benchmarks.query_files import (
    load_builtins,
    read_compact_queries,
    read_released_queries,
)

from sheafprop.errors import DataError

# Training: a, b, c; new in validation: d; new in the test: e.
COUNTS = (5, 4, 3, 1, 1)
FORWARD = {
    "train_graph": [(0, 0, 1), (1, 1, 2)],
    "val_inference": [(3, 0, 0)],
    "val_predict": [(2, 1, 3)],
    "test_inference": [(0, 1, 4), (4, 0, 1)],
    "test_predict": [(4, 1, 2)],
}
ONE, TWO_IN = ("e", ("r",)), (("e", ("r",)), ("e", ("r", "n")))


def write_compact(path, **changed):
    members = {
        "counts": np.array(COUNTS),
        "entity_label": np.array(["a", "b", "c", "d", "é".encode()], dtype="S"),
        "relation_label": np.array([b"r", b"s"]),
        "valid_1p": np.array([[2, 1], [3, 3]], dtype=np.uint16),
        "test_2in": np.array([[4, 1, 0, 0]], dtype=np.uint16),
        **{name: np.array(rows, dtype=np.uint16) for name, rows in FORWARD.items()},
    } | changed
    np.savez(path, **{key: value for key, value in members.items() if value is not None})
    return path


def nested(pairs):
    out = collections.defaultdict(lambda: collections.defaultdict(set))
    for structure, query, answers in pairs:
        out[structure][query] = answers
    rows = {key: collections.defaultdict(set, value) for key, value in out.items()}
    return collections.defaultdict(set, rows)


def write_released(folder, mappings=True):
    folder.mkdir()
    groups = (f"entities in {name}" for name in ("train", "validation", "test"))
    stats = zip(("numentity", "numrelations", *groups), COUNTS, strict=True)
    (folder / "stats.txt").write_text("".join(f"{key}: {value}\n" for key, value in stats))
    for name, rows in FORWARD.items():
        every = rows + [(t, r + 2, h) for h, r, t in rows]
        (folder / f"{name}.txt").write_text("\n".join("\t".join(map(str, row)) for row in every))

    def dump(name, value):
        (folder / f"{name}.pkl").write_bytes(pickle.dumps(value, protocol=3))

    if mappings:
        entities = {label: number for number, label in enumerate("abcdé")}
        dump("og_mappings", {"e": entities, "r": {"r": 0, "s": 1, "-r": 2, "-s": 3}})
    query = ((4, (1,)), (0, (0, -2)))
    for split, queries in {
        "train": [(ONE, (0, (0,)), {1})],
        "valid": [(ONE, (2, (1,)), {3}), (ONE, (3, (3,)), {2})],
        "test": [(TWO_IN, query, {2})],
    }.items():
        sets = collections.defaultdict(set)
        for structure, one, _ in queries:
            sets[structure].add(one)
        dump(f"{split}_queries", sets)
        dump(f"{split}_answers_hard", nested(queries))
        if split != "train":
            dump(f"{split}_answers_easy", nested([(k, q, {0, 1}) for k, q, _ in queries]))
    return folder


def test_both_forms_say_the_same(tmp_path):
    compact = read_compact_queries(write_compact(tmp_path / "7.npz"))
    released = read_released_queries(write_released(tmp_path / "7"))
    assert compact.name == released.name == "7"
    assert compact.entities == released.entities
    assert compact.entities.labels[4] == "é"
    assert compact.relations == released.relations
    assert compact.num_entities == released.num_entities == (3, 1, 1)
    for name in GRAPHS:
        assert compact.graphs[name].tolist() == [list(row) for row in FORWARD[name]]
        assert torch.equal(
            released.graphs[name].sort(0).values, compact.graphs[name].sort(0).values
        )
    for split, kind in (("valid", "1p"), ("test", "2in")):
        assert compact.queries[split][kind].tolist() == released.queries[split][kind].tolist()
    easy, hard = released.answers["valid"]["1p"]
    assert [part.tolist() for part in easy] == [[0, 1], [0, 1]]
    assert [part.tolist() for part in hard] == [[3], [2]]
    assert released.queries["train"]["1p"].tolist() == [[0, 0]]
    assert released.answers["train"]["1p"][1][0].tolist() == [1]
    assert repr(compact) == "QueryData(7, 5 entities, 2 relations, 3 queries)"


def test_labels_may_be_missing(tmp_path):
    data = read_released_queries(write_released(tmp_path / "x", mappings=False))
    assert data.entities.labels == ("0", "1", "2", "3", "4")
    assert data.relations.labels == ("0", "1")


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"val_predict": None}, "the archive lacks val_predict"),
        ({"counts": np.array([5, 4, 3, 1, 2])}, "'counts' does not fit"),
        ({"test_predict": np.array([[4, 2, 0]])}, "test_predict: ids of relations go from 0 to 1"),
        ({"valid_1p": np.array([[5, 0]])}, "valid queries of type 1p: ids of entities go from 0"),
        ({"valid_1p": np.array([[0, 0, 0]])}, r"type 1p cannot have shape \[1, 3\]"),
        ({"valid_1p": np.array([[{}]], dtype=object)}, "not a readable NumPy archive"),
        ({"valid_1p": np.array([0, 0])}, r"'valid_1p' must hold integers in 2 .*shape \[2\]"),
        ({"test_predict": np.array([[4, 1.0, 2]])}, "'test_predict' must hold integers.*float64"),
        ({"test_predict": np.array([[4, 1]])}, r"test_predict cannot have shape \[1, 2\]"),
        ({"counts": np.array(5)}, r"'counts' must hold integers in 1 dimensions"),
        ({"relation_label": np.array(["r", "s"])}, "'relation_label' must hold labels as bytes"),
        ({"relation_label": np.array([b"r", b"\xff"])}, "'relation_label' is not UTF-8"),
    ],
)
def test_a_compact_file_that_does_not_fit_is_refused(tmp_path, changed, problem):
    with pytest.raises(DataError, match=problem):
        read_compact_queries(write_compact(tmp_path / "7.npz", **changed))


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "7.npz").write_bytes(b"PK\x03\x04 nothing")
    np.save(tmp_path / "one.npy", np.zeros(3))
    for path in (tmp_path / "7.npz", tmp_path / "8.npz", tmp_path / "one.npy"):
        with pytest.raises(DataError, match="not a readable NumPy archive"):
            read_compact_queries(path)
    with pytest.raises(DataError, match=r"stats\.txt: cannot be read"):
        read_released_queries(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("stats.txt", "numentity: many\n", "line 1: expected 'name: number'"),
        ("stats.txt", "numentity: 5\n", "'numrelations', .* is missing"),
        ("train_graph.txt", "0\t0\t1\n", "1 forward and 0 inverse triples"),
        ("val_predict.txt", "a\tr\tb\n", "triples are of numbers"),
        ("test_queries.pkl", pickle.dumps({("e",): set()}), r"unknown type of query \('e',\)"),
        ("test_queries.pkl", pickle.dumps([]), "expected a dictionary by type .got list"),
        ("og_mappings.pkl", pickle.dumps({"e": {}}), "expected two dictionaries"),
        ("og_mappings.pkl", pickle.dumps({"e": {}, "r": {}}), "not all of the 2 relations have a"),
    ],
)
def test_a_released_folder_that_does_not_fit_is_refused(tmp_path, name, content, problem):
    folder = write_released(tmp_path / "x")
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=problem):
        read_released_queries(folder)


class Harmful:
    def __reduce__(self):
        return os.mkdir, ("harm",)


class Quiet:
    pass


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_of_anything_else_are_refused(tmp_path, protocol, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "queries.pkl"
    for value, name in (
        (Harmful(), r"(posix|nt)\.mkdir"),
        ({1: [Quiet()]}, "Quiet|copy_?reg"),
        (collections.OrderedDict(), "collections.OrderedDict"),
        (getattr, "getattr"),
        (np.zeros(1), "numpy"),
        (collections.defaultdict(list.append), "getattr|_reconstruct|list"),
    ):
        path.write_bytes(pickle.dumps(value, protocol=protocol))
        with pytest.raises(DataError, match=rf"queries\.pkl: refused to load .*({name})"):
            load_builtins(path)
    assert not (tmp_path / "harm").exists()


def test_references_to_outside_are_refused(tmp_path):
    class Pickler(pickle.Pickler):
        def persistent_id(self, value):
            return "secret" if value == 5 else None

    content = io.BytesIO()
    Pickler(content, protocol=3).dump([5])
    path = tmp_path / "queries.pkl"
    path.write_bytes(content.getvalue())
    with pytest.raises(DataError, match="refused to load an object from outside"):
        load_builtins(path)


@pytest.mark.parametrize("content", [b"", b"\x80\x03", b"no pickle", pickle.dumps({1: 2})[:-3]])
def test_damaged_pickles(tmp_path, content):
    path = tmp_path / "queries.pkl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"queries\.pkl: not a complete pickle of plain values"):
        load_builtins(path)
    with pytest.raises(DataError, match=r"none\.pkl: cannot be read"):
        load_builtins(tmp_path / "none.pkl")


@pytest.mark.parametrize("protocol", [2, 3, 5])
def test_plain_values_are_read(tmp_path, protocol):
    value = collections.defaultdict(
        set, {("e", ("r",)): {(1, (2,)), (-1, (3,))}, "a": frozenset("b")}
    )
    path = tmp_path / "queries.pkl"
    path.write_bytes(pickle.dumps(value, protocol=protocol))
    again = load_builtins(path)
    assert again == value
    assert again["new"] == set()


def test_released_sample_is_the_compact_file(tmp_path):
    folder = Path(os.environ.get("SHEAFPROP_DATA", "")) / "inductiveqe"
    if not (folder / "sample_550.tar.xz").is_file():
        pytest.skip("SHEAFPROP_DATA names no folder with the query benchmark")
    with tarfile.open(folder / "sample_550.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    released = read_released_queries(tmp_path / "550")
    compact = read_compact_queries(folder / "550.npz")
    assert compact.entities == released.entities
    assert compact.relations == released.relations
    for name in GRAPHS:
        assert torch.equal(compact.graphs[name], released.graphs[name])
    for split in ("valid", "test"):
        for kind, rows in released.queries[split].items():
            known = {row.tobytes() for row in compact.queries[split][kind]}
            assert len(rows) == 60
            assert all(row.tobytes() in known for row in rows)
