import itertools
import warnings

import numpy as np
import pytest
import torch
from benchmarks.tables import model_figures
from matplotlib.image import imread

from sheafprop.errors import DataError
from tests.pretrained.models import sheaf_model

NAMES = ["transe", "rotate", "se"]


@pytest.fixture
def drawn(monkeypatch):
    """The axes that were drawn, in the order of the pictures."""
    axes, canvas = [], model_figures.canvas

    def spy(*size):
        figure, axis = canvas(*size)
        axes.append(axis)
        return figure, axis

    monkeypatch.setattr(model_figures, "canvas", spy)
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
    old, near, new = (np.asarray(part.get_offsets()) for part in drawn[0].collections)
    assert len(old) == model.num_entities
    assert len(new) == 2
    np.testing.assert_array_equal(near, old[:1])  # both have one fact, with the first entity
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


def test_added_entities_and_their_neighbours_are_named_and_connected(drawn, tmp_path):
    model = sheaf_model("rotate")
    facts = [("x$_1$", "next", "a2"), ("a5", "far", "x$_1$"), ("x$_1$", "skip", "y")]
    more = [(f"z{i}", "next", "a7") for i in range(5)]
    larger = model.extend([*facts, *more])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model_figures.entity_map(larger, tmp_path / "m.png", num_named=2, num_neighbours=2)
    texts = {text.get_text(): text.xy for text in drawn[0].texts}
    near = set(larger.explain("x$_1$").iloc[1:][["head", "tail"]].to_numpy().ravel())
    assert set(texts) == {"y"} | near  # the worst fitting of three facts is left out
    added = dict(zip(larger.labels()[12:], drawn[0].collections[-1].get_offsets(), strict=True))
    np.testing.assert_array_equal(texts["x$_1$"], added["x$_1$"])
    spots = {tuple(xy) for xy in texts.values()}
    assert {tuple(point) for line in drawn[0].lines for point in line.get_xydata()} <= spots
    labels = [text.get_text() for text in drawn[0].get_legend().get_texts()]
    assert labels == ["trained", "connected by a fact", "added"]
    boxes = [text.get_window_extent() for text in drawn[0].texts]
    pairs = itertools.combinations(boxes, 2)
    assert not any(one.overlaps(other) for one, other in pairs)
