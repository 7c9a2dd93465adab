import pytest

from sheafprop.data.read_options import ReadOptions


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None),
        ("0,1,2", (0, 1, 2)),
        ([2, 0, 1], (2, 0, 1)),
        (" source , kind,3", ("source", "kind", 3)),
        (("a", "b", "c"), ("a", "b", "c")),
    ],
)
def test_columns(given, expected):
    options = ReadOptions.of(given)
    assert options.columns == expected
    assert options.has_names == any(isinstance(column, str) for column in expected or ())


@pytest.mark.parametrize("given", ["0,1", "0,1,2,3", "0,1,1", "a,b,", [-1, 0, 1], "a,a,b"])
def test_bad_columns(given):
    with pytest.raises(ValueError, match="'columns' must be three different columns"):
        ReadOptions.of(given)


@pytest.mark.parametrize(
    ("given", "expected"),
    [(None, None), ("auto", None), ("yes", True), (True, True), ("no", False), (False, False)],
)
def test_header(given, expected):
    assert ReadOptions.of(header=given).header is expected


def test_other_options():
    assert ReadOptions.of() == ReadOptions()
    assert ReadOptions.of(delimiter="\\t").delimiter == "\t"
    assert ReadOptions.of(format="csv").format == "csv"
    assert ReadOptions.of(format=None).format == "auto"
    assert ReadOptions.of((0, 1, 2), header=False).header is False


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"header": "maybe"}, "'header' must be one of 'auto', 'yes', 'no'"),
        ({"format": "xlsx"}, "'format' must be one of 'auto', 'tsv', 'csv', 'parquet'"),
        ({"delimiter": ""}, "'delimiter' must be a single character"),
        ({"delimiter": "ab"}, "'delimiter' must be a single character"),
        ({"delimiter": '"'}, "'delimiter' must be a single character"),
        ({"columns": "a,b,c", "header": False}, "'columns' must be numbers if"),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(ValueError, match=message):
        ReadOptions.of(**options)
