"""A run that version 0.1.0 wrote still loads, extends, predicts, is tested and goes on."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from sheafprop.cli.main import main
from sheafprop.data import read_triples
from sheafprop.inductive.propagation_search import PropagationSearch
from sheafprop.pretrained.sheaf_model import SheafModel

FILES = json.loads(Path(__file__).with_name("run_0_1_0.json").read_text())


@pytest.fixture
def run(tmp_path):
    """The run with its data, where the absolute paths in it lead here."""
    for name, content in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(content).replace(b"PLACE", str(tmp_path).encode()))
    return tmp_path / "run"


def record(run):
    return json.loads((run / "metrics.json").read_text())


def test_the_model_loads_extends_and_predicts(run):
    model = SheafModel.load(run)
    assert repr(model) == (
        "SheafModel(RotatE, 4 trained and 0 added entities, 2 relations, 5 facts, d=2)"
    )
    assert model.settings["start"] == "mixed"
    grown = model.extend(run.parent / "data" / "inference.txt")
    assert grown.labels()[4:] == ("eve", "fay")
    assert grown.report.solved_exactly == 2
    assert torch.equal(grown.vectors(model.labels()), model.vectors())
    # One fact leads from known ann to eve, one from eve to dog, one from fay to eve: the energy
    # is least where the average of all images of the others is, up to the length of the row.
    x = grown.kge.entity_vectors().detach().to(torch.complex128)
    turn = torch.polar(torch.ones(2, 2).double(), grown.kge.rel_emb.weight.detach().double())
    ids = {label: i for i, label in enumerate(grown.labels())}
    likes, owns = (turn[i] for i in grown.relations.ids(["likes", "owns"]).tolist())
    eve = (likes * x[ids["ann"]] + owns.conj() * x[ids["dog"]]) / 2
    found = grown.vectors(["eve", "fay"])[:, 0].to(torch.complex128)
    for row, expected in zip(found, (eve, likes.conj() * eve), strict=True):
        length = torch.linalg.vector_norm(expected)
        torch.testing.assert_close(row, expected / length, rtol=0, atol=1e-5)
    frame = grown.predict_tails("fay", "owns", k=6)
    assert len(frame) == 6
    assert np.isfinite(frame["score"]).all()


def test_a_test_takes_the_stored_choice(run, monkeypatch):
    before = record(run)

    def refuse(*arguments, **options):
        raise AssertionError("the choice is stored")

    monkeypatch.setattr(PropagationSearch, "select", refuse)
    assert main(["test", "--run", str(run)]) == 0
    after = record(run)
    selection = {name: after["selection"][name] for name in before["selection"]}
    assert selection == before["selection"]
    rows = {(row["method"], row["protocol"]): row for row in after["test"]}
    for expected in before["test"]:  # there are more baselines now
        found = rows[expected["method"], expected["protocol"]]
        assert found["metrics"] == pytest.approx(expected["metrics"], rel=1e-6)


def test_a_fit_goes_on(run):
    weights = SheafModel.load(run).vectors()
    words = ["--trainer.max_epochs=4", "--trainer.accelerator=cpu"]
    assert main(["fit", "--resume", str(run), *words]) == 0
    assert record(run)["training"]["epochs"] == 4
    model = SheafModel.load(run)
    assert model.labels() == ("ann", "bob", "cat", "dog")
    assert not torch.equal(model.vectors(), weights)
    assert model.num_facts == len(read_triples(run.parent / "data" / "train.txt"))
