import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import SimpleNamespace

import pytest
from benchmarks import cells as cells_module
from benchmarks import training
from benchmarks.cells import (
    RESULTS,
    Cell,
    CellStore,
    combine,
    read_records,
    run_cells,
    write_records,
)
from benchmarks.training import train_plainly
from lightning.pytorch import Callback

from sheafprop.errors import DivergenceError, FormatError, SheafpropError
from sheafprop.files import StorageError
from sheafprop.training import SheafCompletion
from tests import forked
from tests.benchmarks.plain_cell import answer
from tests.toy import toy_data

KEYS = ("dataset", "seed")


def key(dataset="a", seed=0):
    return {"dataset": dataset, "seed": seed}


@pytest.fixture
def store(tmp_path):
    return CellStore(tmp_path / "deep" / "results.jsonl", KEYS)


def test_finished_cells_are_found_again(store):
    assert store.records() == []
    assert not store.holds(key())
    store.put(key(), [{"hits@10": 0.5}, {"hits@10": 0.25}])
    store.put(key(seed=1), [{"hits@10": 0.75}])
    again = CellStore(store.path, KEYS)
    assert again.holds(key())
    assert again.holds(key(seed=1))
    assert not again.holds(key("b"))
    assert not again.holds(key(seed=2))
    assert [r["hits@10"] for r in again.records()] == [0.5, 0.25, 0.75]
    assert all(set(KEYS) <= set(record) for record in again.records())


def test_a_record_is_a_line(store):
    store.put(key("ä\n"), [{"x": 0.1 + 0.2}, {"x": [1, None]}])
    lines = store.path.read_text("utf-8").splitlines()
    assert lines[0] == '{"dataset": "ä\\n", "seed": 0, "x": 0.30000000000000004}'
    assert [json.loads(line)["x"] for line in lines] == [0.1 + 0.2, [1, None]]
    odd = [{"x": "a\u2028b\x85c\x1cd"}, {"x": ""}]
    store.put(key(), odd)
    assert [record["x"] for record in store.records()[-2:]] == [row["x"] for row in odd]


def test_every_stored_results_file_holds_a_record_a_line():
    paths = sorted(RESULTS.glob("*.jsonl"))
    assert len(paths) >= 13
    for path in paths:
        again = [json.dumps(r, ensure_ascii=False) for r in read_records(path)]
        assert path.read_text("utf-8").splitlines() == again
    assert not list(RESULTS.glob("*.json"))


def test_a_cell_that_is_run_again_replaces_its_records(store):
    store.put(key(), [{"x": 1}, {"x": 2}])
    store.put(key("b"), [{"x": 3}])
    store.put(key(), [{"x": 4}])
    assert sorted(r["x"] for r in store.records()) == [3, 4]


def test_records_may_tell_a_part_of_their_key(store):
    """A cell of several parts is stored, found and replaced as a whole."""
    store.put({"dataset": "a"}, [{"seed": 0, "x": 1}, {"seed": 1, "x": 2}])
    assert store.holds({"dataset": "a"})
    assert not store.holds({"dataset": "b"})
    store.put({"dataset": "a"}, [{"seed": 2, "x": 3}])
    assert store.records() == [{"dataset": "a", "seed": 2, "x": 3}]


def test_several_writers_lose_nothing(store):
    def write(seed):
        CellStore(store.path, KEYS).put(key(seed=seed), [{"x": seed}])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(40)))
    assert sorted(r["x"] for r in store.records()) == list(range(40))


@pytest.mark.parametrize("content", ["[", '{"a": 1}\n[1]', "[]", '"a"', "null"])
def test_a_file_of_another_kind_is_named_and_left_alone(tmp_path, content):
    path = tmp_path / "results.jsonl"
    path.write_text(content)
    with pytest.raises(FormatError, match=r"results\.jsonl:\d is not"):
        CellStore(path, KEYS).put(key(), [{"x": 1}])
    assert path.read_text() == content


def test_records_of_another_experiment_are_named_and_left_alone(store):
    store.put(key(), [{"x": 1}])
    content = store.path.read_text()
    for keys, fields, missing in (((*KEYS, "model"), (), "'model'"), (KEYS, ("x", "y"), "'y'")):
        other = CellStore(store.path, keys, fields)
        for use in (other.records, other.check, lambda o=other: o.put({k: 0 for k in o.keys}, [])):
            with pytest.raises(FormatError, match=f"line 1 has no {missing}; name another file"):
                use()
    assert store.path.read_text() == content
    CellStore(store.path, KEYS, ("x",)).check()


def test_a_place_that_cannot_be_written_is_named(tmp_path, store, monkeypatch):
    folder = tmp_path / "folder.jsonl"
    folder.mkdir()
    with pytest.raises(StorageError, match=r"folder\.jsonl' cannot be written: it is a folder"):
        CellStore(folder, KEYS).check()
    with pytest.raises(StorageError, match=r"folder\.jsonl' cannot be read: it is a folder"):
        CellStore(folder, KEYS).records()
    store.check()
    assert store.records() == []
    assert not store.path.exists()

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    for use in (store.check, lambda: store.put(key(), [{"x": 1}])):
        with pytest.raises(StorageError, match=r"results\.jsonl' cannot be written: permission"):
            use()


