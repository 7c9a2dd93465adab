import numpy as np
import pytest
import torch
from matplotlib.image import imread

from sheafprop.errors import DataError
from sheafprop.report import model_figures
from tests.service.models import sheaf_model

NAMES = ["transe", "rotate", "se"]


@pytest.fixture
def drawn(monkeypatch):
    """The axes that were drawn, in the order of the pictures."""
    axes, canvas = [], model_figures._canvas

    def spy(*size):
        figure, axis = canvas(*size)
        axes.append(axis)
        return figure, axis

    monkeypatch.setattr(model_figures, "_canvas", spy)
    return axes


def extended(name):
    model = sheaf_model(name)
    old = model.labels()[0]
    relation = model.relations.labels[0]
    return model, model.extend([("new one", relation, old), (old, relation, "another")])


@pytest.mark.parametrize("name", NAMES)
def test_bars_are_the_energies_of_the_explanation(name, drawn, tmp_path):
    _, larger = extended(name)
    entity = larger.labels()[0]
    facts = larger.explain(entity)
    model_figures.energy_map(larger, entity, tmp_path / "e.png", limit=3)
    widths = [bar.get_width() for bar in drawn[0].patches]
    assert widths == pytest.approx(list(facts["energy"])[:3])
    assert widths == sorted(widths, reverse=True)
    assert imread(tmp_path / "e.png").std() > 0


def test_an_unknown_entity_is_named(tmp_path):
    with pytest.raises(DataError, match="nobody"):
        model_figures.energy_map(sheaf_model("transe"), "nobody", tmp_path / "e.png")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", NAMES)
def test_points_are_projections_on_the_principal_plane_of_the_trained(name, drawn, tmp_path):
    model, larger = extended(name)
    share = model_figures.entity_map(larger, tmp_path / "m.png")
    old, new = (np.asarray(part.get_offsets()) for part in drawn[0].collections)
    assert len(old) == model.num_entities
    assert len(new) == 2
    x = model.vectors()
    x = (torch.view_as_real(x) if x.is_complex() else x).mean(1).flatten(1).double()
    variance, axes = np.linalg.eigh(np.cov(x.numpy().T, bias=True))
    assert share == pytest.approx(variance[-2:].sum() / variance.sum())
    expected = (x - x.mean(0)).numpy() @ axes[:, :-3:-1]
    assert np.abs(old) == pytest.approx(np.abs(expected), abs=1e-6)


def test_a_model_without_added_entities_has_trained_points_alone(drawn, tmp_path):
    model_figures.entity_map(sheaf_model("transe"), tmp_path / "m.png", num_old=4)
    (points,) = drawn[0].collections
    assert 1 <= len(points.get_offsets()) <= 4
