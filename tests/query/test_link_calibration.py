import json
import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from sheafprop.data.answer_sets import AnswerSets
from sheafprop.errors import FormatError
from sheafprop.query import LinkCalibration, LinkProbabilities, ReliabilityTable, ScoredRows
from tests.query.entity_cases import TableScorer


def draw(relation, beta, n, seed, offset=None, num_entities=30):
    """Rows whose one answer is drawn from the shares of a temperature."""
    g = torch.Generator().manual_seed(seed)
    scores = torch.randn(n, num_entities, generator=g, dtype=torch.float64) * 3
    shares = (beta * scores + (0 if offset is None else offset)).softmax(1)
    answers = torch.multinomial(shares, 1, generator=g).tolist()
    return ScoredRows(relation, scores, AnswerSets.from_sets(answers), offset)


def loss(log_beta, parts):
    total = 0.0
    for part in parts:
        shares = part.scores * math.exp(log_beta) + (0 if part.offset is None else part.offset)
        shares = shares.log_softmax(1)
        total -= float(shares[part.answers.rows, part.answers.values].sum())
    return total


def least(parts, prior=None, weight=0.0):
    whole = prior and sum(len(part.answers.values) for part in prior)
    return minimize_scalar(
        lambda b: loss(b, parts) + (weight * loss(b, prior) / whole if prior else 0),
        bounds=(-4, 4),
        method="bounded",
        options={"xatol": 1e-9},
    ).x


