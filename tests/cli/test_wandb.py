"""Weights & Biases offline: nothing is asked, and everything is in the run folder."""

import functools
import json
import struct
import time
from pathlib import Path

import pytest
import wandb
from wandb.proto import wandb_internal_pb2

from sheafprop.cli import lightning
from sheafprop.cli.main import main
from tests.cli.test_main import SMALL
from tests.toy import write_folder


def read_back(file: Path) -> list:
    """The records of an offline file, a log in blocks as LevelDB writes it.

    After a file header of 7 bytes come blocks of 32 KiB. A piece of a record has a header of 7
    bytes (checksum, length, kind) and does not cross a block; kinds are 1 whole, 2 first, 3 middle,
    4 last.
    """
    content = file.read_bytes()
    assert content[:4] == b":W&B"
    records, place, pieces = [], 7, b""
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        length, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        if kind == 0 or place + 7 + length > len(content):
            break  # what follows is not written yet
        pieces += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(pieces)
            records.append(record)
            pieces = b""
    return records


def finished(file: Path) -> list:
    """The records once W&B's own process has written the last of them."""
    for _ in range(100):
        records = read_back(file)
        if any(record.HasField("exit") for record in records):
            return records
        time.sleep(0.1)
    raise AssertionError(f"{file} was never finished")


@pytest.fixture
def arguments(tmp_path, monkeypatch):
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder = write_folder(tmp_path / "ring")
    words = [word for word in SMALL if word != "--config=logger/csv"]
    return [*words, f"--data.root={folder}", f"--run.group={tmp_path / 'runs'}"]


def test_offline_run_holds_config_curves_tables_and_figure(tmp_path, arguments):
    assert main(["fit", *arguments]) == 0
    run = tmp_path / "runs" / "rotate"
    assert main(["test", "--run", str(run)]) == 0
    files = sorted(run.glob("wandb/offline-run-*/*.wandb"))
    assert len(files) == 2
    records = [record for file in files for record in finished(file)]
    assert {r.run.run_id for r in records if r.HasField("run")} == {
        next(r.run.run_id for r in records if r.HasField("run"))
    }
    config = {
        item.key: json.loads(item.value_json)
        for r in records
        if r.HasField("run")
        for item in r.run.config.update
    } | {
        item.key: json.loads(item.value_json)
        for r in records
        if r.HasField("config")
        for item in r.config.update
    }
    assert config["model"]["kge"] == "rotate"
    assert config["data"]["mode"] == "semi-inductive"
    logged = {
        item.key or "/".join(item.nested_key)
        for r in records
        if r.HasField("history")
        for item in r.history.item
    }
    assert {"train/loss", "val/mrr", "val/hits@10", "test/mrr"} <= logged
    for part in ("validation/by_iteration", "validation/hits_by_iteration", "test/results"):
        assert any(key.startswith(part) for key in logged), part
    media = {path.suffix for path in run.glob("wandb/offline-run-*/files/media/**/*")}
    assert {".png", ".json"} <= media
    artifacts = [r.request.log_artifact.artifact for r in records if r.HasField("request")]
    artifacts += [r.artifact for r in records if r.HasField("artifact")]
    model = next(a for a in artifacts if a.type == "model")
    assert model.name == "model-rotate"
    stored = {entry.path: Path(entry.local_path) for entry in model.manifest.contents}
    assert set(stored) == {path.name for path in (run / "model").iterdir()}
    for name, staged in stored.items():
        assert staged.is_relative_to(run)
        assert staged.read_bytes() == (run / "model" / name).read_bytes()


def test_without_wandb_a_run_goes_on_with_one_notice(tmp_path, arguments, monkeypatch, capsys):
    monkeypatch.setattr(lightning, "find_spec", lambda name: None)
    assert main(["fit", *arguments]) == 0
    assert capsys.readouterr().err.count("wandb is not installed") == 1
    assert list((tmp_path / "runs" / "rotate" / "csv").rglob("metrics.csv"))


def test_a_wandb_that_cannot_be_imported_is_reported_once(tmp_path, arguments, monkeypatch, capsys):
    def broken(name):
        raise ImportError("cannot import name 'x' from 'y'")

    monkeypatch.setattr(lightning, "import_module", broken)
    assert main(["fit", *arguments]) == 0
    printed = capsys.readouterr().err
    assert printed.count("wandb cannot be imported (ImportError: cannot import name") == 1
    assert list((tmp_path / "runs" / "rotate" / "csv").rglob("metrics.csv"))
    assert not list((tmp_path / "runs" / "rotate").glob("wandb/offline-run-*"))


@pytest.mark.parametrize("name", ["login", "Artifact", "run"])
def test_a_wandb_without_what_is_used_is_reported_once(
    tmp_path, arguments, monkeypatch, capsys, name
):
    monkeypatch.delattr(wandb, name)
    assert main(["fit", *arguments]) == 0
    printed = capsys.readouterr().err
    assert printed.count(f"has no {name} (pip install --upgrade wandb)") == 1
    assert not list((tmp_path / "runs" / "rotate").glob("wandb/offline-run-*"))


@pytest.mark.parametrize("api", [None, object()])
def test_an_older_login_without_silence_is_never_asked(
    tmp_path, arguments, monkeypatch, capsys, api
):
    def login(key=None):
        raise AssertionError("a prompt")

    monkeypatch.setattr(wandb, "login", login)
    monkeypatch.setattr(wandb, "api", api, raising=False)
    assert main(["fit", *arguments, "--config=logger/wandb_online"]) == 1
    assert "needs a key to log online" in capsys.readouterr().err


def test_a_network_that_is_missing_is_reported_before_training(
    tmp_path, arguments, monkeypatch, capsys
):
    class CommError(Exception):
        pass

    # With its signature: the command line keeps what it has read of it for the whole process.
    @functools.wraps(wandb.init)
    def refuse(**arguments):
        raise CommError("no such host\nConsider more seconds")

    monkeypatch.setattr(wandb, "init", refuse)
    monkeypatch.setattr(lightning, "_check_wandb_key", lambda: None)
    assert main(["fit", *arguments, "--config=logger/wandb_online"]) == 1
    printed = capsys.readouterr().err
    assert "W&B cannot be logged to online (no such host): log offline with --config" in printed
    assert printed.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_disabled_wandb_leaves_nothing(tmp_path, arguments, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert main(["fit", *arguments]) == 0
    assert not list((tmp_path / "runs" / "rotate").glob("wandb/offline-run-*"))


def test_online_without_a_key_is_refused_in_one_sentence(tmp_path, arguments, capsys):
    assert main(["fit", *arguments, "--config=logger/wandb_online"]) == 1
    message = capsys.readouterr().err
    assert "needs a key to log online" in message
    assert "Traceback" not in message
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["p: q; r", "x,y=1#2", "who?", "it's", "größe \u6570", "n" * 90])
def test_any_folder_name_works_and_nothing_is_left_over(tmp_path, arguments, capfd, name):
    assert main(["fit", *arguments, f"--run.name={name}"]) == 0
    run = tmp_path / "runs" / name
    assert main(["test", "--run", str(run)]) == 0
    files = sorted(run.glob("wandb/offline-run-*/*.wandb"))
    assert len(files) == 2
    (identity,) = {
        record.run.run_id for file in files for record in finished(file) if record.HasField("run")
    }
    assert not set(identity) & set("/\\#?%:;, '")
    assert len(identity) <= 64
    # Copies that W&B keeps to sync later lie among its own files.
    assert not (run / "artifacts").exists()
    assert "anonymous" not in "".join(capfd.readouterr())
