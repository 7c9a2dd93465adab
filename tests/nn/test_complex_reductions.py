"""Reductions of complex numbers stay with operations that CUDA has as well.

``scatter`` with a reduction, ``scatter_add`` and ``segment_reduce`` know complex numbers on the CPU
only, so that a CPU cannot show the fault by its results.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sheafprop.kernels.backend import use_backend
from sheafprop.nn import HarmonicExtension, SheafConv, SheafDiffusion, SheafPropagation
from sheafprop.training.sheaf_completion import SheafCompletion
from tests.sheaf_cases import make_case


class NoComplexScatter(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = f"{function}"
        tensors = [t for t in tree_leaves(args) if isinstance(t, torch.Tensor)]
        reduces = any(part in name for part in ("scatter_", "segment_reduce"))
        if reduces and any(t.is_complex() for t in tensors):
            raise AssertionError(f"{name} has no complex kernel on CUDA")
        return function(*args, **(kwargs or {}))


def test_the_guard_finds_the_fault():
    target, index = torch.zeros(2, dtype=torch.complex64), torch.tensor([0, 0])
    with NoComplexScatter(), pytest.raises(AssertionError, match="no complex kernel"):
        target.scatter_add(0, index, torch.ones(2, dtype=torch.complex64))
    with NoComplexScatter():
        torch.zeros(2).scatter_add(0, index, torch.ones(2))
        target.index_add(0, index, torch.ones(2, dtype=torch.complex64))


@pytest.mark.parametrize("kind", ["diagonal, complex pair", "dense, tall complex"])
@pytest.mark.parametrize(
    "layer",
    [
        SheafConv(),
        SheafPropagation(5),
        SheafPropagation(200),
        SheafPropagation(5, normalization="degree", teleport=0.1),
        SheafDiffusion(2.0),
        *(HarmonicExtension(solver) for solver in ("cg", "chebyshev", "direct", "euler")),
    ],
    ids=repr,
)
def test_layers(layer, kind):
    case = make_case(kind, 0, boundary=0.4, num_edges=40)
    assert case.x.is_complex()
    x = case.x.clone().requires_grad_()
    with use_backend("torch"), NoComplexScatter():
        out = layer(x, *case.graph, edge_weight=case.edge_weight, boundary_mask=case.boundary_mask)
        out.abs().square().sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("loss", ["cross_entropy", "nssa", "margin_ranking"])
def test_training(loss):
    module = SheafCompletion(kge="rotate", hidden_channels=4, loss=loss, num_negatives=3)
    model = module.build(7, 2)
    triples = torch.tensor([[0, 0, 1], [1, 1, 2], [3, 0, 6]])
    with use_backend("torch"), NoComplexScatter():
        module.batch_loss(model, triples, torch.arange(3), 0).backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
