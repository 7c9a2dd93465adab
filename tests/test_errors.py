import inspect

import pytest

from sheafprop import errors
from sheafprop.files import StorageError

BUILT_IN = {
    errors.DataError: ValueError,
    errors.FormatError: ValueError,
    errors.DivergenceError: ArithmeticError,
    StorageError: OSError,
}


def test_every_error_is_one_of_the_package():
    classes = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
    assert len(classes) >= 5
    assert all(issubclass(kind, errors.SheafpropError) for kind in classes)
    assert not issubclass(errors.SheafpropError, ValueError)


@pytest.mark.parametrize("kind", BUILT_IN)
def test_callers_may_catch_the_errors_of_python(kind):
    with pytest.raises(BUILT_IN[kind], match="what is wrong"):
        raise kind("what is wrong")


def test_an_unknown_relation_is_an_error_of_the_data():
    with pytest.raises(errors.DataError):
        raise errors.UnknownRelationError("r")
