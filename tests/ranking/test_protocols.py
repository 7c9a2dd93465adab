import dataclasses

import pytest

from sheafprop.ranking import PROTOCOLS, get_protocol
from sheafprop.ranking.protocols import resolve_rules


def test_rules_of_the_protocols():
    rules = {p.name: (p.ties, p.test_set, p.num_negatives) for p in PROTOCOLS.values()}
    assert rules == {
        "full": ("realistic", "test", None),
        "sampled50": ("realistic", "test", 49),
        "merged": ("pessimistic", "valid+test", None),
        "strict": ("pessimistic", "test", None),
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
        "mrr_merged_optimistic", "mrr_strict", "mrr_strict_optimistic",
    }  # fmt: skip


def test_the_tie_rule_is_the_protocols_own_unless_given():
    assert resolve_rules("merged", None) == (PROTOCOLS["merged"], "pessimistic")
    assert resolve_rules(PROTOCOLS["full"], "optimistic") == (PROTOCOLS["full"], "optimistic")
    with pytest.raises(ValueError, match="got 'mean'"):
        resolve_rules("full", "mean")
    with pytest.raises(ValueError, match="positive integers"):
        resolve_rules("full", None, (3, 3))
