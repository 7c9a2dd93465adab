import pytest

from sheafprop.kge import MarginRankingLoss
from tests.kge.losses.scores import assert_same, scores


@pytest.mark.parametrize("margin", [0.0, 0.3, 2.0])
def test_margin_ranking_equals_that_of_pykeen(margin):
    pykeen = pytest.importorskip("pykeen.losses")
    positive, negative = scores(6), scores(6, 8, seed=1)
    loss = MarginRankingLoss(margin)(positive, negative)
    reference = pykeen.MarginRankingLoss(margin=margin).process_slcwa_scores(
        positive.unsqueeze(1), negative
    )
    assert_same(loss, reference, positive, negative)
