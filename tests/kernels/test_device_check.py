import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sheafprop.kernels import csr_product, device_check
from sheafprop.kernels.backend import use_backend


class Wrong(TorchDispatchMode):
    """A device whose sums lose the last row where rows repeat."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "index_add" in str(function):
            return function(args[0], args[1], args[2][:-1], args[3][:-1])
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("sparse", [("cpu",), ()])
@pytest.mark.parametrize("backend", ["torch", "numba"])
def test_right_sums_pass(sparse, backend, monkeypatch):
    monkeypatch.setattr(csr_product, "_SPARSE_DEVICES", sparse)
    with use_backend(backend):
        device_check._compare_sums(torch.device("cpu"))


def test_wrong_sums_are_refused_by_name(monkeypatch):
    monkeypatch.setattr(csr_product, "_SPARSE_DEVICES", ())
    with use_backend("torch"), Wrong(), pytest.raises(RuntimeError, match="device 'cpu'"):
        device_check._compare_sums(torch.device("cpu"))


def test_a_device_is_checked_once_and_only_where_no_test_ran(monkeypatch):
    seen = []
    monkeypatch.setattr(device_check, "_compare_sums", seen.append)
    device_check._check.cache_clear()
    try:
        for name in ("mps", "cpu", "mps", "cuda", "meta", "xpu"):
            device_check.check_device(torch.device(name))
    finally:
        device_check._check.cache_clear()
    assert [device.type for device in seen] == ["mps", "xpu"]
