import inspect

import pytest
import torch

from sheafprop.kge import (
    LOSS_REGISTRY,
    build_loss,
    losses,
)
from tests.kge.losses.scores import scores


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
