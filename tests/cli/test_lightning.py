"""LightningCLI over our module: injected classes, and what the run folder then holds."""

import json

import pytest
import torch
import yaml

from sheafprop.cli.main import main
from sheafprop.training import SheafCompletion
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
