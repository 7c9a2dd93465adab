"""LightningCLI over our module: injected classes, and what the run folder then holds."""

import json

import pytest
import torch
import yaml

from sheafprop import progress
from sheafprop.cli.main import main
from sheafprop.training import SheafCompletion, count_training_steps
from tests.cli.test_main import SMALL
from tests.toy import write_folder

OPTIMIZER = "--model.optimizer={class_path: torch.optim.AdamW, init_args: {lr: 0.07}}"
SCHEDULE = (
    "--model.lr_schedule={class_path: torch.optim.lr_scheduler.StepLR, init_args: {step_size: 1}}"
)


@pytest.fixture
def words(tmp_path):
    data = write_folder(tmp_path / "ring")
    return ["fit", *SMALL, f"--data.root={data}", "--data.mode=semi-inductive"]


def test_injected_classes_train_are_tested_and_go_on(tmp_path, words):
    assert main([*words, f"--run.group={tmp_path}", OPTIMIZER, SCHEDULE]) == 0
    run = tmp_path / "rotate"
    stored = yaml.safe_load((run / "run.yaml").read_text())["model"]
    assert stored["optimizer"]["init_args"]["lr"] == 0.07
    state = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    (group,) = state["optimizer_states"][0]["param_groups"]
    assert group["initial_lr"] == 0.07
    assert state["lr_schedulers"][0]["step_size"] == 1
    assert {"optimizer", "lr_schedule", "_instantiator"}.isdisjoint(state["hyper_parameters"])
    assert main(["test", "--run", str(run)]) == 0
    assert main(["fit", "--resume", str(run), "--trainer.max_epochs=3"]) == 0
    assert json.loads((run / "metrics.json").read_text())["training"]["epochs"] == 3
    module = SheafCompletion.load_from_checkpoint(run / "checkpoints" / "best.ckpt")
    assert module.hparams["seed"] == 0


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--model.lr_schedule.init_args.gamma=0.5"], "--model.lr_schedule.gamma 0.1"),
        (["--model.optimizer.init_args.lr=0.5"], "--model.optimizer.lr 0.07"),
        (["--model.lr_schedule=constant"], "--model.lr_schedule 'of a class'"),
        (["--model.lr_schedule=cosine"], "--model.lr_schedule 'of a class'"),
    ],
)
def test_options_that_a_stored_schedule_would_override_are_refused(
    tmp_path, words, capsys, more, said
):
    assert main([*words, f"--run.group={tmp_path}", OPTIMIZER, SCHEDULE]) == 0
    run = tmp_path / "rotate"
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main(["fit", "--resume", str(run), "--trainer.max_epochs=3", *more]) == 1
    assert f"trained with {said}" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_named_rate_under_an_injected_schedule_is_refused_too(tmp_path, words, capsys):
    assert main([*words, f"--run.group={tmp_path}", SCHEDULE]) == 0
    again = ["fit", "--resume", str(tmp_path / "rotate"), "--trainer.max_epochs=3"]
    for option in ("--model.lr=0.5", "--model.weight_decay=0.5"):
        assert main([*again, option]) == 1
        assert f"trained with {option.partition('=')[0]} " in capsys.readouterr().err
    assert main(again) == 0


@pytest.mark.parametrize("option", ["--model.optimizer=adamx", "--model.lr_schedule=cosines"])
def test_an_unknown_name_is_refused(tmp_path, words, capsys, option):
    assert main([*words, f"--run.group={tmp_path / 'runs'}", option]) == 1
    assert option.partition("=")[2] in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_hyper_parameters_are_those_of_a_module_made_by_hand(tmp_path, words):
    more = ["--model.num_negatives=5", "--seed_everything=3", "--model.kge_args.squared=true"]
    assert main([*words, f"--run.group={tmp_path}", "--trainer.max_epochs=1", *more]) == 0
    path = tmp_path / "rotate" / "checkpoints" / "best.ckpt"
    stored = torch.load(path, weights_only=True)["hyper_parameters"]
    assert stored == SheafCompletion(**stored).hparams
    assert (stored["num_negatives"], stored["seed"]) == (5, 3)
    assert stored["propagation"]["settings"]["seed"] == 3


@pytest.fixture
def plain(tmp_path):
    """``experiment/folder`` as it is, but for the size of the model."""
    small = ["--model.hidden_channels=4", "--model.propagation.settings.num_random=1"]
    words = ["fit", "--config=experiment/folder", "--config=logger/csv", *small]
    words += ["--trainer.accelerator=cpu", f"--run.group={tmp_path}"]
    return lambda folder, *more: main([*words, f"--data.root={folder}", *more])


def test_the_default_trains_by_the_size_and_chooses_on_the_training_graph(
    tmp_path, plain, capsys, monkeypatch
):
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    folder = write_folder(tmp_path / "ring", "fully-inductive", without=("valid",))
    assert plain(folder, "--data.mode=fully-inductive") == 0
    printed = capsys.readouterr()
    run = tmp_path / "rotate"
    found = json.loads((run / "metrics.json").read_text())
    triples = found["data"]["train_triples"]
    assert triples < 512  # an epoch is a step
    assert abs(found["training"]["epochs"] - count_training_steps(triples, 512)) <= 4
    assert found["selection"]["on"] == "training graph"
    assert found["selection"]["count"] == found["data"]["train_valid_triples"]
    assert "validation triples of the training graph with its entities taken as new" in printed.out
    assert "training: " in printed.err
    assert "choosing iterations on training graph: " in printed.err
    text = (run / "report.md").read_text()
    assert "tried on training entities that are treated as new (best" in text
    stored = torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)
    assert stored["sheafprop"]["selection"]["on"] == "training graph"
    assert main(["test", "--run", str(run)]) == 0
    assert json.loads((run / "metrics.json").read_text())["selection"] == found["selection"]
    assert main(["test", "--run", str(run), "--reselect"]) == 0
    again = json.loads((run / "metrics.json").read_text())["selection"]
    assert again["chosen"] == found["selection"]["chosen"]
    # The end that was reached is the end when the run goes on.
    capsys.readouterr()
    assert main(["fit", "--resume", str(run)]) == 0
    assert "and none was added" in capsys.readouterr().out


def test_validation_triples_of_other_data_decide_for_these(tmp_path, plain):
    folder = write_folder(tmp_path / "ring", without=("valid",))
    assert plain(folder, "--data.mode=semi-inductive", "--trainer.max_epochs=2") == 0
    run = tmp_path / "rotate"
    before = (run / "metrics.json").read_bytes()
    other = write_folder(tmp_path / "other")
    assert main(["test", "--run", str(run), f"--data.root={other}"]) == 0
    assert (run / "metrics.json").read_bytes() == before
    found = json.loads((run / "on-other" / "metrics.json").read_text())["selection"]
    assert found["on"] == "validation"
    assert found["count"] == len((other / "inference_valid.txt").read_text().splitlines())


def test_no_lines_where_progress_is_switched_off(tmp_path, plain, capsys, monkeypatch):
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    folder = write_folder(tmp_path / "ring")
    off = ["--trainer.enable_progress_bar=false", "--trainer.max_epochs=2"]
    assert plain(folder, "--data.mode=semi-inductive", *off) == 0
    assert "training: " not in capsys.readouterr().err
