import json

import pytest

from sheafprop.errors import FormatError
from sheafprop.pretrained.model_calibration import ModelCalibration
from tests.pretrained.models import FACTS, sheaf_model


def test_state_describes_the_calibration():
    held = [("n0", "far", "a4"), ("n1", "next", "a9"), ("a6", "skip", "n2"), ("n2", "next", "a5")]
    model, _ = sheaf_model("rotate").extend(FACTS).calibrate(held, ["via(far, via(next, n1))"])
    calibration = model.stored().calibration
    state = json.loads(json.dumps(calibration.state()))
    assert ModelCalibration.from_state(state).state() == calibration.state()


@pytest.mark.parametrize("state", [{}, {"links": {}}, [], {"links": {}, "truths": {}}])
def test_other_contents_are_refused(state):
    with pytest.raises(FormatError):
        ModelCalibration.from_state(state)
