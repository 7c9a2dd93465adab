import numpy as np
import pandas as pd
import pytest
import torch

from sheafprop.data import FeatureTable
from sheafprop.errors import DataError
from sheafprop.inductive import FeatureMap
from sheafprop.inductive.feature_map import fit_ridge

CASES = {
    "plain": (30, 4),
    "one feature": (12, 1),
    "more features than entities": (6, 40),
    "as many": (8, 8),
}


def brute_force(f, x, weight, strength):
    """The minimum by least squares over the map and the offset together."""
    count, width = f.shape
    omega = torch.ones(count, dtype=torch.double) if weight is None else weight / weight.mean()
    rows = torch.cat([f, torch.ones(count, 1, dtype=torch.double)], 1) * omega.sqrt()[:, None]
    penalty = torch.eye(width, width + 1, dtype=torch.double) * strength**0.5
    matrix = torch.cat([rows, penalty]).to(x.dtype)
    values = torch.cat([omega.sqrt()[:, None] * x, x.new_zeros(width, x.shape[1])])
    found = torch.linalg.lstsq(matrix, values, driver="gelsd").solution
    return found[:-1], found[-1]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["real", "complex"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("constant", [False, True])
def test_the_closed_form_is_the_minimum(case, kind, weighted, constant):
    torch.manual_seed(len(case))
    count, width = CASES[case]
    f = torch.randn(count, width, dtype=torch.double)
    f[torch.rand(count, width) < 0.3] = 0
    if constant:
        f[:, 0] = 2.5
    x = torch.randn(count, 3, dtype=torch.complex128 if kind == "complex" else torch.double)
    weight = torch.rand(count, dtype=torch.double) + 0.2 if weighted else None
    chosen = fit_ridge(f, x, weight)
    for strength in (0.3, 7.0, chosen.strength):
        ours = fit_ridge(f, x, weight, strength)
        expected, offset = brute_force(f, x, weight, strength)
        assert torch.allclose(ours.weight, expected, atol=1e-9)
        assert torch.allclose(ours.offset, offset, atol=1e-9)


@pytest.mark.parametrize("case", ["plain", "more features than entities"])
def test_the_strength_has_the_smallest_error_and_what_is_left_out_is_predicted(case):
    torch.manual_seed(1)
    count, width = CASES[case]
    f = torch.randn(count, width, dtype=torch.double)
    x = f[:, :1] @ torch.randn(1, 5, dtype=torch.double) + torch.randn(count, 5) * 0.5
    center = f - f.mean(0)

    def hat(strength):
        gram = center.T @ center + strength * torch.eye(width, dtype=torch.double)
        return center @ torch.linalg.solve(gram, center.T) + 1 / count

    def score(strength):
        gap = x - hat(strength) @ x
        free = count - 1.4 * float(hat(strength).trace())
        return float(gap.square().sum()) / free**2 if free > 0 else float("inf")

    best = fit_ridge(f, x)
    for factor in (0.5, 0.1, 1e-3):
        assert score(best.strength * factor) >= score(best.strength) * (1 - 1e-6)
    strength = 2.0
    ours = fit_ridge(f, x, strength=strength)
    assert ours.error == pytest.approx(float((x - ours.left_out).square().sum()) / count)
    for row in range(0, count, 5):
        kept = torch.arange(count) != row
        # Of the same data less one entity, whose mean moves with it.
        one = fit_ridge(f[kept], x[kept], strength=strength)
        there = one.offset + f[row] @ one.weight
        assert torch.allclose(ours.left_out[row], there, atol=1e-9)


def table(count, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {"size": rng.normal(size=count), "kind": rng.choice(["a", "b"], size=count)},
        index=[f"e{i}" for i in range(count)],
    )
    frame.loc["e3", "size"] = np.nan
    return FeatureTable.of(frame)


def test_a_map_predicts_and_weighs_by_what_is_left_over():
    features, labels = table(40), [f"e{i}" for i in range(30)]
    torch.manual_seed(0)
    kinds = next(column.values for column in features.columns if column.name == "kind")[:30]
    of_kind = {"a": torch.tensor([1.0, 0, 2]), "b": torch.tensor([0.0, 3, 1])}
    x = torch.stack([of_kind[kind[0]] for kind in kinds]) + 0.1 * torch.randn(30, 3)
    found = FeatureMap.fit(features, x, labels, edge_residual=0.06)
    assert found.count == 30
    assert found.error == pytest.approx(0.03, rel=0.5)
    assert found.gamma == pytest.approx(0.06 / found.error)
    assert found.explained > 0.9
    anchors = found.anchors(features, ["x", "e35", "y", "e3"])
    assert anchors.nodes.tolist() == [1, 3]
    assert anchors.weight.tolist() == [found.gamma] * 2
    target, known = found.predict(features.select(["e35", "e3"]))
    assert torch.equal(anchors.target, target)
    assert known.tolist() == [True, True]
    other = FeatureMap.from_dict(found.to_dict(), **found.tensors())
    assert torch.equal(other.predict(features)[0], found.predict(features)[0])
    assert "2 features of 30 training entities" in found.summary()
    with pytest.raises(ValueError, match=r"the map of the features must be"):
        FeatureMap.from_dict(found.to_dict(), **found.tensors() | {"weight": found.weight[1:]})


def test_what_cannot_be_fitted():
    features = table(40)
    x = torch.randn(2, 3)
    with pytest.raises(DataError, match=r"at least 3 training entities must .*\(got 2"):
        FeatureMap.fit(features, x, ["e0", "e1"], edge_residual=1.0)
    with pytest.raises(DataError, match=r"\(got 0; a label there: 'e0'\)"):
        FeatureMap.fit(features, x, ["E0", "E1"], edge_residual=1.0)
    with pytest.raises(ValueError, match=r"'strength' must be positive"):
        fit_ridge(x, x, strength=0.0)
    for wrong in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=r"'weight' must be positive and finite"):
            fit_ridge(x, x, torch.tensor([1.0, wrong]))
    # Equal vectors and relations that fit exactly leave nothing to weigh by.
    equal = FeatureMap.fit(features, torch.ones(9, 3), features.labels[:9], edge_residual=0.0)
    assert 0 < equal.gamma < float("inf")


