import pytest

from sheafprop.inductive.propagation_settings import PropagationSettings


@pytest.mark.parametrize(
    ("start", "count"), [("random", 5), ("mixed", 6), ("zeros", 1), ("prototype", 1)]
)
def test_each_section_has_a_weight_and_they_add_up_to_one(start, count):
    settings = PropagationSettings(start=start, num_random=5, prototype_share=0.25)
    assert settings.num_sections == len(settings.section_weight) == count
    assert sum(settings.section_weight) == pytest.approx(1)
    if start == "mixed":
        assert settings.section_weight == (0.25, *(0.15,) * 5)


def test_plain_values_give_the_settings_back():
    settings = PropagationSettings(iterations=3, teleport=0.5, normalization=None)
    assert PropagationSettings.from_stored(settings.to_dict()) == settings
    with pytest.raises(ValueError, match="hold 'wings', which is unknown"):
        PropagationSettings.from_stored({"iterations": 3, "wings": 2})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(iterations=-1), "iterations"),
        (dict(num_random=0), "num_random"),
        (dict(prototype_share=1.0), "prototype_share"),
    ],
)
def test_bad_settings_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        PropagationSettings(**arguments)
