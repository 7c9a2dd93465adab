"""``fit --resume``: what is given holds or is refused, and what is stored says what ran."""

import json
import math
import shutil

import pytest
import torch
import yaml
from lightning.pytorch import Trainer

from sheafprop.cli.main import main
from sheafprop.files import StorageError
from sheafprop.training import SheafCompletion
from tests.cli.test_main import SMALL
from tests.toy import write_folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of two epochs with the cosine schedule, that was tested."""
    place = tmp_path_factory.mktemp("finished")
    data = write_folder(place / "ring")
    words = [f"--data.root={data}", "--data.mode=semi-inductive", f"--run.group={place / 'runs'}"]
    assert main(["fit", *SMALL, *words]) == 0
    assert main(["test", "--run", str(place / "runs" / "rotate")]) == 0
    return place / "runs" / "rotate"


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "runs" / "copy")


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def stored(run):
    return yaml.safe_load((run / "run.yaml").read_text())


def vectors(run):
    return torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]


@pytest.fixture
def rates(monkeypatch):
    """The learning rate of every batch that is trained."""
    seen, train = [], SheafCompletion.training_step

    def watched(self, batch, batch_idx):
        (optimizer,) = self.trainer.optimizers
        seen.append(optimizer.param_groups[0]["lr"])
        return train(self, batch, batch_idx)

    monkeypatch.setattr(SheafCompletion, "training_step", watched)
    return seen


def test_a_schedule_that_is_used_up_spans_all_epochs_anew(run, rates):
    before = vectors(run)
    assert main(["fit", "--resume", str(run), "--trainer.max_epochs=7"]) == 0
    lr = stored(run)["model"]["lr"]
    expected = [lr * (1 + math.cos(math.pi * step / 7)) / 2 for step in range(2, 7)]
    assert rates == pytest.approx(expected)
    now = vectors(run)
    assert all(float((now[name] - before[name]).abs().max()) > 1e-3 for name in before)


def test_further_epochs_on_a_schedule_that_has_ended_are_refused(run, capsys):
    before = contents(run)
    words = ["--trainer.max_epochs=9", "--model.lr_epochs=5"]
    assert main(["fit", "--resume", str(run), *words]) == 1
    assert "raise --model.lr_epochs" in capsys.readouterr().err
    assert contents(run) == before


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["--model.lr=0.003", "--model.lr_schedule=constant"], ("lr", 0.003)),
        (["--model.weight_decay=0.07"], ("weight_decay", 0.07)),
    ],
)
def test_what_the_state_of_the_optimizer_holds_gives_way_to_options(
    run, monkeypatch, words, option
):
    name, value = option
    seen, train = [], SheafCompletion.training_step

    def watched(self, batch, batch_idx):
        seen.append(self.trainer.optimizers[0].param_groups[0][name])
        return train(self, batch, batch_idx)

    monkeypatch.setattr(SheafCompletion, "training_step", watched)
    assert main(["fit", "--resume", str(run), "--trainer.max_epochs=4", *words]) == 0
    assert seen == [value] * 2
    assert stored(run)["model"][name] == value


def test_more_checks_of_patience_hold_too(run, monkeypatch):
    found = []
    end = Trainer._teardown

    def watched(self):
        found.extend(callback.patience for callback in self.early_stopping_callbacks)
        end(self)

    monkeypatch.setattr(Trainer, "_teardown", watched)
    text = (run / "run.yaml").read_text().replace("checks: 3", "checks: 11")
    (run / "run.yaml").write_text(text)
    assert main(["fit", "--resume", str(run), "--trainer.max_epochs=3"]) == 0
    assert set(found) == {11}


def test_a_schedule_that_begins_later_begins_where_the_run_is(finished, tmp_path, rates):
    root = stored(finished)["data"]["root"]
    words = [f"--data.root={root}", "--data.mode=semi-inductive", f"--run.group={tmp_path}"]
    assert main(["fit", *SMALL, *words, "--model.lr_schedule=constant"]) == 0
    run, lr = tmp_path / "rotate", rates[0]
    rates.clear()
    words = ["--model.lr_schedule=cosine", "--trainer.max_epochs=4"]
    assert main(["fit", "--resume", str(run), *words]) == 0
    assert rates[0] == pytest.approx(lr / 2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model.optimizer=adagrad"], "--model.optimizer"),
        (["--model.hidden_channels=24"], "--model.hidden_channels"),
        (["--model.kge=se"], "--model.kge"),
        (["--model.kge_args.squared=false"], "--model.kge_args"),
        (["--seed_everything=8"], "--seed_everything"),
        (["--trainer.max_epochs=1"], "has been trained for 2 epochs"),
        (["--trainer.max_epochs=2", "--model.lr=0.5"], "nothing is left to train"),
        (["--data.root=OTHER"], "--data.root"),
        (["--data.root=nowhere"], "nowhere"),
        (["--data.mode=fully-inductive"], "'mode' differs"),
        (["--data.batch_size=8"], "--data.batch_size 512 (got 8)"),
        (["--data.drop_last=true"], "--data.drop_last"),
        (["--trainer.fast_dev_run=2"], "fast_dev_run"),
        (["--model.nonsense=1"], "nonsense"),
        (["--trainer.precision=16-true"], "precision"),
    ],
)
def test_a_refused_command_changes_no_file(run, tmp_path, capsys, words, said):
    other = write_folder(tmp_path / "other")
    with (other / "train.txt").open("a") as file:
        file.write("a0\tfar\ta1\n")
    before = contents(run.parent)
    words = [word.replace("OTHER", str(other)) for word in words]
    more = [] if any("max_epochs" in word for word in words) else ["--trainer.max_epochs=4"]
    assert main(["fit", "--resume", str(run), *more, *words]) == 1
    printed = capsys.readouterr()
    error = printed.err
    assert printed.out == ""
    assert said in error
    assert error.count("\n") == 1 or "nonsense" in said
    assert contents(run.parent) == before
    assert main(["fit", "--resume", str(run), "--trainer.max_epochs=3"]) == 0


@pytest.mark.parametrize("words", [["--model.kge=pairre"], ["--model.hidden_channels=24"]])
def test_a_refused_test_changes_no_file(run, words):
    before = contents(run.parent)
    assert main(["test", "--run", str(run), *words]) == 1
    assert contents(run.parent) == before


def test_a_report_that_cannot_be_written_leaves_the_record(run, monkeypatch, capsys):
    def refuse(*_):
        raise StorageError("no space left")

    before = (run / "metrics.json").read_bytes()
    monkeypatch.setattr("sheafprop.report.run_report_callback.write_report", refuse)
    assert main(["test", "--run", str(run), "--reselect"]) == 1
    assert "no space left" in capsys.readouterr().err
    assert (run / "metrics.json").read_bytes() == before
    assert not list(run.glob(".sheafprop-*"))


def test_a_record_without_a_place_is_refused_before_the_test(run, capsys):
    (run / "report.md").write_text("my own")
    (run / "report.sheafprop.md").write_text("my own, too")
    before = contents(run.parent)
    for words in (["test", "--run"], ["fit", "--trainer.max_epochs=3", "--resume"]):
        assert main([*words, str(run)]) == 1
        said = capsys.readouterr()
        assert "sheafprop wrote neither" in said.err
        assert said.out == ""
        assert contents(run.parent) == before


@pytest.mark.parametrize("kind", ["file beside", "file instead"])
def test_a_model_without_a_place_is_refused_before_training(run, capsys, kind):
    if kind == "file instead":
        shutil.rmtree(run / "model")
        (run / "model").write_text("my own")
    else:
        (run / "model" / "mine.txt").write_text("my own")
    before = contents(run.parent)
    assert main(["fit", "--resume", str(run), "--trainer.max_epochs=3"]) == 1
    assert "model' is not overwritten" in capsys.readouterr().err
    assert contents(run.parent) == before


def test_it_says_where_it_goes_on(run, capsys):
    assert main(["fit", "--resume", str(run), "--trainer.max_epochs=5"]) == 0
    assert "resuming at epoch 3 of 5" in capsys.readouterr().out
    assert main(["fit", "--resume", str(run)]) == 0
    said = capsys.readouterr().out
    assert "5 epochs were run before, and none was added: all epochs were run" in said


def test_going_on_without_an_epoch_counts_none(run, capsys):
    for _ in range(3):
        assert main(["fit", "--resume", str(run)]) == 0
        assert "2 epochs were run before, and none was added" in capsys.readouterr().out
    assert main(["fit", "--resume", str(run), "--trainer.max_epochs=1"]) == 1
    assert "has been trained for 2 epochs (2 steps) already" in capsys.readouterr().err
    assert main(["fit", "--resume", str(run), "--trainer.max_epochs=3"]) == 0
    assert "resuming at epoch 3 of 3" in capsys.readouterr().out
    assert json.loads((run / "metrics.json").read_text())["training"]["epochs"] == 3


def test_the_epochs_of_a_best_checkpoint_saved_after_the_last_one_are_counted_once(run):
    shutil.copy(run / "checkpoints" / "last.ckpt", run / "checkpoints" / "best.ckpt")
    assert main(["fit", "--resume", str(run), "--trainer.max_epochs=2"]) == 0
    shutil.copy(run / "checkpoints" / "last.ckpt", run / "checkpoints" / "best.ckpt")
    assert main(["fit", "--resume", str(run)]) == 0
    assert json.loads((run / "metrics.json").read_text())["training"]["best_epoch"] == 2


def test_results_of_other_weights_do_not_stay(run):
    record = json.loads((run / "metrics.json").read_text())
    assert main(["fit", "--resume", str(run)]) == 0  # nothing is trained
    assert json.loads((run / "metrics.json").read_text())["test"] == record["test"]
    assert main(["fit", "--resume", str(run), "--trainer.max_epochs=5", "--model.lr=0.1"]) == 0
    further = json.loads((run / "metrics.json").read_text())
    assert "test" not in further
    assert further["training"]["epochs"] == 5
    assert further["run"]["config_hash"] != record["run"]["config_hash"]


def test_only_what_comes_after_training_can_change_without_an_epoch(run):
    words = ["--model.propagation.iterations=[2,3]"]
    assert main(["fit", "--resume", str(run), *words]) == 0
    assert stored(run)["model"]["propagation"]["iterations"] == [2, 3]
    record = json.loads((run / "metrics.json").read_text())
    assert {row["iterations"] for row in record["selection"]["curve"]} == {2, 3}
    assert "test" not in record


@pytest.mark.parametrize(
    "words",
    [["--trainer.max_epochs=0"], ["--trainer.max_steps=0"], ["--trainer.limit_train_batches=0"]],
)
def test_without_training_there_is_no_model(finished, tmp_path, capsys, words):
    root = stored(finished)["data"]["root"]
    where = [f"--data.root={root}", "--data.mode=semi-inductive", f"--run.group={tmp_path / 'new'}"]
    assert main(["fit", *SMALL, *where, *words]) == 1
    said = capsys.readouterr()
    assert "nothing was trained" in said.err
    assert said.out == ""
    assert not (tmp_path / "new").exists()


def test_a_fast_run_leaves_nothing(finished, tmp_path):
    root = stored(finished)["data"]["root"]
    where = [f"--data.root={root}", "--data.mode=semi-inductive", f"--run.group={tmp_path / 'new'}"]
    assert main(["fit", *SMALL, *where, "--trainer.fast_dev_run=true"]) == 0
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("value", ["2", "0.5"])
def test_overfitting_batches_is_refused_in_a_line(finished, tmp_path, capsys, value):
    root = stored(finished)["data"]["root"]
    where = [f"--data.root={root}", "--data.mode=semi-inductive", f"--run.group={tmp_path / 'new'}"]
    assert main(["fit", *SMALL, *where, f"--trainer.overfit_batches={value}"]) == 1
    said = capsys.readouterr()
    assert "'overfit_batches' is not supported" in said.err
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert not (tmp_path / "new").exists()


def test_a_schedule_shorter_than_the_training_is_refused(finished, tmp_path, capsys):
    root = stored(finished)["data"]["root"]
    where = [f"--data.root={root}", "--data.mode=semi-inductive", f"--run.group={tmp_path / 'new'}"]
    words = ["--trainer.max_epochs=6", "--model.lr_epochs=5", "--trainer.accumulate_grad_batches=2"]
    assert main(["fit", *SMALL, *where, "--data.batch_size=8", *words]) == 1
    said = capsys.readouterr()
    assert "reaches zero after 5 epochs (10 steps of 12)" in said.err
    assert said.out == ""
    assert not (tmp_path / "new").exists()
