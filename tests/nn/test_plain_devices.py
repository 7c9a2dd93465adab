"""Layers where torch neither adds complex rows nor multiplies by sparse matrices, as on Apple's
MPS: simulated on the CPU by refusing those operations."""

from contextlib import nullcontext

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sheafprop.kernels import csr_product
from sheafprop.kernels.backend import use_backend
from sheafprop.nn import (
    HarmonicExtension,
    RelationPrototypes,
    RelationProximity,
    SheafConv,
    SheafDiffusion,
    SheafPropagation,
    draw_sections,
    rescale_sections,
)
from sheafprop.sheaf import edge_energy
from tests.nn.test_layers import run
from tests.sheaf_cases import SHEAF_KINDS, make_case

ADDING = ("index_add", "scatter", "index_reduce", "segment_reduce", "_embedding_bag")


class PlainDevice(TorchDispatchMode):
    """Refuses sums over complex rows, sparse tensors, and double precision of anything but
    single numbers."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function)
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        adds = any(part in name for part in ADDING)
        # index_put(..., accumulate=True)
        adds |= "index_put" in name and len(args) > 3 and bool(args[3])
        if adds and any(t.is_complex() for t in given):
            raise NotImplementedError(f"{name} of complex numbers")
        out = function(*args, **(kwargs or {}))
        found = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        if "sparse" in name or any(t.layout != torch.strided for t in (*given, *found)):
            raise NotImplementedError(f"{name} of sparse tensors")
        return out


@pytest.fixture
def device(monkeypatch):
    monkeypatch.setattr(csr_product, "_SPARSE_DEVICES", ())
    return PlainDevice()


def test_the_device_refuses_what_it_lacks(device):
    index, rows = torch.tensor([0, 0]), torch.ones(2, dtype=torch.complex64)
    target, matrix = torch.zeros(2, dtype=torch.complex64), torch.eye(2).to_sparse_csr()
    with device:
        for refused in (
            lambda: target.index_add(0, index, rows),
            lambda: target.scatter_add(0, index, rows),
            lambda: target.index_put((index,), rows, accumulate=True),
            lambda: torch.eye(2).to_sparse_csr(),
            lambda: matrix @ torch.ones(2, 2),
        ):
            with pytest.raises(NotImplementedError):
                refused()
        torch.zeros(2).index_add(0, index, torch.ones(2))


LAYERS = [
    SheafConv(),
    SheafConv(step_size=0.01, normalization=None),
    SheafPropagation(4),
    SheafPropagation(200, normalization="degree"),
    SheafPropagation(4, teleport=0.2),
    SheafPropagation(30, tol=1e-3),
    SheafDiffusion(1.5, teleport=0.1),
    HarmonicExtension("cg"),
    HarmonicExtension("chebyshev"),
    HarmonicExtension("euler", max_iterations=300),
]


@pytest.mark.parametrize("kind", SHEAF_KINDS)
@pytest.mark.parametrize("layer", LAYERS, ids=repr)
def test_layers_and_their_gradients(layer, kind, device):
    case = make_case(kind, 6, boundary=0.4, num_edges=40)
    found = []
    for plain in (False, True):
        x = case.x.clone().requires_grad_()
        maps = case.sheaf.map_tensors(lambda t: t.clone().requires_grad_())
        if plain:
            with use_backend("torch"), device:
                out = run(layer, case, x=x, sheaf=maps)
                out.abs().square().sum().backward()
                with torch.no_grad():
                    still = run(layer, case)
        else:
            out = run(layer, case, x=x, sheaf=maps)
            out.abs().square().sum().backward()
            still = run(layer, case)
        grads = [t.grad for t in (x, *maps.tensors().values()) if t.grad is not None]
        found.append([out.detach(), still, *grads])
    for one, other in zip(*found, strict=True):
        scale = 1 + float(one.abs().max())
        assert torch.allclose(one, other, atol=1e-5 * scale)


def test_message_by_message(device):
    case = make_case("diagonal, complex pair", 6)
    layer = SheafPropagation(3)
    expected = run(layer, case)
    seen = []
    layer.register_message_forward_hook(lambda *_: seen.append(1))
    # No gradients: PyG itself gathers the messages' ends.
    with use_backend("torch"), device:
        out = run(layer, case)
    assert torch.allclose(out, expected, atol=1e-10)
    assert len(seen) == 3


@pytest.mark.parametrize("kind", ["identity", "diagonal, unitary"])
def test_random_starts_and_lengths(kind, device):
    case = make_case(kind, 6, boundary=0.4)
    x = case.x.unsqueeze(1).expand(-1, 2, -1)
    expected = rescale_sections(draw_sections(x, case.boundary_mask), case.boundary_mask, 2.0)
    with use_backend("torch"), device:
        out = rescale_sections(draw_sections(x, case.boundary_mask), case.boundary_mask, 2.0)
    assert torch.allclose(out, expected, atol=1e-12)


def test_gradients_of_the_energy(device):
    case = make_case("diagonal, complex pair", 6)
    grads = []
    for plain in (False, True):
        x = case.x.clone().requires_grad_()
        with device if plain else nullcontext():
            edge_energy(x, case.edge_index, case.edge_type, case.sheaf).sum().backward()
        grads.append(x.grad)
    assert torch.allclose(*grads, atol=1e-10)


def test_prototypes_of_complex_vectors(device):
    case = make_case("diagonal, unitary", 6)
    given = case.x, case.edge_index, case.edge_type, 4
    expected = RelationPrototypes.from_triples(*given)
    with use_backend("torch"), device:
        prototypes = RelationPrototypes.from_triples(*given)
        mean, _ = prototypes.start(case.edge_index, case.edge_type, 12)
    assert torch.allclose(prototypes.mean, expected.mean, atol=1e-12)
    assert torch.allclose(mean, expected.start(case.edge_index, case.edge_type, 12)[0], atol=1e-12)


def test_blocks_of_gathered_rows_change_nothing(device, monkeypatch):
    case = make_case("identity, complex", 6)
    expected = run(SheafPropagation(3), case)
    monkeypatch.setattr(csr_product, "_BLOCK_BYTES", 100)
    with use_backend("torch"), device:
        assert torch.allclose(run(SheafPropagation(3), case), expected, atol=1e-12)


def test_walks_that_weigh_relations_and_their_gradients(device):
    case = make_case("diagonal, complex pair", 6)
    sources, found = torch.tensor([0, 3]), []
    for plain in (False, True):
        weight = torch.linspace(0.5, 2, 2 * case.sheaf.num_relations).view(2, -1).requires_grad_()
        with use_backend("torch"), device if plain else nullcontext():
            graph = case.edge_index, case.edge_type, len(case.x), case.sheaf.num_relations
            rows = RelationProximity(*graph)(sources, weight)
            rows.square().sum().backward()
        found.append((rows.detach(), weight.grad))
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, atol=1e-6)
