"""The module ``sheafprop.io`` of 0.1.0."""

import pytest

import sheafprop.io


def test_it_knows_names_of_0_1_0_alone():
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
        sheafprop.io.nothing  # noqa: B018
