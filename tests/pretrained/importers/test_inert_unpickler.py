"""Files of torch.save, read without importing what they name."""

import collections
import os

import pytest
import torch

from sheafprop.errors import FormatError
from sheafprop.pretrained.importers.inert_unpickler import (
    Inert,
    load_inert,
    state_of,
    strip_prefixes,
    unwrap,
)


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.int64,
     torch.int32, torch.bool, torch.uint8],
)  # fmt: skip
def test_tensors_come_back_as_they_were(tmp_path, dtype):
    x = torch.arange(24).view(4, 6).to(dtype)
    given = {"all": x, "part": x[1:3, ::2], "turned": x.T, "none": x[:0], "list": [x, 3, "text"]}
    torch.save(given, tmp_path / "file.pt")
    found = load_inert(tmp_path / "file.pt")
    for name in ("all", "part", "turned", "none"):
        assert found[name].dtype == dtype
        assert torch.equal(found[name], given[name])
    assert found["list"][1:] == [3, "text"]


def test_modules_are_inert_and_their_parameters_are_read(tmp_path):
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    torch.save(module, tmp_path / "file.pt")
    found = load_inert(tmp_path / "file.pt")
    assert isinstance(found, Inert)
    assert not isinstance(found, torch.nn.Module)
    assert found.origin == "torch.nn.modules.container.Sequential"
    state = state_of(found)
    assert state.keys() == module.state_dict().keys()
    for name, value in module.state_dict().items():
        assert torch.equal(state[name], value)


def test_nothing_that_a_file_names_is_called(tmp_path):
    class Attack:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "made"),)

    torch.save({"x": Attack(), "y": collections.OrderedDict(a=1)}, tmp_path / "file.pt")
    found = load_inert(tmp_path / "file.pt")
    assert isinstance(found["x"], Inert)
    assert found["y"] == {"a": 1}
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("keep", [0, 100, -30])
def test_a_file_that_is_cut_off_is_refused(tmp_path, keep):
    path = tmp_path / "file.pt"
    torch.save({"x": torch.ones(50)}, path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(FormatError, match=r"file\.pt' is not a complete file of torch\.save"):
        load_inert(path)


def test_wrappers_are_taken_off_modules_and_names(tmp_path):
    inner = torch.nn.Linear(2, 3)
    outer = torch.nn.Module()
    outer.add_module("module", torch.nn.Module())
    outer.module.add_module("_orig_mod", inner)
    torch.save(outer, tmp_path / "file.pt")
    found = unwrap(load_inert(tmp_path / "file.pt"))
    assert type(found).__name__ == "Linear"
    names = {f"module._orig_mod.{name}": value for name, value in inner.state_dict().items()}
    assert strip_prefixes(names).keys() == inner.state_dict().keys()
    mixed = {"module.weight": inner.weight, "bias": inner.bias}
    assert strip_prefixes(mixed) == mixed
