import pytest
import torch

from sheafprop.kge import replaced_distance as module
from sheafprop.kge.replaced_distance import replaced_distance


@pytest.fixture(params=[2**18, 30], ids=["whole", "blocks"], autouse=True)
def block(request, monkeypatch):
    monkeypatch.setattr(module, "_CPU_BLOCK_ELEMENTS", request.param)


def problem():
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(5, 2, 3, generator=generator, dtype=torch.float64)
    candidates = torch.randn(7, 3, generator=generator, dtype=torch.float64)
    index = torch.randint(7, (5, 4), generator=generator)
    choice = torch.randint(2, (5, 4), generator=generator)
    return queries.requires_grad_(), candidates.requires_grad_(), index, choice


@pytest.mark.parametrize("squared", [False, True])
def test_equals_autograd(squared):
    queries, candidates, index, choice = problem()
    difference = queries[torch.arange(5).unsqueeze(1), choice] - candidates[index]
    expected = torch.linalg.vector_norm(difference, dim=-1)
    expected = expected.square() if squared else expected
    out = replaced_distance(queries, candidates, index, choice, squared=squared)
    torch.testing.assert_close(out, expected)
    weight = torch.arange(20.0, dtype=torch.float64).view(5, 4)
    ours = torch.autograd.grad((weight * out).sum(), (queries, candidates))
    theirs = torch.autograd.grad((weight * expected).sum(), (queries, candidates))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("squared", [False, True])
def test_gradcheck(squared):
    queries, candidates, index, choice = problem()
    assert torch.autograd.gradcheck(
        lambda q, x: replaced_distance(q, x, index, choice, squared=squared), (queries, candidates)
    )


def test_gradient_at_distance_zero_is_zero():
    queries, candidates, index, choice = problem()
    index[:, 1], choice[:, 1] = torch.arange(5), 1
    candidates = candidates.detach().clone()
    candidates[:5] = queries.detach()[:, 1]
    candidates.requires_grad_()
    out = replaced_distance(queries, candidates, index, choice)
    assert torch.equal(out[:, 1], torch.zeros(5, dtype=torch.float64))
    for gradient in torch.autograd.grad(out[:, 1].sum(), (queries, candidates)):
        assert torch.equal(gradient, torch.zeros_like(gradient))


def test_gradient_of_one_side_only():
    queries, candidates, index, choice = problem()
    whole = torch.autograd.grad(
        replaced_distance(queries, candidates, index, choice).sum(), (queries, candidates)
    )
    out = replaced_distance(queries, candidates.detach(), index, choice)
    assert torch.equal(torch.autograd.grad(out.sum(), queries)[0], whole[0])
    out = replaced_distance(queries.detach(), candidates, index, choice)
    assert torch.equal(torch.autograd.grad(out.sum(), candidates)[0], whole[1])
