import pytest
import torch

from sheafprop.kge import NSSALoss
from tests.kge.losses.scores import assert_same, scores


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
