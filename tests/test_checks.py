import numpy as np
import pytest

from sheafprop import HarmonicExtension, SheafPropagation
from sheafprop.checks import agree, check_choice, check_integer, count_noun, quote
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.kge import TransE, TransR
from sheafprop.training.sheaf_completion import SheafCompletion

TAKE_INTEGERS = [
    (SheafPropagation, "num_iterations", 0),
    (HarmonicExtension, "max_iterations", 1),
    (PropagationSettings, "iterations", 0),
    (PropagationSettings, "num_random", 1),
    (PropagationSettings, "seed", None),
    (SheafCompletion, "num_candidates", 1),
    (SheafCompletion, "num_negatives", 1),
    (SheafCompletion, "lr_epochs", 1),
    (SheafCompletion, "seed", None),
    (lambda **more: TransE(5, 2, **more), "hidden_channels", 1),
    (lambda **more: TransR(5, 2, 4, **more), "relation_channels", 1),
]


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(1)])
def test_integers_pass(value):
    check_integer("k", value, 1)


@pytest.mark.parametrize("value", [2.5, 2.0, True, "3", float("nan"), np.float32(2), [2]])
def test_others_are_refused(value):
    with pytest.raises(ValueError, match=r"'k' must be an integer of at least 1 \(got"):
        check_integer("k", value, 1)


@pytest.mark.parametrize(("owner", "name", "least"), TAKE_INTEGERS)
def test_settings_take_no_fractions(owner, name, least):
    bad = [2.5] if least is None else [2.5, least - 1]
    for value in bad:
        with pytest.raises(ValueError, match=f"'{name}' must be an integer.*got {value}"):
            owner(**{name: value})


def test_a_choice_is_one_of_those_named():
    check_choice("mode", "a", ("a", "b"))
    with pytest.raises(ValueError, match=r"^'mode' must be one of 'a', 'b' \(got 'c'\)$"):
        check_choice("mode", "c", ("a", "b"))


def test_wording_of_messages():
    counted = [count_noun(1, "entity"), count_noun(0, "entity"), count_noun(1234, "triple")]
    assert counted == ["1 entity", "0 entities", "1,234 triples"]
    assert [agree(number, "is", "are") for number in (0, 1, 2)] == ["are", "is", "are"]
    assert quote("a'b") == '"a\'b"'
    assert len(quote("x" * 1000)) == 80
    assert quote("x" * 1000).endswith("...'")
