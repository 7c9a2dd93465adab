import json
from importlib import resources

import pytest

from sheafprop.ranking import PROTOCOLS

MARKS = {"paper", "read", "second-hand", "recalled"}
FAMILIES = {"fb237", "WN18RR", "nell"}


@pytest.fixture(scope="module")
def published():
    return json.loads((resources.files("sheafprop.report") / "published.json").read_text("utf-8"))


def test_tables_are_grouped_by_protocol(published):
    assert set(PROTOCOLS) <= set(published["completion"])
    assert set(published["completion"]) - set(PROTOCOLS) == {"full_valid_and_test"}


def test_every_row_has_a_mark_and_four_versions(published):
    for table in published["completion"].values():
        for name, row in table["rows"].items():
            assert row.get("mark", row["source"]) in MARKS, name
            figures = {key: value for key, value in row.items() if isinstance(value, list)}
            assert {key.removeprefix("mrr_") for key in figures} <= FAMILIES
            for key, values in figures.items():
                assert len(values) == 4, (name, key)
                bound = 1 if key.startswith("mrr_") else 100
                assert all(value is None or 0 <= value <= bound for value in values), (name, key)


def test_figures_known_from_the_paper(published):
    rows = published["completion"]["full"]["rows"]
    assert rows["TransE + harmonic extension"]["fb237"][0] == 50.5
    assert rows["RotatE + harmonic extension"]["WN18RR"][0] == 21.0
