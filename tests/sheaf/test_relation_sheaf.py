"""The template every map kind must pass, and a check that none is missing."""

import numpy as np
import pytest
import torch

import sheafprop.sheaf
from sheafprop.sheaf import RelationSheaf, coboundary, coboundary_adjoint, edge_energy
from sheafprop.sheaf.identity_sheaf import IdentitySheaf
from tests.sheaf_cases import NUM_NODES, SHEAF_KINDS, WIDTH, dense_coboundary, make_case, make_sheaf


@pytest.fixture(params=SHEAF_KINDS)
def case(request):
    return make_case(request.param)


def test_every_map_kind_is_covered():
    tested = {type(make_sheaf(kind)) for kind in SHEAF_KINDS}
    public = {
        c
        for c in vars(sheafprop.sheaf).values()
        if isinstance(c, type) and issubclass(c, RelationSheaf) and c is not RelationSheaf
    }
    defined, found = set(), [RelationSheaf]
    for kind in found:
        # Private ones weight a sheaf of one of the kinds.
        own = [
            c
            for c in kind.__subclasses__()
            if c.__module__.startswith("sheafprop.sheaf.") and not c.__name__.startswith("_")
        ]
        found += own
        defined |= set() if own else {kind}
    assert tested == public == defined


def test_a_sheaf_is_shown_on_one_line(case):
    shown = repr(case.sheaf)
    assert "\n" not in shown
    for name, tensor in case.sheaf.tensors().items():
        assert f"{name}={list(tensor.shape)}" in shown


def test_a_sheaf_without_tensors_shows_its_relations():
    assert repr(IdentitySheaf(relations=3)) == "IdentitySheaf(num_relations=3)"


def test_coboundary_equals_dense_matrix(case):
    delta, _ = dense_coboundary(case)
    root = case.edge_weight.sqrt().unsqueeze(1)
    ours = coboundary(case.x, *case.graph) * root
    assert torch.allclose(ours.flatten(), delta @ case.x.flatten(), atol=1e-12)


def test_adjoint_identity(case):
    y = torch.randn_like(coboundary(case.x, *case.graph))
    left = torch.sum(y.conj() * coboundary(case.x, *case.graph))
    right = torch.sum(coboundary_adjoint(y, *case.graph, NUM_NODES).conj() * case.x)
    assert torch.allclose(left, right, atol=1e-10)


def test_energy_is_the_squared_residual(case):
    delta, b = dense_coboundary(case)
    total = torch.linalg.vector_norm(delta @ case.x.flatten() - b) ** 2
    ours = edge_energy(case.x, *case.graph, case.edge_weight)
    assert ours.shape == case.edge_type.shape
    assert not ours.is_complex()
    assert torch.allclose(ours.sum(), total, atol=1e-10)


def test_tables_of_ends_equal_the_maps(case):
    sheaf = case.sheaf
    norms = sheaf.end_norms()
    translations = sheaf.end_translations()
    for r in range(sheaf.num_relations):
        for row, side, sign in ((r, "tail", 1), (sheaf.num_relations + r, "head", -1)):
            matrix = sheaf.restriction_map(r, side, WIDTH).to(case.x.dtype)
            expected = torch.linalg.matrix_norm(matrix, 2) ** 2
            assert torch.allclose(norms[row].double(), expected, atol=1e-10)
            b = sheaf.translation_of(torch.tensor([r]))
            if b is None:
                assert translations is None
            else:
                assert torch.allclose(translations[row], sign * (matrix.mH @ b[0]), atol=1e-12)


