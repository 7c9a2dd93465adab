import pytest

from sheafprop.report.text import (
    duration,
    escape,
    markdown_table,
    mean_with_error,
    plain_table,
    size,
)


def test_the_error_is_that_of_the_mean():
    # The standard deviation of 1, 2 and 3 is 1.
    assert mean_with_error([1.0, 2.0, 3.0], digits=3) == "2.000 ± 0.577"
    assert mean_with_error([0.5, 0.5]) == "0.5 ± 0.0"
    assert mean_with_error([0.25]) == "0.2"


@pytest.mark.parametrize("align", [None, "lr"])
def test_the_first_column_of_a_table_is_left_aligned(align):
    table = markdown_table(["a", "b"], [["1", "2"]], align)
    assert table == "| a | b |\n| :--- | ---: |\n| 1 | 2 |"
    assert markdown_table(["a"], [], "r") == "| a |\n| ---: |"


def test_what_markdown_would_read_is_escaped():
    assert escape("a|b *c*\n `d`") == r"a\|b \*c\* \`d\`"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),  # noqa: RUF001
        (0.04, "0.0 s"),
        (99.94, "99.9 s"),
        (99.96, "1 min 40 s"),
        (3599.6, "1 h 00 min"),
        (7265, "2 h 01 min"),
    ],
)
def test_duration(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(None, "–"), (512, "512 B"), (5 * 2**20, "5 MiB"), (1.5 * 2**40, "1536.00 GiB")],  # noqa: RUF001
)
def test_size(num_bytes, text):
    assert size(num_bytes) == text


def test_cells_are_shown_as_they_are():
    assert escape("a|b *c*\n[d] `e` <f>") == r"a\|b \*c\* \[d\] \`e\` \<f>"
    table = markdown_table(("name", "x"), [[escape("a|b"), "1"]], "lr")
    assert table.splitlines() == ["| name | x |", "| :--- | ---: |", r"| a\|b | 1 |"]


def test_columns_of_wide_letters_are_aligned():
    lines = plain_table(("name", "x"), [[["ab", "1"]], [["\u6570\u6570", "22"]]], "lr").splitlines()
    assert lines == ["name   x", "-" * 8, "ab     1", "-" * 8, "\u6570\u6570  22"]
