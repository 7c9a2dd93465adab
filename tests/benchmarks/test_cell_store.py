import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from benchmarks.cell_store import CellStore

from sheafprop.errors import FormatError
from sheafprop.files import StorageError

KEYS = ("dataset", "seed")


def cell(dataset="a", seed=0):
    return {"dataset": dataset, "seed": seed}


def test_finished_cells_are_found_again(tmp_path):
    path = tmp_path / "deep" / "results.json"
    store = CellStore(path, KEYS)
    assert store.records() == []
    assert not store.holds(cell())
    store.put(cell(), [{"hits@10": 0.5}, {"hits@10": 0.25}])
    store.put(cell(seed=1), [{"hits@10": 0.75}])
    again = CellStore(path, KEYS)
    assert again.holds(cell())
    assert again.holds(cell(seed=1))
    assert not again.holds(cell("b"))
    assert not again.holds(cell(seed=2))
    assert [r["hits@10"] for r in again.records()] == [0.5, 0.25, 0.75]
    assert all(set(KEYS) <= set(record) for record in again.records())


def test_a_cell_that_is_run_again_replaces_its_records(tmp_path):
    store = CellStore(tmp_path / "results.json", KEYS)
    store.put(cell(), [{"x": 1}, {"x": 2}])
    store.put(cell("b"), [{"x": 3}])
    store.put(cell(), [{"x": 4}])
    assert sorted(r["x"] for r in store.records()) == [3, 4]


def test_several_writers_lose_nothing(tmp_path):
    def write(seed):
        CellStore(tmp_path / "results.json", KEYS).put(cell(seed=seed), [{"x": seed}])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(40)))
    records = CellStore(tmp_path / "results.json", KEYS).records()
    assert sorted(r["x"] for r in records) == list(range(40))


@pytest.mark.parametrize("content", ["", "[", '{"a": 1}', "[1]", '["a"]', "null"])
def test_a_file_of_another_kind_is_named_and_left_alone(tmp_path, content):
    path = tmp_path / "results.json"
    path.write_text(content)
    with pytest.raises(FormatError, match=r"results\.json is not"):
        CellStore(path, KEYS).put(cell(), [{"x": 1}])
    assert path.read_text() == content


def test_records_of_another_experiment_are_named_and_left_alone(tmp_path):
    path = tmp_path / "results.json"
    CellStore(path, KEYS).put(cell(), [{"x": 1}])
    content = path.read_text()
    for keys, fields, missing in (((*KEYS, "model"), (), "'model'"), (KEYS, ("x", "y"), "'y'")):
        other = CellStore(path, keys, fields)
        for use in (other.records, other.check, lambda o=other: o.put({k: 0 for k in o.keys}, [])):
            with pytest.raises(FormatError, match=f"record 0 has no {missing}; name another file"):
                use()
    assert path.read_text() == content
    CellStore(path, KEYS, ("x",)).check()


def test_a_place_that_cannot_be_written_is_told_by_its_name(tmp_path, monkeypatch):
    folder = tmp_path / "folder.json"
    folder.mkdir()
    with pytest.raises(StorageError, match=r"folder\.json' cannot be written: it is a folder"):
        CellStore(folder, KEYS).check()
    with pytest.raises(StorageError, match=r"folder\.json' cannot be read: it is a folder"):
        CellStore(folder, KEYS).records()
    store = CellStore(tmp_path / "deep" / "r.json", KEYS)
    store.check()
    assert store.records() == []
    assert not store.path.exists()

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    for use in (store.check, lambda: store.put(cell(), [{"x": 1}])):
        with pytest.raises(StorageError, match=r"r\.json' cannot be written: permission denied"):
            use()


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "results.json"
    CellStore(path, KEYS).put(cell(), [{"x": 1}])
    with pytest.raises(ValueError, match="plain value"):
        CellStore(path, KEYS).put(cell(seed=1), [{"x": object()}])
    assert [r["x"] for r in json.loads(path.read_text())] == [1]
