import dataclasses

import pytest

from sheafprop.ranking import PROTOCOLS, describe, get_protocol


def test_rules_of_the_protocols():
    rules = {p.name: (p.ties, p.test_set, p.num_negatives) for p in PROTOCOLS.values()}
    assert rules == {
        "full": ("realistic", "test", None),
        "sampled50": ("realistic", "test", 49),
        "merged": ("pessimistic", "valid+test", None),
    }
    assert get_protocol(PROTOCOLS["full"]) is PROTOCOLS["full"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        PROTOCOLS["full"].ties = "optimistic"
    with pytest.raises(ValueError, match="got 'all'"):
        get_protocol("all")


def test_names_differ_by_protocol_and_tie_rule():
    names = {p.key("mrr", ties) for p in PROTOCOLS.values() for ties in ("optimistic", p.ties)}
    assert names == {
        "mrr", "mrr_50", "mrr_merged", "mrr_optimistic", "mrr_50_optimistic",
        "mrr_merged_optimistic",
    }  # fmt: skip


def test_box_names_every_rule():
    box = describe(
        "sampled50",
        num_candidates=1093,
        filter="2,198 known triples (observed 1,993, test 205), except the one being ranked",
        num_evaluated=205,
        num_dropped=3,
    )
    lines = dict(line.split(":", 1) for line in box.splitlines())
    assert list(lines) == [
        "protocol", "candidates", "filter", "ties", "sides", "test set", "triples",
        "small sets",
    ]  # fmt: skip
    assert "sampled50" in lines["protocol"]
    assert "49 negatives" in lines["candidates"]
    assert "1,093" in lines["candidates"]
    assert "observed 1,993" in lines["filter"]
    assert "realistic" in lines["ties"]
    assert lines["sides"].strip() == "both (head and tail)"
    assert lines["triples"].strip() == "205 evaluated, 3 dropped"


def test_box_marks_departures_from_the_protocol():
    box = describe(
        "merged",
        num_candidates=10,
        filter="none (raw ranking)",
        num_evaluated=1,
        num_dropped=0,
        sides="tail",
        ties="optimistic",
        test_set="test",
    )
    assert "optimistic (equal scores count as worse)" in box
    assert "tail only" in box
    assert "test (the protocol ranks valid+test)" in box
    with pytest.raises(ValueError, match="'mean'"):
        describe("full", num_candidates=1, filter="", num_evaluated=1, num_dropped=0, ties="mean")
