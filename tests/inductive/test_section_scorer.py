import pytest
import torch

from sheafprop.inductive.section_scorer import SectionScorer
from tests.inductive.test_inductive_propagation import trained
from tests.toy import toy_data


@pytest.mark.parametrize("weight", [[1.0], [0.4, 0.3, 0.3], [0.25, 0.25, 0.25, 0.25]])
@pytest.mark.parametrize("name", ["transe", "rotate", "se"])
def test_scores_are_the_weighted_sum_over_sections(name, weight):
    model = trained(name, toy_data()).double()
    g = torch.Generator().manual_seed(0)
    dtype = model.entity_vectors().dtype
    x = torch.randn(5, len(weight), 6, generator=g, dtype=dtype)
    scorer = SectionScorer(model, x, weight)
    head, rel, tail = torch.tensor([[0, 4, 2], [1, 0, 2], [3, 3, 2]])
    parts = [(a, x[:, i]) for i, a in enumerate(weight)]
    want = sum(a * model.score_triples(v, head, rel, tail) for a, v in parts)
    row = torch.arange(3)
    torch.testing.assert_close(scorer.score_tails(head, rel)[row, tail], want)
    torch.testing.assert_close(scorer.score_heads(rel, tail)[row, head], want)


def test_vectors_that_are_not_finite_are_never_scored():
    model = trained("transe", toy_data())
    x = torch.zeros(4, 1, 6)
    x[2, 0, 3] = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        SectionScorer(model, x, [1.0])
    with pytest.raises(ValueError, match="2 weights"):
        SectionScorer(model, torch.zeros(4, 1, 6), [0.5, 0.5])
