import inspect

import pytest

import sheafprop.kge
from sheafprop.kge import KGE_REGISTRY, KGEModel, build_model

from . import (
    test_lineare,
    test_pairre,
    test_rotate,
    test_se,
    test_stranse,
    test_su2e,
    test_transe,
    test_transh,
    test_transr,
    test_um,
)
from .cases import KGEModelCase


def test_every_model_is_registered_and_tested():
    public = {
        value.name: value
        for value in vars(sheafprop.kge).values()
        if inspect.isclass(value) and issubclass(value, KGEModel) and not inspect.isabstract(value)
    }
    assert public == KGE_REGISTRY
    cases = [
        value.name
        for module in (
            test_transe,
            test_rotate,
            test_transr,
            test_se,
            test_pairre,
            test_transh,
            test_stranse,
            test_lineare,
            test_um,
            test_su2e,
        )
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, KGEModelCase) and value is not KGEModelCase
    ]
    assert sorted(cases) == sorted(KGE_REGISTRY)


def test_unknown_model_is_refused_by_name():
    with pytest.raises(ValueError, match=r"no model 'TransX'.*'rotate'"):
        build_model("TransX", num_nodes=1, num_relations=1, hidden_channels=1)
