"""What ``fit``, ``validate`` and ``test`` check before Lightning is there."""

import pytest

from sheafprop.cli.main import main
from sheafprop.cli.training_commands import config_digest, own_classes, trust

ADAMW = {"class_path": "torch.optim.AdamW", "init_args": {"lr": 0.1}}


def test_a_digest_follows_options_but_not_the_seed_or_their_order():
    config = {"model": {"lr": 0.1}, "seed_everything": 1}
    digest = config_digest(config, ["--a=1", "--b=2"])
    assert config_digest(config | {"seed_everything": 2}, ["--b=2", "--a=1"]) == digest
    assert config_digest(config, ["--a=1"]) != digest
    assert config_digest({"model": {"lr": 0.2}}, ["--a=1", "--b=2"]) != digest


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


@pytest.mark.parametrize("command", ["test", "validate"])
def test_a_stored_run_imports_no_optimizer_of_strangers(tmp_path, capsys, command):
    (tmp_path / "run.yaml").write_text("model: {optimizer: {class_path: evil.Optimizer}}\n")
    assert main([command, "--run", str(tmp_path)]) == 1
    assert "allow it with --trust evil" in capsys.readouterr().err
