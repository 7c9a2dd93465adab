import json

import numpy as np
import pytest
import torch

from sheafprop.data.datasets.query_split import inductive_query_split
from sheafprop.experiments import queries as experiment
from sheafprop.query import sample_queries
from tests.data.datasets.test_query_split import triples


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small data set in the compact form."""
    data = inductive_query_split(triples(900, 90), train_fraction=0.5, seed=0)
    wanted = dict.fromkeys(experiment.TYPES, 30)
    data = sample_queries(data, {"valid": wanted, "test": wanted}, seed=0)
    counts = [len(data.entities), 2 * len(data.relations), *data.num_entities]
    path = tmp_path_factory.mktemp("queries")
    np.savez(
        path / "550.npz",
        counts=np.array(counts),
        entity_label=np.array([label.encode() for label in data.entities]),
        relation_label=np.array([label.encode() for label in data.relations]),
        **{name: graph.numpy() for name, graph in data.graphs.items()},
        **{
            f"{split}_{kind}": rows
            for split, types in data.queries.items()
            for kind, rows in types.items()
        },
    )
    return path


@pytest.fixture
def short(monkeypatch):
    for preset in experiment.PRESETS.values():
        monkeypatch.setitem(preset, "steps", 6)
    monkeypatch.setattr(experiment, "_ITERATIONS", (1, 3))


@pytest.mark.parametrize("preset", ["paper", "best"])
def test_cells_are_run_once(folder, short, preset, tmp_path, monkeypatch, capsys):
    results = tmp_path / "results" / "queries.json"
    arguments = ["--data", str(folder), "--preset", preset, "--results", str(results)]
    experiment.main(arguments)
    records = json.loads(results.read_text())
    assert len(records) == 2 * 2 * len(experiment.TYPES)
    for record in records:
        assert record["ratio"] == "550"
        assert record["preset"] == preset
        assert record["queries"] > 0
        assert 0 <= record["hits@1"] <= record["hits@10"] <= 1
        assert record["iterations"] in (1, 3)
    assert {record["model"] for record in records} == {"rotate", "edge-type heuristic"}
    assert "550  rotate" in capsys.readouterr().out

    def fail(*_):
        raise AssertionError("a finished cell was run again")

    monkeypatch.setattr(experiment, "run_cell", fail)
    experiment.main(arguments)
    assert json.loads(results.read_text()) == records
    with pytest.raises(AssertionError, match="run again"):
        experiment.main([*arguments, "--seed", "1"])


@pytest.mark.parametrize("inverse", [False, True])
def test_relations_and_entities_are_those_of_the_model(folder, inverse):
    data = experiment.read_compact_queries(folder / "550.npz")
    task = experiment.QueryTask(data, "test", inverse)
    known, half = task.completion.train.relations, len(data.relations)
    for relation, label in enumerate(data.relations.labels):
        assert known.labels[task.relations[relation]] == label
        own = int(task.relations[relation + half])
        if inverse:
            assert known.labels[own] == f"inverse of {label}"
        else:
            assert own == task.relations[relation] + half
    model = experiment.SheafCompletion(kge="rotate", hidden_channels=4).build(1, len(known))
    x = torch.randn(task.completion.inference.num_nodes, 2, 4, dtype=torch.complex64)
    settings = experiment.PropagationSettings(start="random", num_random=2)
    scorer = task.scorer(model, x, settings)
    for entity in data.candidates("test").tolist():
        row = int(task.completion.inference.entities.ids([data.entities.labels[entity]]))
        assert torch.equal(scorer.x[entity], x[row])


def test_hashes_tell_cells_apart(monkeypatch):
    first = experiment.config_hash("550", "rotate", "best", 0)
    assert first == experiment.config_hash("550", "rotate", "best", 0)
    others = [("106", "rotate", "best", 0), ("550", "se", "best", 0), ("550", "rotate", "paper", 0)]
    assert first not in [experiment.config_hash(*cell) for cell in others]
    monkeypatch.setitem(experiment.PRESETS["best"], "steps", 7)
    assert first != experiment.config_hash("550", "rotate", "best", 0)


def test_the_data_must_be_named(monkeypatch, capsys):
    monkeypatch.delenv("SHEAFPROP_DATA", raising=False)
    with pytest.raises(SystemExit):
        experiment.main([])
    assert "give --data, or set SHEAFPROP_DATA" in capsys.readouterr().err
