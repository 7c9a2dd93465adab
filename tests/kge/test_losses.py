import inspect

import pytest
import torch
from torch.nn import functional

from sheafprop.kge import (
    LOSS_REGISTRY,
    CrossEntropyLoss,
    MarginRankingLoss,
    NSSALoss,
    build_loss,
    losses,
)
from tests.kge.test_distance_cross_entropy import LEFT_OUT, without


def scores(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    value = -3 * torch.rand(shape, generator=generator, dtype=torch.float64)
    return value.requires_grad_()


def assert_same(ours, reference, *inputs):
    torch.testing.assert_close(ours, reference)
    for a, b in zip(
        torch.autograd.grad(ours, inputs), torch.autograd.grad(reference, inputs), strict=True
    ):
        torch.testing.assert_close(a, b)


def test_every_loss_is_registered_and_says_what_it_needs():
    public = {
        value.name: value
        for value in vars(losses).values()
        if inspect.isclass(value) and issubclass(value, torch.nn.Module) and hasattr(value, "name")
    }
    assert public == LOSS_REGISTRY
    assert {name: loss.needs_negatives for name, loss in LOSS_REGISTRY.items()} == {
        "cross_entropy": False,
        "nssa": True,
        "margin_ranking": True,
    }
    for name, loss in LOSS_REGISTRY.items():
        assert type(build_loss(name)) is loss
        assert not list(loss().parameters())
        assert "\n" not in repr(loss())
    assert repr(build_loss("cross_entropy", label_smoothing=0.1, scale=2.0)) == (
        "CrossEntropyLoss(label_smoothing=0.1, scale=2.0)"
    )


@pytest.mark.parametrize("name", sorted(LOSS_REGISTRY))
def test_half_precision_scores_are_reduced_in_single(name):
    loss = build_loss(name)
    other = torch.tensor([1, 0]) if name == "cross_entropy" else scores(2, 3).detach()
    s = scores(2, 3) if name == "cross_entropy" else scores(2)
    s = s.detach().to(torch.bfloat16)
    if name != "cross_entropy":
        other = other.to(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(s, other)
    assert value.dtype == torch.float32
    exact = loss(s.double(), other.double() if other.is_floating_point() else other)
    torch.testing.assert_close(value.double(), exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("cross_entropy", {"label_smoothing": 1.0}, r"'label_smoothing'.*got 1.0"),
        ("cross_entropy", {"label_smoothing": float("nan")}, r"'label_smoothing'.*got nan"),
        ("cross_entropy", {"scale": 0.0}, r"'scale'.*got 0.0"),
        ("nssa", {"adversarial_temperature": -1.0}, r"'adversarial_temperature'.*got -1.0"),
        ("bce", {}, r"no loss 'bce'.*'nssa'"),
        ("nssa", {"label_smoothing": 0.1}, r"'nssa' takes no argument 'label_smoothing'.*'margin'"),
        ("cross_entropy", {"margin": 1.0}, r"'cross_entropy' takes no argument 'margin'.*'scale'"),
        ("margin_ranking", {"scale": 1.0}, r"'margin_ranking' takes no argument 'scale'.*'margin'"),
    ],
)
def test_bad_arguments_are_refused(name, config, message):
    with pytest.raises(ValueError, match=message):
        build_loss(name, **config)


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


@pytest.mark.parametrize("adversarial_temperature", [0.0, 0.5, 1.0, 3.0])
def test_nssa_equals_that_of_pykeen(adversarial_temperature):
    pykeen = pytest.importorskip("pykeen.losses")
    positive, negative = scores(6), scores(6, 8, seed=1)
    loss = NSSALoss(2.0, adversarial_temperature)(positive, negative)
    reference = pykeen.NSSALoss(
        margin=2.0, adversarial_temperature=adversarial_temperature
    ).process_slcwa_scores(positive.unsqueeze(1), negative)
    assert_same(loss, reference, positive, negative)


def test_nssa_by_hand():
    positive, negative = torch.tensor([-1.0]), torch.tensor([[-2.0, -3.0]])
    w = 1 / (1 + torch.tensor(-1.0).exp())
    expected = -torch.log(torch.sigmoid(torch.tensor(1.0)))
    expected = expected - w * torch.log(torch.sigmoid(torch.tensor(0.0)))
    expected = expected - (1 - w) * torch.log(torch.sigmoid(torch.tensor(1.0)))
    torch.testing.assert_close(NSSALoss(margin=2.0)(positive, negative), expected / 2)


@pytest.mark.parametrize("margin", [0.0, 0.3, 2.0])
def test_margin_ranking_equals_that_of_pykeen(margin):
    pykeen = pytest.importorskip("pykeen.losses")
    positive, negative = scores(6), scores(6, 8, seed=1)
    loss = MarginRankingLoss(margin)(positive, negative)
    reference = pykeen.MarginRankingLoss(margin=margin).process_slcwa_scores(
        positive.unsqueeze(1), negative
    )
    assert_same(loss, reference, positive, negative)
