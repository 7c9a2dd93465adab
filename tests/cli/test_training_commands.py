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
