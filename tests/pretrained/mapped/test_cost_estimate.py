import math
from dataclasses import replace

import pytest

from sheafprop.errors import DataError
from sheafprop.pretrained.mapped import cost_estimate
from sheafprop.pretrained.mapped.cost_estimate import (
    CostEstimate,
    Problem,
    parse_bytes,
    show_bytes,
    show_seconds,
)

PROBLEM = Problem(
    facts=20_000_000,
    num_free=4_000_000,
    num_known=1_000_000,
    num_sections=1,
    width=128,
    itemsize=4,
    kind="identity",
    iterations=8,
    entry_bytes=6,
    has_constant=True,
)


def test_less_memory_takes_narrower_blocks_and_more_time():
    found = [CostEstimate.of(PROBLEM, gb * 10**9, 1) for gb in (16, 4, 2)]
    for gb, estimate in zip((16, 4, 2), found, strict=True):
        assert estimate.memory <= gb * 10**9
    assert len(found[0].blocks) == 1
    assert len(found[0].blocks) < len(found[1].blocks) < len(found[2].blocks)
    assert found[0].seconds < found[1].seconds < found[2].seconds
    assert found[0].disk == found[2].disk > 3 * 4_000_000 * 128 * 4
    assert CostEstimate.of(PROBLEM, 16 * 10**9, 2).seconds < found[0].seconds
    again = CostEstimate.of_blocks(PROBLEM, found[1].blocks, 1)
    assert (again.seconds, again.disk) == (found[1].seconds, found[1].disk)


def test_a_memory_that_does_not_do_is_refused():
    with pytest.raises(DataError, match="one column at a time takes about"):
        CostEstimate.of(PROBLEM, 10**8, 1)


@pytest.mark.parametrize("what", ["has_constant", "keeps_start", "leaps", "has_diagonal"])
def test_what_needs_more_memory(what):
    without = replace(PROBLEM, **{what: False})
    assert replace(without, **{what: True}).block_memory(64) > without.block_memory(64)


def test_many_known_entities_count_before_the_first_step():
    many = replace(PROBLEM, num_known=40_000_000)
    assert many.block_memory(8) > 40_000_000 * 8 * 4


def test_the_summary_says_it_all(monkeypatch):
    monkeypatch.setattr(cost_estimate, "held_memory", lambda: 0)
    text = CostEstimate.of(PROBLEM, 4 * 10**9, 1).summary()
    assert "20,000,000 facts, 4,000,000 new and 1,000,000 known entities" in text
    assert "memory" in text
    assert "disk" in text
    assert "8 steps" in text


@pytest.mark.parametrize(
    ("text", "count"),
    [("16GB", 16e9), ("512MiB", 2**29), ("1.5 tb", 1.5e12), ("100", 100), ("3kB", 3000)],
)
def test_sizes_are_read(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "5XB", "nan", "inf", "1e400"])
def test_what_is_no_size(text):
    with pytest.raises(ValueError, match="such as 16GB"):
        parse_bytes(text)


def test_sizes_and_times_are_shown():
    assert [show_bytes(n) for n in (12, 3_400, 5_600_000, 7.8e9, 1.2e12)] == [
        "12 bytes",
        "3.4 kB",
        "5.6 MB",
        "7.8 GB",
        "1.2 TB",
    ]
    assert [show_seconds(n) for n in (59.6, 600, 9000)] == ["60 s", "10 min", "2.5 h"]
    assert math.isfinite(PROBLEM.step_seconds([], 1))