def test_the_basis_follows_what_no_linear_map_can():
    """A vector that depends on the place, told by two numbers together."""
    rng = np.random.default_rng(0)
    place = rng.uniform(size=(200, 2))
    frame = pd.DataFrame(place, columns=["x", "y"], index=[f"e{i}" for i in range(200)])
    corner = torch.from_numpy((place > 0.5) @ np.array([1, 2]))
    x = torch.eye(4, dtype=torch.double)[corner]
    features, labels = FeatureTable.of(frame), list(frame.index[:150])
    found = FeatureMap.fit(features, x[:150], labels, edge_residual=0.1)
    assert len(found.basis.landmarks) > 0
    target = found.anchors(features, list(frame.index[150:])).target
    error = float((target - x[150:]).square().sum(1).mean())
    assert error < 0.25
    assert error == pytest.approx(found.error, rel=0.5)
    _, left_out = FeatureMap.fit_left_out(features, x[:150], labels, edge_residual=0.1)
    assert left_out.nodes.tolist() == list(range(150))
    gap = (left_out.target - x[:150]).square().sum(1).mean()
    assert float(gap) == pytest.approx(found.error, rel=0.2)
    part = left_out.among(torch.tensor([7, 3, 160]), 200)
    assert part.nodes.tolist() == [1, 0]
    assert torch.equal(part.target, left_out.target[[3, 7]])


