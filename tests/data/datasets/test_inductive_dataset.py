import pytest

from sheafprop.data import InductiveDataset
from tests.toy import toy_data


class RingDataset(InductiveDataset):
    def load(self):
        return toy_data()

    def check(self):
        pass


def test_a_data_set_of_ones_own_loads_and_checks():
    dataset = RingDataset("ring")
    assert repr(dataset) == "RingDataset(ring)"
    dataset.check()
    assert dataset.load().name == "ring"


@pytest.mark.parametrize("name", ["load", "check"])
def test_both_methods_are_needed(name):
    parts = {key: getattr(RingDataset, key) for key in ("load", "check") if key != name}
    kind = type("Partial", (InductiveDataset,), parts)
    with pytest.raises(TypeError, match=name):
        kind("x")
