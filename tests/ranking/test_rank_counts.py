import math

import pytest
import torch

from sheafprop.errors import DivergenceError
from sheafprop.kernels.backend import use_backend
from sheafprop.ranking import RankCounts, rank_counts


def loop_counts(scores, target, filtered):
    """The definition, one candidate at a time."""
    rows = []
    for i, row in enumerate(scores.tolist()):
        true = row[int(target[i])]
        others = [s for j, s in enumerate(row) if j != int(target[i]) and (i, j) not in filtered]
        rows.append((sum(s > true for s in others), sum(s == true for s in others), len(others)))
    return rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.long])
def test_equals_a_loop(dtype):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(4, (40, 17), generator=generator).to(dtype)
    target = torch.randint(17, (40,), generator=generator)
    row = torch.randint(40, (150,), generator=generator)  # unsorted, with repeated pairs
    column = torch.randint(17, (150,), generator=generator)
    counts = rank_counts(scores, target, (row, column))
    filtered = set(zip(row.tolist(), column.tolist(), strict=True))
    assert len(filtered) < 150
    assert any((i, int(t)) in filtered for i, t in enumerate(target))
    stacked = torch.stack([counts.better, counts.ties, counts.candidates], dim=1)
    assert [tuple(c) for c in stacked.tolist()] == loop_counts(scores, target, filtered)


def test_more_scores_than_one_cached_block():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(50, (300, 2000), generator=generator).float()
    target = torch.randint(2000, (300,), generator=generator)
    counts = rank_counts(scores, target)
    true = scores[torch.arange(300), target][:, None]
    assert counts.better.equal((scores > true).sum(1))
    assert counts.ties.equal((scores == true).sum(1) - 1)


def test_infinite_scores_are_ordered():
    inf = math.inf
    scores = torch.tensor([[inf, inf, -inf, 0.0], [-inf, inf, -inf, 0.0]])
    counts = rank_counts(scores, torch.tensor([0, 2]))
    assert counts.better.tolist() == [0, 2]
    assert counts.ties.tolist() == [1, 1]
    assert counts.candidates.tolist() == [3, 3]


@pytest.mark.parametrize("masked", [False, True])
def test_nan_is_an_error_that_names_the_rows(masked):
    scores = torch.zeros(6, 5)
    scores[2, 1] = scores[4, 0] = math.nan
    pairs = (torch.tensor([2, 4]), torch.tensor([1, 0])) if masked else None
    with pytest.raises(DivergenceError, match=r"row 2, 4 \(2 of 6 rows\).*diverged"):
        rank_counts(scores, torch.full((6,), 3), pairs)


def test_the_three_ranks_have_names():
    counts = RankCounts(torch.tensor([2]), torch.tensor([3]), torch.tensor([9]))
    assert counts.ranks("optimistic").tolist() == [3.0]
    assert counts.ranks("realistic").tolist() == counts.ranks().tolist() == [4.5]
    assert counts.ranks("pessimistic").tolist() == [6.0]
    with pytest.raises(ValueError, match="'mean'"):
        counts.ranks("mean")
    assert repr(counts) == "RankCounts(1)"


def test_bad_input():
    scores = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"target columns from 0 to 2 \(got 0 to 3\)"):
        rank_counts(scores, torch.tensor([0, 3]))
    with pytest.raises(ValueError, match="2 targets"):
        rank_counts(scores, torch.tensor([0]))
    with pytest.raises(ValueError, match=r"\[B, C\]"):
        rank_counts(torch.zeros(3), torch.tensor([0]))
    with pytest.raises(ValueError, match="real scores"):
        rank_counts(scores.to(torch.complex64), torch.tensor([0, 0]))
    with pytest.raises(ValueError, match="filter columns from 0 to 2"):
        rank_counts(scores, torch.tensor([0, 0]), (torch.tensor([1]), torch.tensor([5])))
    with pytest.raises(ValueError, match="filter rows from 0 to 1"):
        rank_counts(scores, torch.tensor([0, 0]), (torch.tensor([-1]), torch.tensor([1])))
    with pytest.raises(ValueError, match="got 3, 2 and 4 in row 1"):
        RankCounts(torch.tensor([0, 3]), torch.tensor([1, 2]), torch.tensor([4, 4]))
    with pytest.raises(ValueError, match="int64 vectors"):
        RankCounts(torch.tensor([0.0]), torch.tensor([1]), torch.tensor([4]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_compiled_comparison_equals_that_of_torch(dtype):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(5, (40, 30), generator=generator).to(dtype)
    scores[scores == 4] = math.inf
    scores[scores == 0] = -math.inf
    target = torch.randint(30, (40,), generator=generator)
    with use_backend("torch"):
        expected = rank_counts(scores, target)
    # A view with strides, too.
    for given in (scores, scores.t().contiguous().t()):
        with use_backend("numba"):
            found = rank_counts(given, target)
        assert torch.equal(found.better, expected.better)
        assert torch.equal(found.ties, expected.ties)
    assert expected.ties.max() > 0
