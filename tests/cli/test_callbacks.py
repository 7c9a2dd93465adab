"""Callbacks of the user's own: added to those of the configuration, imported on request."""

import sys

import pytest
import yaml

from sheafprop.cli.main import main
from sheafprop.config_files import merge
from tests.cli.test_main import SMALL
from tests.toy import write_folder

SOURCE = """\
from lightning.pytorch import Callback


class Whisper(Callback):
    def __init__(self, word: str = "hush"):
        self.word = word

    def setup(self, trainer, pl_module, stage):
        print(self.word, "SET UP")
"""


@pytest.fixture
def words(tmp_path, monkeypatch):
    """A module of one's own, and the words of a run."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "quiet_ones.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path / "own"))
    monkeypatch.delitem(sys.modules, "quiet_ones", raising=False)
    data = write_folder(tmp_path / "ring")
    where = [f"--data.root={data}", "--data.mode=semi-inductive", f"--run.group={tmp_path}"]
    return ["fit", *SMALL, *where, "--run.name=run"]


def callbacks(run):
    stored = yaml.safe_load((run / "run.yaml").read_text())["trainer"]["callbacks"]
    return [entry["class_path"].rpartition(".")[2] for entry in stored]


BUILT_IN = ["BestCheckpoint", "Patience", "StepBudget"]
FILE = "trainer: {callbacks: [{class_path: quiet_ones.Whisper, init_args: {word: from-a-file}}]}\n"


@pytest.mark.parametrize(
    "given",
    [
        ["--trainer.callbacks", "quiet_ones.Whisper"],
        ["--trainer.callbacks=quiet_ones.Whisper"],
        ["--trainer.callbacks+=quiet_ones.Whisper", "--trainer.callbacks.word=loud"],
        ["--config=FILE"],
    ],
)
def test_own_callbacks_are_added_and_imported_again_on_request(tmp_path, words, capsys, given):
    (tmp_path / "more.yaml").write_text(FILE)
    given = [word.replace("FILE", str(tmp_path / "more.yaml")) for word in given]
    assert main([*words, *given]) == 0
    out, run = capsys.readouterr().out, tmp_path / "run"
    assert callbacks(run) == [*BUILT_IN, "Whisper"]
    assert "the best epoch is selected by MRR" in out
    assert (run / "checkpoints" / "best.ckpt").is_file()
    assert "(quiet_ones.Whisper): 'test', 'validate' and 'fit --resume' import" in out
    for command in (["test", "--run"], ["fit", "--trainer.max_epochs=3", "--resume"]):
        assert main([*command, str(run)]) == 1
        assert "allow it with --trust quiet_ones" in capsys.readouterr().err
        assert main([*command, str(run), "--trust", "other"]) == 1
        assert main([*command, str(run), "--trust", "quiet_ones"]) == 0
        assert "SET UP" in capsys.readouterr().out
    assert callbacks(run) == [*BUILT_IN, "Whisper"]


@pytest.mark.parametrize("how", ["option", "file"])
def test_replacing_takes_a_word(tmp_path, words, capsys, how):
    text = FILE + ("run: {callbacks: replace}\n" if how == "file" else "")
    (tmp_path / "more.yaml").write_text(text)
    more = ["--run.callbacks=replace"] if how == "option" else []
    with pytest.warns(UserWarning, match="no checkpoint was kept"):
        assert main([*words, f"--config={tmp_path / 'more.yaml'}", *more]) == 0
    assert callbacks(tmp_path / "run") == ["Whisper"]
    out = capsys.readouterr().out
    assert "without a BestCheckpoint callback" in out
    assert "the best epoch is selected" not in out


def test_callbacks_are_taken_away_by_that_word_alone(tmp_path, words, capsys):
    assert main([*words, "--trainer.callbacks=null"]) == 1
    assert "needs '--run.callbacks replace' too" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_callback_that_is_there_is_set_anew(tmp_path, words):
    more = ["--trainer.callbacks=sheafprop.training.Patience", "--trainer.callbacks.checks=17"]
    assert main([*words, *more]) == 0
    assert callbacks(tmp_path / "run") == BUILT_IN
    stored = yaml.safe_load((tmp_path / "run" / "run.yaml").read_text())
    assert stored["trainer"]["callbacks"][1]["init_args"]["checks"] == 17


def test_a_configuration_without_callbacks_keeps_the_best_epoch(tmp_path, words):
    bare = tmp_path / "bare.yaml"
    bare.write_text("defaults: [data/folder, model/rotate, logger/csv]\n")
    words = [word.replace("experiment/folder", str(bare)) for word in words]
    assert main([*words, "--trainer.num_sanity_val_steps=0"]) == 0
    assert callbacks(tmp_path / "run") == ["BestCheckpoint"]
    assert main(["test", "--run", str(tmp_path / "run")]) == 0


def test_merging_adds_callbacks_and_replaces_other_lists():
    base = {"trainer": {"callbacks": [{"class_path": "a.A"}, {"class_path": "b.B"}]}, "x": [1]}
    change = {"trainer": {"callbacks": [{"class_path": "a.A", "init_args": {"n": 1}}, "c.C"]}}
    merged = merge(base, change | {"x": [2]})
    assert merged["x"] == [2]
    first, last = change["trainer"]["callbacks"]
    assert merged["trainer"]["callbacks"] == [first, {"class_path": "b.B"}, last]
    assert merge(base, change | {"run": {"callbacks": "replace"}})["trainer"] == change["trainer"]
    assert base["trainer"]["callbacks"][0] == {"class_path": "a.A"}
