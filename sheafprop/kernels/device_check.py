"""Whether a device adds up what it should, asked once of devices that no test has run on."""

import functools

import torch
from torch import Tensor

from sheafprop.kernels.coupling import Coupling, CouplingEntries, IdentityCoupling
from sheafprop.kernels.diagonal_coupling import DiagonalCoupling

# Devices that the tests, or a benchmark, have run on.
_TRIED = ("cpu", "cuda")


def check_device(device: torch.device) -> None:
    """Compares small sums of messages on a device with their values, at its first use.

    Args:
        device (torch.device): Where a plan is about to be made.

    Raises:
        RuntimeError: If a sum differs.
    """
    if device.type not in (*_TRIED, "meta"):
        _check(device.type)


@functools.cache
def _check(device_type: str) -> None:
    with torch.inference_mode(False), torch.no_grad():
        _compare_sums(torch.device(device_type))


def _compare_sums(device: torch.device) -> None:
    """Sums of small integers, which every number type and every order of adding gives exactly."""

    def on_device(values: list, dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype).to(device)

    entries = CouplingEntries(
        dst=on_device([2, 0, 2, 0, 2, 2], torch.long),
        src=on_device([0, 1, 0, 2, 1, 0], torch.long),
        label=on_device([0, 1, 1, 0, 1, 0], torch.long),
        weight=on_device([1, 2, 1, 3, 1, 2], torch.float32),
        num_dst=4,
        num_src=3,
    )
    real = on_device([[[1, 2]], [[3, -1]], [[0, 5]]], torch.float32)
    pairs = on_device([[[1, 0]], [[0, 2]], [[3, 1]]], torch.float32)
    x = torch.view_as_complex(torch.stack([real, pairs], -1).contiguous())
    table = torch.view_as_complex(on_device([[[1, 2], [0, 1]]], torch.float32))
    cases: list[tuple[Coupling, Tensor, list]] = [
        (IdentityCoupling(entries), real, [[6, 13], [0, 0], [7, 7], [0, 0]]),
        (
            DiagonalCoupling(entries, table),
            x,
            [[-12 - 3j, 1 + 17j], [0, 0], [3 + 2j, 2 + 5j], [0, 0]],
        ),
    ]
    for coupling, features, expected in cases:
        found = coupling(features).cpu().squeeze(1)
        if not torch.equal(found, torch.tensor(expected).to(found.dtype)):
            raise RuntimeError(
                f"torch {torch.__version__} adds rows wrongly on the device '{device}' "
                f"(got {found.tolist()}, expected {expected}): move the tensors to the CPU, or "
                "take another version of torch"
            )
