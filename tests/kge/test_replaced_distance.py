import pytest
import torch

from sheafprop.kernels.backend import use_backend
from sheafprop.kge import replaced_distance as module
from sheafprop.kge.replaced_distance import replaced_distance


@pytest.fixture(params=["compiled", "whole", "blocks"], autouse=True)
def way(request, monkeypatch):
    if request.param == "blocks":
        monkeypatch.setattr(module, "_CPU_BLOCK_ELEMENTS", 30)
    with use_backend("numba" if request.param == "compiled" else "torch"):
        yield


def problem():
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(2, 5, 3, generator=generator, dtype=torch.float64)
    candidates = torch.randn(7, 3, generator=generator, dtype=torch.float64)
    index = torch.randint(7, (5, 4), generator=generator)
    choice = torch.randint(2, (5, 4), generator=generator)
    return queries.requires_grad_(), candidates.requires_grad_(), index, choice


@pytest.mark.parametrize("squared", [False, True])
def test_equals_autograd(squared):
    queries, candidates, index, choice = problem()
    difference = queries[choice, torch.arange(5).unsqueeze(1)] - candidates[index]
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
    candidates[:5] = queries.detach()[1]
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


def test_single_precision_and_threads():
    queries, candidates, index, choice = problem()
    expected = replaced_distance(queries, candidates, index, choice)
    weight = torch.arange(20.0, dtype=torch.float64).view(5, 4)
    gradients = torch.autograd.grad((weight * expected).sum(), (queries, candidates))
    single = [x.detach().float().requires_grad_() for x in (queries, candidates)]
    out = replaced_distance(*single, index, choice)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(
        torch.autograd.grad((weight.float() * out).sum(), single), gradients, strict=True
    ):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("threads", [1, 3])
def test_sums_do_not_depend_on_threads(threads):
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(2, 300, 32, generator=generator, requires_grad=True)
    candidates = torch.randn(90, 32, generator=generator, requires_grad=True)
    index = torch.randint(90, (300, 64), generator=generator)
    choice = torch.randint(2, (300, 64), generator=generator)

    def gradients():
        out = replaced_distance(queries, candidates, index, choice)
        return out, *torch.autograd.grad(out.square().sum(), (queries, candidates))

    before = torch.get_num_threads()
    once = gradients()
    torch.set_num_threads(threads)
    try:
        again = gradients()
    finally:
        torch.set_num_threads(before)
    for a, b in zip(once, again, strict=True):
        torch.testing.assert_close(a, b, rtol=0.0, atol=0.0)


def test_no_negatives_and_no_queries():
    for size, count in ((5, 0), (0, 4)):
        queries = torch.randn(2, size, 3, requires_grad=True)
        candidates = torch.randn(7, 3, requires_grad=True)
        none = torch.zeros(size, count, dtype=torch.long)
        out = replaced_distance(queries, candidates, none, none)
        assert out.shape == (size, count)
        for gradient in torch.autograd.grad(out.sum(), (queries, candidates)):
            assert not gradient.any()


@pytest.mark.parametrize("bad", [-1, 7])
def test_numbers_out_of_range_are_refused(bad):
    queries, candidates, index, choice = problem()
    index[1, 2] = bad
    with pytest.raises(IndexError):
        replaced_distance(queries, candidates, index, choice)
