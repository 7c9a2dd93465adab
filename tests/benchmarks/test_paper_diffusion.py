import pytest
import torch
from benchmarks.paper_code_step import step_of
from benchmarks.paper_diffusion import (
    normal_start,
    own_start,
    released_step,
    released_trajectory,
    text_trajectory,
)
from benchmarks.paper_training import ProjectedTransR, clamp_rows

from sheafprop.kge import build_model
from tests.toy import toy_data

DATA = toy_data("fully-inductive")
SIZES = {"num_nodes": DATA.train.num_nodes, "num_relations": DATA.num_relations}
TRIPLES, COUNT = DATA.inference.triples, DATA.inference.num_nodes


def model_of(kind, **changes):
    model = build_model(kind, hidden_channels=6, **(SIZES | changes))
    model.reset_parameters(3)
    return model


def degree():
    return torch.bincount(TRIPLES[:, [0, 2]].flatten(), minlength=COUNT).unsqueeze(1)


@pytest.mark.parametrize("kind", ["transe", "se", "transr"])
def test_a_released_step_goes_down_the_energy_by_degree_and_dimension(kind):
    model = model_of(kind, **({"relation_channels": 4} if kind == "transr" else {}))
    x = torch.randn(COUNT, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
    head, relation, tail = TRIPLES.T
    sheaf, shift = model.sheaf(), model.sheaf().translation_of(relation)
    residual = sheaf.restrict(x[head], relation, "head") - sheaf.restrict(x[tail], relation, "tail")
    energy = (residual if shift is None else residual + shift).square().sum() / 2
    (gradient,) = torch.autograd.grad(energy, x)
    found = released_step(model, TRIPLES, COUNT)(x.detach(), 0.7)
    assert torch.allclose(found, x - 0.7 * gradient / (6 * degree()), atol=1e-5)


def test_the_released_step_of_rotate_lacks_the_conjugate():
    model = model_of("rotate")
    x, rotation = normal_start(model, DATA, 0), model.sheaf().diagonals("head")
    expected = step_of(TRIPLES, rotation, COUNT, conjugate=False, by_dimension=True)(x, 0.9)
    assert torch.allclose(released_step(model, TRIPLES, COUNT)(x, 0.9), expected, atol=1e-6)


def test_projections_are_clamped_before_they_are_compared():
    plain = model_of("transr")
    model = ProjectedTransR(**plain.config())
    x, (head, relation, tail) = 3 * torch.randn(COUNT, 6), TRIPLES.T
    maps = model.rel_map[relation]
    one, other = (clamp_rows(torch.einsum("ekd,ed->ek", maps, x[i])) for i in (head, tail))
    back = torch.einsum("ekd,ek->ed", maps, one + model.rel_emb(relation) - other)
    change = torch.zeros_like(x).index_add(0, tail, back).index_add(0, head, -back)
    found = released_step(model, TRIPLES, COUNT)(x, 0.5)
    assert torch.allclose(found, x + 0.5 * change / (6 * degree()), atol=1e-5)


@pytest.mark.parametrize("kind", ["transe", "rotate", "se"])
def test_trajectories_repeat_their_step(kind):
    model = model_of(kind)
    start, step = own_start(model, DATA, 1), released_step(model, TRIPLES, COUNT)
    found = dict(released_trajectory(model, DATA, start, 0.8, [1, 3]))
    x = start
    for _ in range(3):
        x = step(x, 0.8)
    assert list(found) == [1, 3]
    assert torch.allclose(found[3][:, 0], x, atol=1e-5)


def test_a_trajectory_ends_where_vectors_have_grown_too_large():
    model = model_of("rotate")
    start = own_start(model, DATA, 1)
    assert list(dict(released_trajectory(model, DATA, start, 1e6, [1, 2, 64]))) == [1, 2]


def test_the_text_is_followed_from_a_start_that_is_given():
    model = model_of("transe")
    found = dict(text_trajectory(model, DATA, 5 * own_start(model, DATA, 1), 0.5, [0, 2]))
    assert torch.allclose(found[0].norm(dim=2), torch.tensor(5.0))


def test_the_normal_start_has_the_length_of_its_dimension_and_a_seed():
    for kind, width in (("transe", 600), ("rotate", 1200)):
        model = build_model(kind, hidden_channels=600, **SIZES)
        start = normal_start(model, DATA, 2)
        assert torch.equal(start, normal_start(model, DATA, 2))
        assert torch.allclose(start.abs().square().sum(1) / width, torch.tensor(1.0), atol=0.3)
