"""What ``fit``, ``validate`` and ``test`` check before Lightning is there."""

import pytest

from sheafprop.cli.main import main
from sheafprop.cli.training_commands import config_digest


def test_a_digest_follows_options_but_not_the_seed_or_their_order():
    config = {"model": {"lr": 0.1}, "seed_everything": 1}
    digest = config_digest(config, ["--a=1", "--b=2"])
    assert config_digest(config | {"seed_everything": 2}, ["--b=2", "--a=1"]) == digest
    assert config_digest(config, ["--a=1"]) != digest
    assert config_digest({"model": {"lr": 0.2}}, ["--a=1", "--b=2"]) != digest


@pytest.mark.parametrize("command", ["test", "validate"])
def test_a_stored_run_imports_no_optimizer_of_strangers(tmp_path, capsys, command):
    (tmp_path / "run.yaml").write_text("model: {optimizer: {class_path: evil.Optimizer}}\n")
    assert main([command, "--run", str(tmp_path)]) == 1
    assert "allow it with --trust evil" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--run.name=x", "--run.group=x"])
@pytest.mark.parametrize("words", [["fit", "--resume"], ["test", "--run"], ["validate", "--run"]])
def test_a_run_that_is_there_takes_no_other_place(tmp_path, capsys, words, option):
    assert main([*words, str(tmp_path), option]) == 1
    assert "say where a new run is made" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_callbacks_are_replaced_where_a_run_trains(tmp_path, capsys):
    assert main(["test", "--run", str(tmp_path), "--run.callbacks=replace"]) == 1
    assert "--run.callbacks goes with fit" in capsys.readouterr().err
