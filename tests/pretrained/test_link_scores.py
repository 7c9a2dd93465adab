import numpy as np
import pytest
import torch

from sheafprop.inductive.episode_scorer import score_spread
from sheafprop.inductive.proximity_scorer import ProximitySettings
from sheafprop.nn import proximity
from sheafprop.pretrained.link_scores import SPREAD, LinkScores, spread_temperature
from tests.pretrained.models import FACTS, sheaf_model
from tests.pretrained.test_graph_scorer import ids, with_episodes


def test_an_inverse_relation_asks_for_heads():
    asked = []

    def scores(entity, relation, side):
        asked.append((entity.tolist(), relation.tolist(), side))
        return torch.zeros(len(entity), 4)

    links = LinkScores(scores)
    links.score_links(torch.tensor([2, 0]), 1, inverse=False)
    links.score_links(torch.tensor([3]), 0, inverse=True)
    assert asked == [([2, 0], [1, 1], "tail"), ([3], [0], "head")]


def test_scores_of_any_unit_are_brought_to_one_spread():
    table = torch.randn(3, 50, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    queries = torch.tensor([[0, 0], [1, 0], [2, 0]])
    for unit in (1e-20, 1e-3, 1.0, 40.0):
        beta = spread_temperature(lambda e, r, s, unit=unit: unit * table[e], queries)
        deviation = (beta * unit * table).std(1, correction=0).mean()
        assert float(deviation) == pytest.approx(SPREAD)
    for unit in (1e-9, 1.0, 1e9):
        alike = unit * (1 + 1e-16 * table.sign())  # but for rounding
        assert spread_temperature(lambda e, r, s, alike=alike: alike[e], queries) == 1.0
    assert spread_temperature(lambda e, r, s: torch.ones(len(e), 1), queries) == 1.0
    assert spread_temperature(lambda e, r, s: table[e], queries[:0]) == 1.0


def predicted(model, head, relation):
    """Truths of predicted answers by entity."""
    frame = model.answer(f"via({relation}, {head})", model.num_entities)
    return frame[frame["truth"] < 0.999].set_index("answer")["truth"]


@pytest.mark.parametrize("weight", [0.0, 0.3, 0.9])
def test_proximity_counts_once(weight):
    """Ratios of probabilities are those of the model's own scores, proximity included."""
    near = ProximitySettings(share=weight, own_last=False) if weight else None
    model = with_episodes(episodes=False, near=near).extend(FACTS)
    plain = model.with_scores(proximity=0)
    found, bare = predicted(model, "n0", "far"), predicted(plain, "n0", "far")
    both = found.index.intersection(bare.index)
    labels = list(model.labels())
    facts = ids(model, model.facts())
    pi = proximity(facts[:, [0, 2]].T, len(labels), torch.tensor([labels.index("n0")]))[0]
    near = torch.log(pi + 1e-6).numpy()[[labels.index(label) for label in both]]
    unit = weight * score_spread(plain.scorer(), facts)
    beta = float(model._state.links.temperature[0])
    gap = np.log(found[both]) - np.log(bare[both]) - beta * unit * near
    assert len(both) > 5
    assert weight == 0 or np.ptp(beta * unit * near) > 0.5
    np.testing.assert_allclose(gap, gap.mean(), atol=1e-3)


def test_scores_of_episodes_are_logarithms_already():
    model = with_episodes(share=0.0)
    found = predicted(model, "a0", "far")
    scores = model.predict_tails("a0", "far", 99, include_known=True).set_index("tail")["score"]
    gap = np.log(found) - scores[found.index]
    np.testing.assert_allclose(gap, gap.mean(), atol=1e-4)


def test_a_model_of_one_spread_answers_alike_in_single_precision():
    wide = sheaf_model("rotate").extend(FACTS)
    single = sheaf_model("rotate", dtype=torch.float32).extend(FACTS)
    query = "via(far, via(next, n0))"
    one, other = (model.answer(query, 99).set_index("answer")["truth"] for model in (wide, single))
    np.testing.assert_allclose(one, other[one.index], rtol=1e-3)