@pytest.mark.parametrize("noise", [0.1, 1.0, 3.0, 100.0])
def test_predictions_are_spread_the_less_the_better_they_are(noise):
    rng = np.random.default_rng(1)
    size = rng.normal(size=300)
    frame = pd.DataFrame({"size": size}, index=[f"e{i}" for i in range(300)])
    x = torch.from_numpy(size[:, None] + noise * rng.normal(size=(300, 2)))
    count = torch.from_numpy(rng.integers(1, 30, size=300))
    features = FeatureTable.of(frame)
    found, left_out = FeatureMap.fit_left_out(
        features, x, features.labels, edge_residual=1.0, count=count
    )
    rows, _ = found.encoder.encode(features)
    f = found.basis.expand(torch.from_numpy(rows))
    weight = count.double().sqrt().clamp_min(1)
    plain = fit_ridge(f, x, weight, found.strength)
    share = weight / weight.sum()
    mean = (share[:, None] * x).sum(0)
    total = (share[:, None] * (x - mean).square()).sum()
    explained = 1 - float((share[:, None] * (x - plain.left_out).square()).sum() / total)
    assert found.explained == pytest.approx(explained)
    factor = max(explained, 1 / 16) ** -0.25 if explained > 0 else 1.0
    assert 1 <= factor <= 2
    assert noise > 0.1 or factor < 1.05
    ours, _ = found.predict(features)
    torch.testing.assert_close(ours - mean, factor * (plain.offset + f @ plain.weight - mean))
    torch.testing.assert_close(left_out.target - mean, factor * (plain.left_out - mean))
    error = float((share[:, None] * (x - left_out.target).square()).sum())
    assert (found.error, found.gamma) == pytest.approx((error, 1 / error))


def test_entities_without_a_fact_are_left_out_where_others_have_some():
    features, labels = table(40), [f"e{i}" for i in range(30)]
    torch.manual_seed(0)
    x, count = torch.randn(30, 3), torch.arange(30) % 4
    seen = (count > 0).nonzero().flatten()
    one, left_out = FeatureMap.fit_left_out(features, x, labels, edge_residual=0.1, count=count)
    other, _ = FeatureMap.fit_left_out(
        features, x[seen], [labels[i] for i in seen], edge_residual=0.1, count=count[seen]
    )
    assert one.count == len(seen) == 22
    assert torch.equal(one.weight, other.weight)
    assert left_out.nodes.tolist() == seen.tolist()
    none = FeatureMap.fit(features, x, labels, edge_residual=0.1, count=torch.zeros(30))
    plain = FeatureMap.fit(features, x, labels, edge_residual=0.1)
    assert torch.equal(none.weight, plain.weight)


def columns_of(kind, count=12):
    rng = np.random.default_rng(2)
    found = pd.DataFrame({"size": rng.normal(size=count)}, index=[f"e{i}" for i in range(count)])
    if kind == "gaps and types":
        found["kind"] = rng.choice(["a", "b", "a|b", ""], size=count)
        found.loc[["e1", "e4"], "size"] = np.nan
    elif kind == "constant":
        found = found.assign(same=3.0, kind="a")
    elif kind == "many":
        found["text"] = list(rng.normal(size=(count, 40)))
    return found


@pytest.mark.parametrize("kind", ["one", "gaps and types", "constant", "many"])
@pytest.mark.parametrize("dtype", [torch.double, torch.complex128])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_fitted_map_is_the_minimum_put_further_from_the_mean(kind, dtype, weighted):
    torch.manual_seed(1)
    features = FeatureTable.of(columns_of(kind))
    x = torch.randn(12, 3, dtype=dtype)
    x[:, 0] += 2 * torch.from_numpy(features.columns[0].values).nan_to_num()
    count = torch.arange(1, 13) if weighted else None
    found = FeatureMap.fit(features, x, features.labels, edge_residual=0.5, count=count)
    encoded, known = found.encoder.encode(features)
    weight = (torch.ones(12) if count is None else count).double().sqrt()[known]
    x, f = x[known], found.basis.expand(torch.from_numpy(encoded[known]))
    matrix, offset = brute_force(f, x, weight, found.strength)
    share = weight / weight.sum()
    mean = (share[:, None] * x).sum(0)
    factor = max(found.explained, 1 / 16) ** -0.25 if found.explained > 0 else 1.0
    torch.testing.assert_close(found.weight, factor * matrix, atol=1e-9, rtol=1e-9)
    expected = factor * offset + (1 - factor) * mean
    torch.testing.assert_close(found.offset, expected, atol=1e-9, rtol=1e-9)
