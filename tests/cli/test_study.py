"""Trials of a study: how they end, and what the study does then."""

import signal

import pytest
import torch

from sheafprop.cli.main import main
from sheafprop.training.batch_loss import BatchLoss
from tests.cli.test_tune import trials, words_of_a_study
from tests.forked import python

pytest.importorskip("optuna")
import optuna


@pytest.fixture
def words(tmp_path):
    return words_of_a_study(tmp_path)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (None, "the training loss became nan"),
        (MemoryError(), "out of memory"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), "out of memory: CUDA"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "out of memory: Default"),
    ],
)
def test_a_trial_that_diverges_or_lacks_memory_fails_alone(
    tmp_path, words, monkeypatch, error, reason
):
    batch_loss, calls = BatchLoss.__call__, []

    def broken(self, *arguments):
        calls.append(1)
        if len(calls) > 1:
            return batch_loss(self, *arguments)
        if error is not None:
            raise error
        return batch_loss(self, *arguments) * float("nan")

    monkeypatch.setattr(BatchLoss, "__call__", broken)
    assert main([*words, "--trials=2"]) == 0
    failed, done = trials(tmp_path)
    assert failed["state"] == "fail"
    assert failed["reason"].startswith(reason)
    assert failed["value"] is None
    assert done["state"] == "complete"


def test_other_errors_end_the_study_and_are_stored(tmp_path, words, monkeypatch, capsys):
    def broken(self, *arguments):
        raise ValueError("a mistake")

    assert main([*words, "--trials=1"]) == 0
    monkeypatch.setattr(BatchLoss, "__call__", broken)
    assert main(["tune", "--resume", str(tmp_path / "study"), "--trials=3"]) == 1
    assert "a mistake" in capsys.readouterr().err
    study = optuna.load_study(
        study_name="tune", storage=f"sqlite:///{tmp_path / 'study' / 'study.db'}"
    )
    _, trial = study.trials
    assert trial.state.name == "FAIL"
    assert trial.user_attrs["reason"] == "ValueError: a mistake"


def test_an_interrupted_trial_is_tried_again(tmp_path, words):
    script = (
        "import os, signal, sys\n"
        "from sheafprop.training.batch_loss import BatchLoss\n"
        "from sheafprop.cli.main import main\n"
        "BatchLoss.__call__ = lambda *a: os.kill(os.getpid(), signal.SIGKILL)\n"
        "main(sys.argv[1:])\n"
    )
    assert python("-c", script, *words, "--trials=2").returncode == -signal.SIGKILL
    assert main(["tune", "--resume", str(tmp_path / "study"), "--trials=2"]) == 0
    failed, again, other = trials(tmp_path)
    assert (failed["state"], failed["reason"]) == ("fail", "interrupted")
    assert again["state"] == "complete"
    assert again["values"] == failed["values"]
    assert other["state"] == "complete"


def test_trials_that_lag_behind_are_pruned(tmp_path, words, monkeypatch):
    monkeypatch.setattr(
        optuna.pruners, "MedianPruner", lambda **_: optuna.pruners.ThresholdPruner(lower=2.0)
    )
    assert main([*words, "--trials=1"]) == 1
    (trial,) = trials(tmp_path)
    assert trial["state"] == "pruned"
    assert len(trial["curve"]) == 1
    assert not (tmp_path / "study" / "best.yaml").exists()


def test_what_a_killed_call_did_not_write_is_written_when_the_study_goes_on(
    tmp_path, words, capsys, monkeypatch
):
    def stop(study):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("sheafprop.cli.study.Study._write", stop)
        assert main([*words, "--trials=1"]) == 130
    assert f"tune --resume {tmp_path / 'study'}' resumes this study" in capsys.readouterr().err
    assert not (tmp_path / "study" / "study.json").exists()
    assert main(["tune", "--resume", str(tmp_path / "study"), "--trials=1"]) == 0
    (trial,) = trials(tmp_path)
    assert trial["state"] == "complete"
    assert (tmp_path / "study" / "best.yaml").exists()
