import pytest
import torch
from torch.nn import functional

from sheafprop.kge import CrossEntropyLoss
from tests.kge.losses.scores import assert_same, scores
from tests.kge.test_distance_cross_entropy import LEFT_OUT, without


@pytest.mark.parametrize("scale", [1.0, 7.5])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 0.9])
def test_cross_entropy_equals_that_of_torch_and_pykeen(label_smoothing, scale):
    pykeen = pytest.importorskip("pykeen.losses")
    s, target = scores(6, 9), torch.tensor([0, 8, 3, 3, 5, 1])
    loss = CrossEntropyLoss(label_smoothing, scale)(s, target)
    reference = functional.cross_entropy(scale * s, target, label_smoothing=label_smoothing)
    assert_same(loss, reference, s)
    labels = functional.one_hot(target, 9).double()
    other = pykeen.CrossEntropyLoss().process_lcwa_scores(
        scale * s, labels, label_smoothing=label_smoothing
    )
    torch.testing.assert_close(loss, other)


def test_cross_entropy_gradcheck():
    s, target = scores(3, 5), torch.tensor([4, 0, 2])
    assert torch.autograd.gradcheck(lambda s: 3 * CrossEntropyLoss(0.2, 4.0)(s, target), (s,))


def test_cross_entropy_of_large_scores_is_finite():
    s = torch.tensor([[0.0, -1e6, -1e6]], requires_grad=True)
    loss = CrossEntropyLoss(0.0, 50.0)(s, torch.tensor([1]))
    loss.backward()
    assert loss.item() == pytest.approx(5e7)
    assert s.grad.tolist() == [[50.0, -50.0, 0.0]]


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_candidates_left_out_are_none(smoothing):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(7, 9, generator=generator, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([0, 8, 3, 3, 5, 1, 8])
    loss = CrossEntropyLoss(smoothing, 2.0)(scores, target, LEFT_OUT)
    expected = without(2 * scores, target, LEFT_OUT, smoothing)
    torch.testing.assert_close(loss, expected)
    (ours,), (theirs,) = (torch.autograd.grad(value, scores) for value in (loss, expected))
    torch.testing.assert_close(ours, theirs)
    assert not bool(ours[LEFT_OUT].any())
