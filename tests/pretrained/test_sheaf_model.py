import pandas as pd
import pytest
import torch

from sheafprop.errors import DataError
from sheafprop.kge import KGE_REGISTRY
from sheafprop.pretrained.sheaf_model import SheafModel
from tests.pretrained.models import ADRIFT, FACTS, sheaf_model

MODELS = sorted(KGE_REGISTRY)


def test_unknown_labels_suggest_the_nearest():
    model = sheaf_model("transe").extend([("Amsterdam", "next", "a1")])
    for call in (
        lambda: model.predict_tails("amsterdam ", "next"),
        lambda: model.score([("Amsterdm", "next", "a0")]),
        lambda: model.explain("Amsterdan"),
        lambda: model.remove(["Amsterdamm"]),
    ):
        with pytest.raises(DataError, match="did you mean 'Amsterdam'"):
            call()
    with pytest.raises(DataError, match="did you mean 'next'"):
        model.predict_tails("a0", "nextt")


@pytest.mark.parametrize("propagation", ["exact", "selected"])
@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_comes_back_as_it_was(tmp_path, name, propagation):
    model = sheaf_model(name, dtype=torch.float32).extend(FACTS, propagation=propagation)
    model = model.extend(ADRIFT)
    run = tmp_path / "run"
    model.save(run / "model")
    for place in (run, run / "model"):
        again = SheafModel.load(place)
        assert torch.equal(again.vectors(), model.vectors())
        assert again.labels() == model.labels()
        pd.testing.assert_frame_equal(again.entities(), model.entities())
        pd.testing.assert_frame_equal(again.facts(), model.facts())
        pd.testing.assert_frame_equal(
            again.predict_tails("n1", "next"), model.predict_tails("n1", "next")
        )
    more = [("p", "next", "n1"), ("p", "far", "a1")]
    assert torch.equal(again.extend(more).vectors(), model.extend(more).vectors())
    refined = model.extend(more, mode="refine", propagation=propagation)
    reloaded = again.extend(more, mode="refine", propagation=propagation)
    assert torch.equal(refined.vectors(), reloaded.vectors())
    with pytest.raises(ValueError, match="overwrite"):
        model.save(run / "model")


def test_the_representation_is_one_line():
    assert repr(sheaf_model("transe").extend(FACTS)) == (
        "SheafModel(TransE, 12 trained and 3 added entities, 3 relations, 46 facts, d=4)"
    )


def test_the_package_has_it():
    import sheafprop

    assert sheafprop.SheafModel is SheafModel
