import pytest

from sheafprop.training.monitor import choose_monitor
from tests.toy import toy_data


@pytest.mark.parametrize(
    ("without", "monitor", "mode"),
    [
        ((), "val/mrr", "max"),
        (("train_valid",), "val/mrr", "max"),
        (("valid",), "val/transductive/mrr", "max"),
        (("valid", "train_valid"), "train/loss", "min"),
    ],
)
def test_the_nearest_validation_there_is_decides(without, monitor, mode):
    found = choose_monitor(toy_data(without=without))
    assert found[:2] == (monitor, mode)
    assert ("none" in found[2] or "no validation" in found[2]) == ("valid" in without)
