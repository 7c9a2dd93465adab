"""Folders of runs: made beside those there are, locked, and removed where nothing was trained."""

import json
import pickle
import shutil

import pytest
import torch

from sheafprop.cli.main import main
from sheafprop.cli.run_folder import RunFolder, own_classes, read_run, read_run_to_continue, trust
from sheafprop.errors import DataError
from sheafprop.files import StorageError
from tests.cli.test_main import fit
from tests.toy import write_folder


def test_a_new_folder_stands_beside_the_ones_there_are(tmp_path):
    places = [RunFolder(tmp_path / "group" / "run", new=True) for _ in range(3)]
    for place in places:
        place.make()
    assert [place.path.name for place in places] == ["run", "run-2", "run-3"]


def test_what_was_made_is_removed_unless_there_is_a_checkpoint(tmp_path):
    place = RunFolder(tmp_path / "group" / "inner" / "run", new=True)
    place.make()
    (place.path / "checkpoints").mkdir()
    place.discard()
    assert list(tmp_path.iterdir()) == []
    place.make()
    (place.path / "checkpoints").mkdir()
    (place.path / "checkpoints" / "last.ckpt").touch()
    place.discard()
    assert place.path.is_dir()
    there = RunFolder(tmp_path)
    there.discard()
    assert tmp_path.is_dir()


def test_a_folder_is_locked_once(tmp_path):
    pytest.importorskip("fcntl")
    first, second = RunFolder(tmp_path), RunFolder(tmp_path)
    first.lock()
    with pytest.raises(StorageError, match="another process is at work"):
        second.lock()
    pickle.loads(pickle.dumps(first)).release()  # in a spawned process
    with pytest.raises(StorageError, match="another process is at work"):
        second.lock()
    first.release()
    second.lock()
    second.release()


def test_further_processes_take_the_folder_of_the_first(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.delenv("SHEAFPROP_RUN_FOLDER", raising=False)
    with pytest.raises(DataError, match="starts its further processes itself"):
        RunFolder(tmp_path / "run", new=True).make()
    monkeypatch.setenv("SHEAFPROP_RUN_FOLDER", str(tmp_path / "run-2"))
    place = RunFolder(tmp_path / "run", new=True)
    place.make()
    assert place.path == tmp_path / "run-2"
    assert not place.path.exists()


ADAMW = {"class_path": "torch.optim.AdamW", "init_args": {"lr": 0.1}}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"trainer": {"callbacks": ["mine.Quiet", "sheafprop.training.Patience"]}}, ["mine.Quiet"]),
        ({"model": {"optimizer": ADAMW, "lr_schedule": "cosine"}}, []),
        ({"model": {"optimizer": ADAMW | {"class_path": "mine.Fast"}}}, ["mine.Fast"]),
        ({"model": {"optimizer": "os.system"}}, ["os.system"]),
        ({"model": {"lr_schedule": {"class_path": "mine.lr.Step"}}}, ["mine.lr.Step"]),
        ({"trainer": {"logger": {"init_args": {"name": "a.b"}}}}, []),
    ],
)
def test_classes_of_others_are_found_wherever_one_is_imported(config, expected):
    assert own_classes(config) == expected
    assert own_classes(config, ["mine", "mine.lr", "os"]) == []


def test_the_options_that_trust_name_each_module_once():
    assert trust(["mine.A", "mine.B", "os.system"]) == "--trust mine --trust os"


def test_a_configuration_is_checked_and_follows_its_folder(tmp_path):
    with pytest.raises(DataError, match=r"not a run folder: it has no run\.yaml$"):
        read_run(tmp_path)
    file = tmp_path / "run.yaml"
    for text, said in [
        ("", "is not the configuration of a run$"),
        ("model: 3\n", "see 'model'"),
        ("model: {}\ndata: [1]\n", "see 'data'"),
        ("model: {}\nseed_everything: later\n", "see 'seed_everything'"),
        ("model: {\n", "not valid YAML: line 2, column 1: [^\n]*$"),
    ]:
        file.write_text(text)
        with pytest.raises(DataError, match=said):
            read_run(tmp_path)
    file.write_text("model: {seed: 3}\ntrainer: {default_root_dir: /old, logger: /old/logs}\n")
    config = read_run_to_continue(tmp_path)
    assert config["trainer"] == {
        "default_root_dir": str(tmp_path),
        "logger": str(tmp_path / "logs"),
    }
    assert config["model"] == {}


@pytest.fixture
def killed(tmp_path):
    """A run that went on and was killed after it saved its model, before it recorded it."""
    assert fit(write_folder(tmp_path / "ring"), tmp_path / "runs") == 0
    run = tmp_path / "runs" / "rotate"
    record = (run / "metrics.json").read_bytes()
    assert main(["fit", "--resume", str(run), "--trainer.max_epochs=4"]) == 0
    (run / "metrics.json").write_bytes(record)
    best = run / "checkpoints" / "best.ckpt"
    stored = torch.load(best, weights_only=True)
    del stored["sheafprop"]["selection"]
    torch.save(stored, best)
    return run


@pytest.mark.parametrize("record", ["older", "missing"])
@pytest.mark.parametrize("command", ["predict", "evaluate", "test"])
def test_a_model_that_is_newer_than_its_record_is_reported(killed, capsys, command, record):
    if record == "missing":
        (killed / "metrics.json").unlink()
    words = ["predict", str(killed), "--head", "a0", "--relation", "next"]
    words = words if command == "predict" else [command, "--run", str(killed)]
    capsys.readouterr()
    assert main(words) == 0
    said = capsys.readouterr().err
    assert said.count("interrupted") == 1
    assert f"'sheafprop fit --resume {killed}'" in said
    assert main(["fit", "--resume", str(killed)]) == 0
    capsys.readouterr()
    assert main(words) == 0
    assert "interrupted" not in capsys.readouterr().err
    assert json.loads((killed / "metrics.json").read_text())["training"]["epochs"] == 4


def test_a_copy_of_the_model_alone_needs_no_record(killed, tmp_path, capsys):
    model = shutil.copytree(killed / "model", tmp_path / "model")
    capsys.readouterr()
    assert main(["predict", str(model), "--head", "a0", "--relation", "next"]) == 0
    assert "interrupted" not in capsys.readouterr().err
