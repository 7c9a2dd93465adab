"""A sheaf with four methods passes through everything, and gives what its matrices give."""

import runpy
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sheafprop.data import Vocabulary
from sheafprop.kge import KGE_REGISTRY, KGEModel
from sheafprop.nn import HarmonicExtension, SheafConv, SheafPropagation
from sheafprop.query import EnergyScorer
from sheafprop.sheaf import DenseSheaf, RelationSheaf, edge_energy
from sheafprop.testing import Multigraph, SheafTestCase

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_sheaf.py"


class Plain(RelationSheaf):
    """Heads go through a matrix, ``[R, k, d]``, tails through another; no dataclass."""

    def __init__(self, head, tail, shift):
        self.head, self.tail, self.shift = head, tail, shift

    def restrict(self, x, edge_type, side):
        return torch.einsum("ekd,...ed->...ek", getattr(self, side)[edge_type], x)

    def restrict_adjoint(self, y, edge_type, side):
        return torch.einsum("ekd,...ek->...ed", getattr(self, side)[edge_type].conj(), y)

    def translation_of(self, edge_type):
        return self.shift[edge_type]

    def tensors(self):
        return {"head": self.head, "tail": self.tail, "shift": self.shift}


@dataclass(frozen=True, eq=False)
class Fields(RelationSheaf):
    """The same as a dataclass, which says by its fields what :meth:`tensors` would."""

    head: Tensor
    tail: Tensor
    shift: Tensor

    restrict, restrict_adjoint = Plain.restrict, Plain.restrict_adjoint
    translation_of = Plain.translation_of


torch.export.register_dataclass(Fields)


def tensors(seed, dtype=torch.float64, k=2):
    g = torch.Generator().manual_seed(seed)
    shapes = ((3, k, 3), (3, k, 3), (3, k))
    return [torch.randn(shape, generator=g, dtype=dtype) for shape in shapes]


class TestFields(SheafTestCase):
    def make_sheaf(self, seed):
        return Fields(*tensors(seed))


class TestComplexFields(SheafTestCase):
    def make_sheaf(self, seed):
        return Fields(*tensors(seed, torch.complex128, k=3))


@dataclass(frozen=True, eq=False)
class Turned(RelationSheaf):
    """Heads are rotated in the plane by angles ``[R]``, which do not scale the maps."""

    angle: Tensor
    stalk_dim = 2

    def restrict(self, x, edge_type, side):
        sign = -1 if side == "head" else 0
        turn = torch.polar(torch.ones_like(self.angle), sign * self.angle)[edge_type]
        return torch.view_as_real(torch.view_as_complex(x.contiguous()) * turn)

    def restrict_adjoint(self, y, edge_type, side):
        return Turned(-self.angle).restrict(y, edge_type, side)

    def translation_of(self, edge_type):
        return None


torch.export.register_dataclass(Turned)


class TestTurned(SheafTestCase):
    def make_sheaf(self, seed):
        return Turned(torch.randn(3, generator=torch.Generator().manual_seed(seed)).double())


def test_weights_of_relations_scale_maps_whose_tensors_do_not():
    sheaf = Turned(torch.tensor([0.3, -2.0, 1.0], dtype=torch.float64))
    weight = torch.tensor([0.25, 2.0, 1.0], dtype=torch.float64, requires_grad=True)
    graph = Multigraph.random(3, num_edges=40)
    x, edges = graph.features(sheaf, 2), (graph.edge_index, graph.edge_type)
    energy = edge_energy(x, *edges, sheaf)
    weighted = edge_energy(x, *edges, sheaf.scale_energy(weight))
    torch.testing.assert_close(weighted, weight[graph.edge_type] * energy)
    weighted.sum().backward()
    expected = torch.zeros(3).double().index_add(0, graph.edge_type, energy)
    torch.testing.assert_close(weight.grad, expected)
    # All else is that of its matrices.
    scaled = sheaf.scale_energy(weight.detach())
    dense = DenseSheaf(scaled.matrices("head"), scaled.matrices("tail"))
    layer = SheafPropagation(5)
    torch.testing.assert_close(graph.call(layer, x, scaled), graph.call(layer, x, dense))
    part = scaled.select(torch.tensor([2, 1]))
    torch.testing.assert_close(part.matrices("tail"), dense.matrices("tail")[[2, 1]])
    single = scaled.promote(torch.float32)
    assert (single.dtype, single.num_relations) == (torch.float32, 3)
    plain = Plain(*tensors(4)).scale_energy(weight.detach())
    written = DenseSheaf(*tensors(4)).scale_energy(weight.detach())
    x = graph.features(written, 3)
    torch.testing.assert_close(graph.call(layer, x, plain), graph.call(layer, x, written))