def test_the_likelihood_is_largest():
    offset = torch.randn(300, 30, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    parts = [draw(0, 0.3, 400, 0), draw(3, 2.0, 300, 1, offset), draw(1, 1.0, 5, 2)]
    parts.append(ScoredRows(0, parts[1].scores[:2], AnswerSets.from_sets([[1, 2, 3], []])))
    found = LinkCalibration.fit(parts, 2, prior=30.0)
    by_relation = [[parts[0], parts[3]], [parts[2]], [], [parts[1]]]
    for own, beta in zip(by_relation, found.temperature.log().tolist(), strict=True):
        wanted = least(own, parts, 30.0) if own else least(parts)
        assert beta == pytest.approx(wanted, abs=2e-3)
    mean = 708 / 707
    wanted = [(403 + 30 * mean) / 432, (5 + 30 * mean) / 35, mean, (300 + 30 * mean) / 330]
    np.testing.assert_allclose(found.num_answers, wanted)
    # Without a prior, each relation has its own.
    alone = LinkCalibration.fit(parts, 2, prior=0.0)
    assert alone.temperature[0].log().item() == pytest.approx(least(by_relation[0]), abs=2e-3)
    assert alone.num_answers[2].item() == pytest.approx(mean)
    assert alone.temperature[2].log().item() == pytest.approx(least(parts), abs=2e-3)
    assert alone.temperature[3].item() == pytest.approx(2, rel=0.2)


def test_a_relation_without_answers_takes_those_of_all():
    none = ScoredRows(1, torch.zeros(2, 30).double(), AnswerSets.from_sets([[], []]))
    found = LinkCalibration.fit([draw(0, 1.0, 50, 0), none], 1, prior=0.0)
    assert found.num_answers.tolist() == pytest.approx([1, 50 / 52])


def test_rows_in_parts_are_those_at_once(monkeypatch):
    offset = torch.randn(50, 30, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    part = draw(0, 1.0, 50, 0, offset)
    whole = LinkCalibration.fit([part], 1).temperature
    monkeypatch.setattr("sheafprop.query.link_calibration._NUMBERS", 7 * 30)
    torch.testing.assert_close(LinkCalibration.fit([part], 1).temperature, whole)


def test_a_relation_of_few_links_is_drawn_to_all():
    many, few = draw(0, 2.0, 500, 0), draw(1, 0.1, 3, 1)
    far, near = (LinkCalibration.fit([many, few], 1, prior=p).temperature for p in (0.1, 1000.0))
    assert abs(math.log(near[1] / 2)) < abs(math.log(far[1] / 2))
    assert near[1].item() == pytest.approx(2, rel=0.2)


def test_the_best_temperature_may_lie_at_the_end():
    scores = torch.tensor([[0.0, 1.0]] * 9)
    right = ScoredRows(0, scores, AnswerSets.from_sets([[1]] * 9))
    wrong = ScoredRows(1, scores, AnswerSets.from_sets([[0]] * 9))
    found = LinkCalibration.fit([right, wrong], 1, prior=0.0).temperature
    assert found[0] > 10
    assert found[1].item() == pytest.approx(1e-3)


def test_excluded_entities_have_no_share():
    part = draw(0, 1.0, 300, 5)
    known = part.scores.clone()
    column = (torch.from_numpy(part.answers.values).long() + 1) % 30
    known[torch.arange(300), column] = -math.inf
    part = part._replace(scores=known)
    found = LinkCalibration.fit([part], 1).temperature[0].log().item()
    assert found == pytest.approx(least([part]), abs=2e-3)


def test_bad_rows_are_refused():
    part = draw(0, 1.0, 3, 0)
    with pytest.raises(ValueError, match="relation ids go from 0 to 1"):
        LinkCalibration.fit([part._replace(relation=2)], 1)
    with pytest.raises(ValueError, match="needs held-out links"):
        LinkCalibration.fit([], 1)
    with pytest.raises(ValueError, match="'prior' must be a number from 0 on"):
        LinkCalibration.fit([part], 1, prior=-1.0)
    with pytest.raises(ValueError, match=r"'scores' must be \[3, N\]"):
        LinkCalibration.fit([part._replace(scores=part.scores[:2])], 1)
    for bad in (math.nan, -math.inf):
        scores = part.scores.clone()
        scores[1, part.answers[1][0]] = bad
        with pytest.raises(ValueError, match="links of relation 0 have a score that is not"):
            LinkCalibration.fit([part._replace(scores=scores)], 1)


def test_a_stored_calibration_is_the_same():
    found = LinkCalibration(torch.tensor([0.5, 2]).double(), torch.tensor([1, 1.5]).double())
    again = LinkCalibration.from_state(json.loads(json.dumps(found.state())))
    assert again.temperature.equal(found.temperature)
    assert again.num_answers.equal(found.num_answers)
    assert repr(found) == "LinkCalibration(1 relations, temperature 0.5 to 2)"
    state = found.state()
    for wrong in (
        {},
        {**state, "temperature": [1.0]},
        {**state, "temperature": [0.0, 1.0]},
        {**state, "num_answers": [math.inf, 1.0]},
        {**state, "num_answers": "x"},
        {**state, "num_answers": None},
    ):
        with pytest.raises(FormatError, match="not the numbers of a calibration of links"):
            LinkCalibration.from_state(wrong)


def test_probabilities_beyond_facts_come_true_as_often_as_they_say():
    """Two answers of every entity are to be found, beside facts of high scores."""
    g = torch.Generator().manual_seed(0)
    n, table = 120, torch.randn(2, 120, 120, generator=g, dtype=torch.float64)
    facts = torch.stack([torch.arange(n), torch.zeros(n).long(), table[0].argmax(1)], dim=1)
    more = torch.multinomial((table[0] * 3).softmax(1), 12, generator=g)
    facts = torch.cat([facts] + [facts.clone().index_copy_(1, torch.tensor([2]), m[:, None])
                                 for m in more[:, :10].T])  # fmt: skip
    plain = LinkProbabilities(facts, n, 1, TableScorer(table), dtype=torch.double)
    is_fact = plain.log_rows(torch.arange(n), 0) == 0
    shares = (1.7 * table[0]).masked_fill(is_fact, -math.inf).softmax(1)
    answers = torch.multinomial(shares, 2, generator=g)
    is_true = torch.zeros(n, n, dtype=torch.bool).scatter_(1, answers, True)
    error = {}
    for half in (torch.arange(n) < n // 2, torch.arange(n) >= n // 2):
        scores = table[0, half].masked_fill(is_fact[half], -math.inf)
        rows = ScoredRows(0, scores, AnswerSets.from_sets(answers[half].tolist()))
        found = LinkCalibration.fit([rows], 1)
        fitted = {"temperature": found.temperature, "num_answers": found.num_answers}
        for beyond in (True, False):
            links = LinkProbabilities(
                facts, n, 1, TableScorer(table), exclude_facts=beyond, dtype=torch.double, **fitted
            )
            p = links.log_rows((~half).nonzero().flatten(), 0).exp()
            assert (p[is_fact[~half]] == 1).all()
            p, true = p[~is_fact[~half]], is_true[~half][~is_fact[~half]]
            error.setdefault(beyond, []).append(
                ReliabilityTable.of(p, true).expected_calibration_error
            )
            if beyond:
                assert p.sum().item() == pytest.approx(2 * int((~half).sum()), rel=0.05)
    assert max(error[True]) < 0.005
    assert min(error[False]) > 0.02