def test_an_interrupted_write_leaves_the_old_file(store):
    store.put(key(), [{"x": 1}])
    with pytest.raises(ValueError, match="plain value"):
        store.put(key(seed=1), [{"x": object()}])
    with pytest.raises(ValueError, match="must be strings"):
        write_records(store.path, [{"x": {1: 2}}])
    assert [r["x"] for r in store.records()] == [1]


def test_what_is_named_twice_is_taken_once():
    assert list(combine([0, 1, 0], ["se", "se"])) == [(0, "se"), (1, "se")]


def cells(*values):
    return [Cell(key(seed=seed), answer, (value,)) for seed, value in enumerate(values)]


def test_cells_run_once_in_processes_of_their_own(store, capsys):
    run_cells(cells(5, 6, 7)[1:], store, jobs=2, threads=1)
    run_cells(cells(8, 9, 7), store, threads=1)
    records = store.records()
    assert [r["x"] for r in records if r["seed"] == 0] == [8]
    assert sorted(r["x"] for r in records) == [6, 7, 8]
    assert {r["threads"] for r in records} == {1}
    assert len({r["process"] for r in records} | {os.getpid()}) == 4
    assert all("commit" in record for record in records)
    assert "2 of 3 cells are stored results; --again runs them again" in capsys.readouterr().err


def test_stored_cells_run_again_when_asked_to(at_once, store):
    run_cells(cells(1, 2), store)
    run_cells(cells(3), store, again=True)
    assert sorted(r["x"] for r in store.records()) == [2, 3]


def test_a_cell_that_fails_does_not_stop_the_others(at_once, store, monkeypatch, capsys):
    todo = cells(1, DivergenceError("the loss became nan"), 3, KeyError("lr"))
    with pytest.raises(SheafpropError, match="2 of 4 cells failed: a 1: the loss became nan; a 3"):
        run_cells(todo, store)
    assert "failed: a 3: KeyError: 'lr'" in capsys.readouterr().err
    assert [r["x"] for r in store.records()] == [1, 3]
    monkeypatch.setenv("SHEAFPROP_DEBUG", "1")
    with pytest.raises(DivergenceError):
        run_cells(todo, store)


def test_a_process_that_was_killed_is_reported(at_once, store):
    with pytest.raises(SheafpropError, match="most likely for want of memory"):
        run_cells(cells(BrokenProcessPool("terminated abruptly")), store)


class Kill(Callback):
    """Kills the process at the end of an epoch, once."""

    def __init__(self, mark, epoch):
        self.mark, self.epoch = mark, epoch

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.current_epoch == self.epoch and not self.mark.exists():
            self.mark.write_text("")
            os.kill(os.getpid(), signal.SIGKILL)


class Count(Callback):
    """Writes the number of each epoch to a file."""

    def __init__(self, path):
        self.path = path

    def on_train_epoch_start(self, trainer, pl_module):
        with self.path.open("a") as file:
            file.write(f"{trainer.current_epoch}\n")


def train(mark, *, folder):
    """A long cell: killed in its fourth epoch, and once more when its model is trained."""
    training.CHECKPOINT_SECONDS = 0.0
    module = SheafCompletion(
        hidden_channels=4, lr=0.05, lr_schedule="cosine", loss="nssa", num_negatives=2
    )
    watch = [] if mark is None else [Count(mark.with_suffix(".epochs")), Kill(mark, 3)]
    data = toy_data("fully-inductive")
    model, seconds = train_plainly(module, data, 16, folder=folder, max_epochs=6, callbacks=watch)
    if mark is not None and not mark.with_suffix(".after").exists():
        mark.with_suffix(".after").write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    weights = {name: value.tolist() for name, value in model.state_dict().items()}
    return [{"weights": weights, "seconds": seconds}]


def test_a_killed_cell_goes_on_from_its_last_checkpoint(store, tmp_path, monkeypatch):
    """Killed while it trains and behind: finished epochs are not run again, and give the same."""
    started = SimpleNamespace(get_context=lambda method: forked.context())
    monkeypatch.setattr(cells_module, "multiprocessing", started)
    mark = tmp_path / "killed"
    cell = Cell(key(), train, (mark,))
    for _ in range(2):
        with pytest.raises(SheafpropError, match="go on from their last checkpoint"):
            run_cells([cell], store, threads=1)
        assert store.records() == []
        assert store.folder(cell.key).is_dir()
    run_cells([cell], store, threads=1)
    (killed,) = store.records()
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", training.CHECKPOINT_SECONDS)
    (whole,) = train(None, folder=None)
    assert killed["weights"] == whole["weights"]
    assert killed["seconds"] > 0
    assert mark.with_suffix(".epochs").read_text().split() == ["0", "1", "2", "3", "3", "4", "5"]
    assert not store.folder(cell.key).exists()