def test_a_width_that_the_maps_need_is_asked_for():
    class Anywhere(Turned):
        stalk_dim = None

    graph = Multigraph.random(3)
    x = torch.ones(graph.num_nodes, 2).double()
    with pytest.raises(ValueError, match=r"maps of Anywhere .* its 'stalk_dim' is None: return"):
        graph.call(SheafConv(), x, Anywhere(torch.zeros(3).double()))


def test_a_sheaf_that_is_not_registered_is_told_how():
    class Unregistered(Turned):
        pass

    class Case(SheafTestCase):
        def make_sheaf(self, seed):
            return Unregistered(torch.zeros(3).double())

    with pytest.raises(AssertionError, match=r"register_dataclass\(Unregistered\)"):
        Case().test_is_an_immutable_pytree()


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("k", [2, 3])
def test_what_follows_from_four_methods_is_what_matrices_give(dtype, k):
    own, dense = Plain(*tensors(1, dtype, k)), DenseSheaf(*tensors(1, dtype, k))
    close = torch.testing.assert_close
    assert (own.num_relations, own.stalk_dim, own.dtype) == (3, 3, dtype)
    for side in ("head", "tail"):
        close(own.matrices(side), dense.matrices(side))
        assert torch.equal(own.is_injective(side, 1e-6), dense.is_injective(side, 1e-6))
        queries, candidates = torch.randn(2, 5, 3, dtype=dtype)
        edge_type = torch.tensor([2, 0, 2, 2, 1])
        energy = own.pairwise_energy(queries, candidates, edge_type, side)
        close(energy, dense.pairwise_energy(queries, candidates, edge_type, side))
        target = own.targets(queries, edge_type, side)
        for i, r in enumerate(edge_type.tolist()):
            image = candidates @ dense.matrices(side)[r].T
            close(energy[i], torch.linalg.vector_norm(image - target[i], dim=1) ** 2)
    close(own.end_norms(), dense.end_norms())
    close(own.end_translations(), dense.end_translations())
    part = torch.tensor([2, 0])
    assert type(own.select(part)) is Plain
    close(own.select(part).matrices("tail"), dense.matrices("tail")[part])
    graph = Multigraph.random(3, num_edges=50)
    x = graph.features(dense, 3)
    for layer in (SheafConv(), SheafPropagation(3), HarmonicExtension("direct", tol=1e-6)):
        close(graph.call(layer, x, own), graph.call(layer, x, dense), atol=1e-8, rtol=1e-8)
    labels = {"entities": Vocabulary("abcdefghijkl"), "relations": Vocabulary("pqr")}
    answers = [EnergyScorer(s, x.unsqueeze(1), **labels) for s in (own, dense)]
    queries = ["and(via(p, b), via(r, e))", "via(q, via(p, d))"]
    close(answers[0].score(queries), answers[1].score(queries))


def test_a_model_with_a_sheaf_of_its_own_goes_all_the_way(capsys, monkeypatch):
    # The example registers its model; other tests must not see it.
    monkeypatch.setitem(KGE_REGISTRY, "reflection", KGEModel)
    namespace = runpy.run_path(str(EXAMPLE))
    out = capsys.readouterr().out
    assert "propagated: torch.Size([16, 8])" in out
    # What was learned: flips lead from a3 to a12.
    assert "via(flips, via(swaps, new))" in out
    model = namespace["Reflection"](6, 2, 4).double()
    sheaf, x = model.sheaf(), model.entity_vectors()
    head, relation, tail = torch.tensor([[0, 1, 5], [1, 0, 1], [2, 2, 3]])
    residual = sheaf.restrict(x[head], relation, "head") - x[tail]
    expected = -torch.linalg.vector_norm(residual, dim=1)
    torch.testing.assert_close(model(head, relation, tail), expected)
    rows = torch.arange(3)
    torch.testing.assert_close(model.score_tails(x, head, relation)[rows, tail], expected)
    torch.testing.assert_close(model.score_heads(x, relation, tail)[rows, head], expected)
