"""Public names of 0.1.0."""

import importlib

import pytest

from sheafprop.renamed import _MOVED, _REPLACED, find_renamed


@pytest.mark.parametrize("old", sorted(_MOVED))
def test_a_moved_name_gives_the_same_object_and_warns_with_its_new_home(old):
    module, _, name = old.rpartition(".")
    home, _, found = _MOVED[old].rpartition(".")
    with pytest.warns(FutureWarning, match=f"'{_MOVED[old]}'") as warned:
        got = getattr(importlib.import_module(module), name)
    assert got is getattr(importlib.import_module(home), found)
    # The warning points at the line that asked, not at the package.
    assert warned[0].filename == __file__


@pytest.mark.parametrize("old", sorted(_REPLACED))
def test_a_name_with_other_arguments_today_is_refused_with_what_does_its_work(old):
    module, _, name = old.rpartition(".")
    with pytest.raises(AttributeError) as raised:
        getattr(importlib.import_module(module), name)
    assert _REPLACED[old] in str(raised.value)


def test_from_imports_of_0_1_0_work():
    with pytest.warns(FutureWarning):
        from sheafprop.service import SheafModel
    assert SheafModel is importlib.import_module("sheafprop").SheafModel


@pytest.mark.parametrize("module", ["sheafprop.nn", "sheafprop.query", "sheafprop.ranking"])
def test_a_name_that_never_was_has_no_advice(module):
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'nothing'$"):
        find_renamed(module, "nothing")
