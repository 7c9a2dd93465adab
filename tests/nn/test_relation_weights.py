import statistics

import pytest
import torch

from sheafprop.nn import relation_weights as module
from sheafprop.nn.relation_weights import relation_weights, residual_variance
from tests.sheaf_cases import NUM_RELATIONS, SHEAF_KINDS, make_case


@pytest.mark.parametrize("chunk", [1, 10_000])
@pytest.mark.parametrize("kind", SHEAF_KINDS)
def test_residual_variance_is_the_mean_squared_residual(kind, chunk, monkeypatch):
    monkeypatch.setattr(module, "_CHUNK_NUMBERS", chunk)
    case = make_case(kind)
    case.edge_type[case.edge_type == 2] = 1
    expected = torch.zeros(NUM_RELATIONS, dtype=torch.float64)
    width = case.x.shape[1]
    for relation in range(NUM_RELATIONS):
        squares = []
        for head, tail, r in zip(*case.edge_index.tolist(), case.edge_type.tolist(), strict=True):
            if r != relation:
                continue
            residual = (
                case.sheaf.restriction_map(r, "tail", width).to(case.x) @ case.x[tail]
                - case.sheaf.restriction_map(r, "head", width).to(case.x) @ case.x[head]
            )
            translation = case.sheaf.translation_of(torch.tensor([r]))
            if translation is not None:
                residual = residual - translation[0]
            squares.append(float((residual.conj() * residual).real.sum()))
        if squares:
            expected[relation] = statistics.mean(squares)
    actual = residual_variance(case.x, case.edge_index, case.edge_type, case.sheaf)
    assert not actual.is_complex()
    assert actual[2] == 0
    torch.testing.assert_close(actual, expected)


def test_residual_variance_of_a_trained_model_carries_no_gradient():
    case = make_case("identity")
    x = case.x.clone().requires_grad_()
    assert not residual_variance(x, case.edge_index, case.edge_type, case.sheaf).requires_grad


def test_weights_follow_the_formula():
    variance = torch.tensor([4.0, 1.0, 0.0, 2.0, 8.0], dtype=torch.float64)
    count = torch.tensor([10, 20, 0, 30, 5])
    known = [4.0, 1.0, 2.0, 8.0]
    raw = [1 / (value + 0.1 * statistics.median(known)) for value in known]
    weights = [raw[0], raw[1], statistics.median(raw), raw[2], raw[3]]
    mean = sum(w * n for w, n in zip(weights, count.tolist(), strict=True)) / 65
    expected = torch.tensor([w / mean for w in weights], dtype=torch.float64)
    torch.testing.assert_close(relation_weights(variance, count), expected)


def test_mean_over_training_triples_is_one():
    g = torch.Generator().manual_seed(0)
    variance = torch.rand(50, generator=g)
    count = torch.randint(0, 9, (50,), generator=g)
    weights = relation_weights(variance, count)
    assert weights.dtype == variance.dtype
    assert float((weights * count).sum() / count.sum()) == pytest.approx(1, abs=1e-6)
    # The unit of the vectors does not matter.
    torch.testing.assert_close(relation_weights(variance * 1e-8, count), weights)


@pytest.mark.parametrize(
    ("variance", "count"),
    [([0.0, 0.0, 0.0], [3, 1, 0]), ([0.0, 0.0], [0, 0]), ([], [])],
)
def test_equal_weights_where_nothing_tells_relations_apart(variance, count):
    weights = relation_weights(torch.tensor(variance), torch.tensor(count, dtype=torch.int64))
    assert weights.tolist() == [1.0] * len(count)


def test_exactly_fitting_relations_have_finite_weights():
    weights = relation_weights(torch.tensor([0.0, 0.0, 3.0]), torch.tensor([1, 1, 1]))
    # The median is zero: the mean, 1, sets the floor.
    torch.testing.assert_close(weights / weights[0], torch.tensor([1.0, 1.0, 0.1 / 3.1]))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_bad_variances_are_refused(value):
    with pytest.raises(ValueError, match=r"finite and not negative .*at relation 1"):
        relation_weights(torch.tensor([1.0, value]), torch.tensor([1, 1]))


def test_shapes_are_checked():
    with pytest.raises(ValueError, match=r"\[num_relations\]"):
        relation_weights(torch.ones(2), torch.ones(3))