def test_restrict_applies_the_map_of_each_edge(case):
    relation = torch.tensor([2, 0, 2, 1])
    x = torch.randn(2, 4, WIDTH, dtype=torch.float64).to(case.x.dtype)
    for side in ("head", "tail"):
        maps = torch.stack([case.sheaf.restriction_map(int(r), side, WIDTH) for r in relation])
        maps = maps.to(x.dtype)
        image = case.sheaf.restrict(x, relation, side)
        assert torch.allclose(image, torch.einsum("ekd,bed->bek", maps, x), atol=1e-12)
        back = case.sheaf.restrict_adjoint(image, relation, side)
        assert torch.allclose(back, torch.einsum("ekd,bek->bed", maps.conj(), image), atol=1e-12)
        empty = case.sheaf.restrict(x[:, :0], relation[:0], side)
        assert empty.shape == (2, 0, maps.shape[1])


def test_is_an_immutable_pytree(case):
    leaves, spec = torch.utils._pytree.tree_flatten(case.sheaf)
    again = torch.utils._pytree.tree_unflatten(leaves, spec)
    assert type(again) is type(case.sheaf)
    assert again.num_relations == case.sheaf.num_relations
    with pytest.raises(AttributeError):
        case.sheaf.translation = None


@pytest.mark.parametrize("value", [[[1.0, 2.0]], 3, "maps", np.ones((2, 3))])
def test_what_is_no_tensor_is_refused(value):
    ones, square = torch.ones(2, 3), torch.ones(2, 3, 3)
    for make in (
        lambda: IdentitySheaf(value),
        lambda: sheafprop.sheaf.DiagonalSheaf(value),
        lambda: sheafprop.sheaf.DiagonalSheaf(None, value),
        lambda: sheafprop.sheaf.DiagonalSheaf(ones, None, value),
        lambda: sheafprop.sheaf.QuaternionSheaf(value),
        lambda: sheafprop.sheaf.DenseSheaf(value, square),
        lambda: sheafprop.sheaf.DenseSheaf(square, value),
        lambda: sheafprop.sheaf.DenseSheaf(square, square, value),
    ):
        with pytest.raises(ValueError, match=f"must be tensors .got {type(value).__name__}"):
            make()


def test_dense_maps_are_needed_on_both_sides():
    square = torch.ones(2, 3, 3)
    for maps in ((square, None), (None, square), (None, None)):
        with pytest.raises(ValueError, match="needs 'head' and 'tail'"):
            sheafprop.sheaf.DenseSheaf(*maps)


def test_bad_shapes_are_refused():
    ones = torch.ones(2, 3)
    with pytest.raises(ValueError, match="got neither"):
        IdentitySheaf()
    with pytest.raises(ValueError, match=r"got \[3\]"):
        IdentitySheaf(torch.ones(3))
    with pytest.raises(ValueError, match="2 rows for relations=5"):
        IdentitySheaf(ones, relations=5)
    for relations in (-1, 2.5):
        with pytest.raises(ValueError, match=f"number of relations \\(got {relations}"):
            IdentitySheaf(relations=relations)
    with pytest.raises(ValueError, match="got neither"):
        sheafprop.sheaf.DiagonalSheaf()
    with pytest.raises(ValueError, match=r"\[2, 3\], \[2, 2\]"):
        sheafprop.sheaf.DiagonalSheaf(ones, ones[:, :2])
    with pytest.raises(ValueError, match=r"QuaternionSheaf needs 'head' or 'tail' .got neither"):
        sheafprop.sheaf.QuaternionSheaf()
    with pytest.raises(ValueError, match=r"multiple of four .got 6"):
        sheafprop.sheaf.QuaternionSheaf(torch.ones(2, 6))
    with pytest.raises(ValueError, match=r"four real numbers each .got torch.complex64"):
        sheafprop.sheaf.QuaternionSheaf(torch.ones(2, 4, dtype=torch.complex64))
    with pytest.raises(ValueError, match="must both be"):
        sheafprop.sheaf.DenseSheaf(ones, ones)
    with pytest.raises(ValueError, match=r"must be \[2, 4\]"):
        sheafprop.sheaf.DenseSheaf(torch.ones(2, 4, 3), torch.ones(2, 4, 3), ones)
