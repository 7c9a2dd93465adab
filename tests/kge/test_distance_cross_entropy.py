import pytest
import torch

from sheafprop.kge import CrossEntropyLoss
from sheafprop.kge import distance_cross_entropy as module
from sheafprop.kge.distance import row_distance
from sheafprop.kge.distance_cross_entropy import distance_cross_entropy


@pytest.fixture(params=["whole", "blocks"])
def blocks(request, monkeypatch):
    if request.param == "blocks":
        monkeypatch.setattr(module, "_CPU_BLOCK_ELEMENTS", 20)
        monkeypatch.setattr(module, "_LEAST_ROWS", 2)


def rows(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def by_autograd(a, b, target, squared, smoothing, scale):
    """The definition, with all differences at once."""
    difference = a.unsqueeze(1) - b.unsqueeze(0)
    distance = row_distance(difference, p=2.0, squared=squared, block=1)
    return torch.nn.functional.cross_entropy(-scale * distance, target, label_smoothing=smoothing)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("scale", [1.0, 7.5])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("squared", [False, True])
def test_equals_autograd(squared, smoothing, scale):
    a, b, target = rows(7, 4), rows(9, 4, seed=1), torch.tensor([0, 8, 3, 3, 5, 1, 8])
    loss = distance_cross_entropy(
        a, b, target, squared=squared, label_smoothing=smoothing, scale=scale
    )
    expected = by_autograd(a, b, target, squared, smoothing, scale)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    for ours, theirs in zip(
        torch.autograd.grad(3 * loss, (a, b)),
        torch.autograd.grad(3 * expected, (a, b)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-14)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("squared", [False, True])
def test_gradcheck(squared):
    target = torch.tensor([4, 0, 2, 2])
    assert torch.autograd.gradcheck(
        lambda a, b: distance_cross_entropy(
            a, b, target, squared=squared, label_smoothing=0.1, scale=2.0
        ),
        (rows(4, 3), rows(5, 3, seed=1)),
    )


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("gap", [1e-1, 1e-3, 1e-5])
def test_close_pairs_keep_their_digits(gap):
    a = rows(6, 8, dtype=torch.float32)
    step = torch.nn.functional.normalize(rows(6, 8, seed=1), dim=1).float()
    b = (a + gap * step).detach().requires_grad_()
    target = torch.arange(6)
    distance_cross_entropy(a, b, target, scale=5.0).backward()
    x, y = (z.detach().double().requires_grad_() for z in (a, b))
    by_autograd(x, y, target, False, 0.0, 5.0).backward()
    torch.testing.assert_close(a.grad.double(), x.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(b.grad.double(), y.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("blocks")
def test_gradient_of_equal_rows_is_zero():
    a = rows(3, 4)
    b = a.detach().clone().requires_grad_()
    loss = distance_cross_entropy(a, b, torch.arange(3))
    loss.backward()
    distance = (a.unsqueeze(1) - b).detach().square().sum(2).add_(torch.eye(3)).sqrt()
    p = torch.softmax((torch.eye(3) - 1) * distance, dim=1)
    weight = -(p / distance).fill_diagonal_(0.0) / 3
    expected = (weight.unsqueeze(2) * (a.unsqueeze(1) - b)).sum(1)
    torch.testing.assert_close(a.grad, expected.detach())


@pytest.mark.parametrize("squared", [False, True])
def test_is_the_loss_of_the_scores_far_away(squared):
    a, b, target = rows(4, 3) * 1e4, rows(6, 3, seed=1) * 1e4, torch.tensor([5, 0, 1, 1])
    distance = row_distance(a.unsqueeze(1) - b, p=2.0, squared=squared, block=1)
    torch.testing.assert_close(
        distance_cross_entropy(a, b, target, squared=squared, label_smoothing=0.3, scale=9.0),
        CrossEntropyLoss(0.3, 9.0)(-distance, target),
    )


def test_gradient_of_one_side_only():
    a, b, target = rows(4, 3), rows(6, 3, seed=1), torch.tensor([5, 0, 1, 1])
    whole = torch.autograd.grad(distance_cross_entropy(a, b, target), (a, b))
    (one,) = torch.autograd.grad(distance_cross_entropy(a, b.detach(), target), a)
    (other,) = torch.autograd.grad(distance_cross_entropy(a.detach(), b, target), b)
    assert torch.equal(one, whole[0])
    assert torch.equal(other, whole[1])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_shows(bad):
    a, b = rows(4, 3).detach(), rows(6, 3, seed=1).detach()
    a[2, 1] = bad
    assert not torch.isfinite(distance_cross_entropy(a, b, torch.tensor([5, 0, 1, 1])))


def test_no_array_of_queries_x_candidates_is_kept():
    a, b = rows(300, 2, dtype=torch.float32), rows(9000, 2, seed=1, dtype=torch.float32)
    target = torch.zeros(300, dtype=torch.long)
    saved = []

    def keep(tensor):
        saved.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        distance_cross_entropy(a, b, target)
    assert sum(saved) <= a.numel() + b.numel()


def without(scores, target, pairs, smoothing):
    """The cross entropy of each query over the candidates that are left, one query at a time."""
    losses = []
    for i in range(len(scores)):
        kept = torch.ones(scores.size(1), dtype=torch.bool)
        kept[pairs[1][pairs[0] == i]] = False
        place = kept[: target[i]].sum().unsqueeze(0)
        losses.append(
            torch.nn.functional.cross_entropy(
                scores[i : i + 1, kept], place, label_smoothing=smoothing
            )
        )
    return torch.stack(losses).mean()


LEFT_OUT = (torch.tensor([0, 0, 2, 5, 5, 5, 6]), torch.tensor([1, 8, 0, 0, 2, 7, 3]))


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("squared", [False, True])
def test_candidates_left_out_are_none(squared, smoothing):
    a, b, target = rows(7, 4), rows(9, 4, seed=1), torch.tensor([0, 8, 3, 3, 5, 1, 8])
    loss = distance_cross_entropy(
        a, b, target, squared=squared, label_smoothing=smoothing, scale=2.0, left_out=LEFT_OUT
    )
    distance = row_distance(a.unsqueeze(1) - b, p=2.0, squared=squared, block=1)
    expected = without(-2 * distance, target, LEFT_OUT, smoothing)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    for ours, theirs in zip(
        torch.autograd.grad(loss, (a, b)), torch.autograd.grad(expected, (a, b)), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-14)


def test_a_close_pair_left_out_gives_no_gradient():
    a = rows(2, 4, dtype=torch.float32)
    b = torch.cat([a.detach() + 1e-6, a.detach() + 1]).requires_grad_()
    target = torch.tensor([2, 3])
    pairs = (torch.tensor([0, 1]), torch.tensor([0, 1]))
    loss = distance_cross_entropy(a, b, target, left_out=pairs, label_smoothing=0.1)
    distance = row_distance(a.unsqueeze(1) - b, p=2.0, squared=False, block=1)
    expected = without(-distance, target, pairs, 0.1)
    for ours, theirs in zip(
        torch.autograd.grad(loss, (a, b)), torch.autograd.grad(expected, (a, b)), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
