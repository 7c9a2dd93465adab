"""Vectors of queries whose nearest neighbours are predictions."""

import numpy as np
import pytest
import torch

from sheafprop.errors import DataError
from tests.pretrained.models import FACTS, close, sheaf_model
from tests.pretrained.test_graph_scorer import with_episodes
from tests.pretrained.test_new_relations import BACK, OVER, fit


def order_of_neighbours(model, tmp_path, query):
    model.export(tmp_path / "vectors.npy")
    table = np.load(tmp_path / "vectors.npy").astype(np.float64)
    distance = np.linalg.norm(table - query.numpy(), axis=1)
    return [model.labels()[i] for i in np.argsort(distance)], np.sort(distance)


@pytest.mark.parametrize("name", ["transe", "rotate", "um"])
@pytest.mark.parametrize("side", ["tail", "head"])
def test_nearest_neighbours_are_the_predictions(name, side, tmp_path):
    model = sheaf_model(name).extend(FACTS)
    query = model.query_vectors(["n0", "a3"], "far", side=side)
    for label, row in zip(("n0", "a3"), query, strict=True):
        found, distance = order_of_neighbours(model, tmp_path, row)
        if side == "tail":
            frame = model.predict_tails(label, "far", k=99, include_known=True)
        else:
            frame = model.predict_heads("far", label, k=99, include_known=True)
        assert frame[side].tolist() == found
        close(frame["score"], -torch.from_numpy(distance), tol=1e-6)


@pytest.mark.parametrize("name", ["lineare", "se", "stranse"])
def test_relations_that_were_fitted_with_the_identity_at_tails_have_some_too(name, tmp_path):
    model = fit(sheaf_model(name), [*BACK, *OVER])
    query = model.query_vectors("a4", "over")[0]
    found, _ = order_of_neighbours(model, tmp_path, query)
    frame = model.predict_tails("a4", "over", k=99, include_known=True)
    assert frame["tail"].tolist() == found
    with pytest.raises(ValueError, match=r"maps tails of 'far' so that .* ask predict_tails"):
        model.query_vectors("a4", "far")
    if name == "lineare":
        with pytest.raises(ValueError, match="maps heads of 'over'"):
            model.query_vectors("a4", "over", side="head")


def test_maps_that_scale_all_directions_alike_are_divided_by_their_square(tmp_path):
    model = sheaf_model("pairre")
    with torch.no_grad():
        model.kge.rel_map_tail.fill_(-3.0)
    query = model.query_vectors("a4", "far")[0]
    found, _ = order_of_neighbours(model, tmp_path, query)
    frame = model.predict_tails("a4", "far", k=99, include_known=True)
    assert frame["tail"].tolist() == found


def test_where_neighbours_are_no_predictions_it_says_so():
    cases = [
        (sheaf_model("transe", p=1.0), "by the 1-norm"),
        (sheaf_model("transe").extend(FACTS, propagation="selected"), "several vectors of each"),
        (sheaf_model("transr", relation_channels=2), "TransR maps tails"),
        (with_episodes(), "with_scores"),
    ]
    for model, message in cases:
        with pytest.raises(ValueError, match=message):
            model.query_vectors("a4", "far")
    plain = with_episodes().with_scores(episodes=False, proximity=0, own_last=False)
    assert plain.query_vectors("a4", "far").shape == (1, 8)
    with pytest.raises(ValueError, match="'side' must be one of"):
        plain.query_vectors("a4", "far", side="both")
    for words in (("a4", "fra"), ("b4", "far")):
        with pytest.raises(DataError):
            plain.query_vectors(*words)
