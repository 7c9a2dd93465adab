import pytest
import torch

from sheafprop.kernels import pairwise_squares
from sheafprop.kge.distance import grouped_distance, pairwise_distance, row_distance


def pairwise(a, b, **config):
    config = {"p": 2.0, "squared": False, "block": 1} | config
    return pairwise_distance(a, b, **config)


def lost_share(dtype, width=8):
    """A bound on the relative error of a squared distance by the expansion.

    Each of |a|^2, |b|^2 and 2 a b is a sum of ``width`` terms, and two additions join them: they
    round by (width + 2) eps (|a|^2 + |b|^2) at most. Pairs with a square below the share sqrt(eps)
    of that sum are computed again.
    """
    return (width + 2) * torch.finfo(dtype).eps ** 0.5


def close_rows(dtype, gap):
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(5, 1, 8, generator=generator, dtype=torch.float64)
    b = torch.randn(7, 1, 8, generator=generator, dtype=torch.float64)
    step = torch.nn.functional.normalize(torch.randn(3, 1, 8, generator=generator), dim=-1)
    b[1:4] = a[:3] + gap * step.double()
    return a.to(dtype), b.to(dtype)


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("gap", [1e-1, 1e-2, 1e-3, 1e-5, 0.0])
def test_close_pairs_keep_their_digits(gap, squared):
    a, b = close_rows(torch.float32, gap)
    a, b = a.requires_grad_(), b.requires_grad_()
    out = pairwise(a, b, squared=squared)
    out.sum().backward()
    # the same float32 rows, in double precision and without the expansion
    x, y = a.detach().double().requires_grad_(), b.detach().double().requires_grad_()
    exact = row_distance(x - y.transpose(0, 1), p=2.0, squared=squared, block=1)
    exact.sum().backward()
    rtol = lost_share(torch.float32) * (1 if squared else 0.5)
    torch.testing.assert_close(out.double(), exact, rtol=rtol, atol=1e-12)
    # Sums of at most 7 terms. Those of the distance have length one and err as the distance does;
    # those of its square are differences, which keep their digits.
    size = float(exact.detach().max()) ** 0.5 if squared else 1
    atol = 7 * 2 * size * 8 * torch.finfo(torch.float32).eps if squared else 7 * rtol
    torch.testing.assert_close(a.grad.double(), x.grad, rtol=0, atol=atol)
    torch.testing.assert_close(b.grad.double(), y.grad, rtol=0, atol=atol)


def test_equal_rows_have_distance_and_gradient_zero():
    a = torch.randn(4, 2, 8).requires_grad_()
    b = a.detach().clone()
    out = pairwise(a, b)
    assert torch.equal(out.diagonal(), torch.zeros(4))
    out.diagonal().sum().backward()
    assert torch.equal(a.grad, torch.zeros_like(a))


def test_collapsed_rows_are_treated_in_blocks(monkeypatch):
    a, b = torch.ones(9, 1, 8).requires_grad_(), torch.ones(6, 1, 8) + 1e-4
    whole = pairwise(a, b)
    whole.sum().backward()
    gradient = a.grad.clone()
    monkeypatch.setattr(pairwise_squares, "BLOCK_ELEMENTS", 17)
    a.grad = None
    blocked = pairwise(a, b)
    blocked.sum().backward()
    torch.testing.assert_close(whole, torch.full((9, 6), 1e-4 * 8**0.5), rtol=1e-3, atol=0)
    torch.testing.assert_close(blocked, whole)
    torch.testing.assert_close(a.grad, gradient)


@pytest.mark.parametrize("size", [1e-3, 1e-6, 1e-12])
def test_small_rows_beside_a_large_one_are_not_computed_again(size, monkeypatch):
    """What a pair loses depends on its own lengths alone: rows that diffusion has shrunk are
    ranked as fast as others."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(n, 1, 8, generator=generator) * size for n in (5, 7))
    b[2] = 1.0
    b[3] = a[1] * (1 + 1e-5)
    pairs = []
    in_blocks = pairwise_squares.pairs_in_blocks
    monkeypatch.setattr(
        pairwise_squares,
        "pairs_in_blocks",
        lambda *given: pairs.append(given[:2]) or in_blocks(*given),
    )
    out = pairwise(a, b)
    ((rows, columns),) = pairs
    assert (rows.tolist(), columns.tolist()) == ([1], [3])
    exact = torch.cdist(a[:, 0].double(), b[:, 0].double())
    torch.testing.assert_close(out.double(), exact, rtol=lost_share(torch.float32) / 2, atol=0)


@pytest.mark.parametrize("num_sections", [1, 3])
@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("block", [1, 2, 4])
@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 3.0, float("inf")])
def test_equals_the_norm_of_all_differences(p, block, squared, num_sections):
    a = torch.randn(5, num_sections, 8, dtype=torch.float64)
    b = torch.randn(4, num_sections, 8, dtype=torch.float64)
    difference = a.unsqueeze(1) - b.unsqueeze(0)
    difference = sum(difference[..., i::block].square() for i in range(block)).sqrt()
    expected = torch.linalg.vector_norm(difference, ord=p, dim=-1)
    expected = (expected.square() if squared else expected).sum(-1)
    config = {"p": p, "block": block, "squared": squared}
    torch.testing.assert_close(pairwise(a, b, **config), expected)
    rows = row_distance(a[:4] - b, **config).sum(-1)
    torch.testing.assert_close(rows, expected.diagonal())


def test_gradient_of_one_side_only():
    a, b = torch.randn(5, 1, 6, requires_grad=True), torch.randn(4, 1, 6, requires_grad=True)
    pairwise(a, b).sum().backward()
    both = a.grad.clone(), b.grad.clone()
    a.grad = b.grad = None
    pairwise(a, b.detach()).sum().backward()
    pairwise(a.detach(), b).sum().backward()
    assert torch.equal(a.grad, both[0])
    assert torch.equal(b.grad, both[1])


def distance(queries, candidates):
    return pairwise_distance(queries, candidates, p=2.0, squared=True, block=1)


def mapping(rows, weight):
    return rows @ weight.mT


def test_distances_and_gradients_are_those_of_each_group():
    g = torch.Generator().manual_seed(0)
    queries, rows, maps = (
        torch.randn(shape, generator=g, dtype=torch.float64, requires_grad=True)
        for shape in ((5, 2, 3), (7, 2, 4), (2, 3, 4))
    )
    groups = torch.tensor([0, 3]), torch.tensor([1, 2, 4])
    out = grouped_distance(distance, mapping, groups, queries, rows, maps)
    image = torch.einsum("gkd,csd->gcsk", maps, rows)[torch.tensor([0, 1, 1, 0, 1])]
    expected = (image - queries.unsqueeze(1)).square().sum((2, 3))
    torch.testing.assert_close(out, expected)
    inputs = queries, rows, maps
    ours, theirs = (torch.autograd.grad(y.sin().sum(), inputs) for y in (out, expected))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)
    only = grouped_distance(distance, mapping, groups, queries, rows.detach(), maps)
    (grad,) = torch.autograd.grad(only.sin().sum(), maps)
    torch.testing.assert_close(grad, ours[2])
