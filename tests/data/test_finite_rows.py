import pytest
import torch

from sheafprop.data.finite_rows import check_finite_rows, name_nonfinite_rows
from sheafprop.errors import DivergenceError

LABELS = ["a", "b", "c", "d"]


def table(*bad, dtype=torch.float64, value=float("nan")):
    out = torch.ones(4, 2, 3, dtype=dtype)
    for row in bad:
        out[row, 1, 2] = value
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex128])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_the_first_row_that_is_not_finite_is_named(dtype, value):
    assert name_nonfinite_rows(table(dtype=dtype), LABELS) is None
    one, two = (table(*bad, dtype=dtype, value=value) for bad in ((2,), (1, 3)))
    assert name_nonfinite_rows(one, LABELS) == "entity 'c' (row 2)"
    assert name_nonfinite_rows(two, LABELS, "relation") == "relation 'b' (row 1, and 1 more)"
    assert name_nonfinite_rows(two[2:], LABELS, ids=torch.tensor([3, 0])) == "entity 'a' (row 0)"


def test_a_sum_that_overflows_is_no_fault_of_a_row():
    assert name_nonfinite_rows(torch.full((4, 2), 3e38), LABELS) is None


def test_infinities_of_both_signs_do_not_cancel():
    pair = torch.tensor([[float("inf")], [-float("inf")]])
    assert name_nonfinite_rows(pair, LABELS) == "entity 'a' (row 0, and 1 more)"


def test_a_check_refuses_with_advice():
    check_finite_rows(table(), LABELS, "vectors")
    with pytest.raises(DivergenceError, match=r"^vectors: the row of entity 'd' \(row 3\) is not"):
        check_finite_rows(table(3), LABELS, "vectors")
