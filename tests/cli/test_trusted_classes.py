"""Which classes a stored run may import."""

import pytest

from sheafprop.cli.trusted_classes import own_classes, trust

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
