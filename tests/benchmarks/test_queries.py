from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from benchmarks import entity_cell, query_cell, query_tuning
from benchmarks import queries as experiment
from benchmarks.cells import read_records
from benchmarks.presets import MODELS, RATIOS, query_config
from benchmarks.query_cell import TYPES, choose_settings
from benchmarks.query_files import read_compact_queries
from benchmarks.query_sampling import sample_queries
from benchmarks.query_split import inductive_query_split
from benchmarks.query_task import QueryTask, read_queries
from benchmarks.training import rank_triples

from sheafprop.errors import DataError
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.query import QueryRanking
from sheafprop.ranking import RankCounts, TripleFilter
from sheafprop.ranking.edge_type_heuristic import HEURISTIC
from sheafprop.report.published import published_rows
from sheafprop.training.sheaf_completion import SheafCompletion
from tests.benchmarks.test_query_files import write_compact, write_released
from tests.benchmarks.test_query_split import triples


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small data set in the compact form."""
    data = inductive_query_split(triples(900, 90), train_fraction=0.5, seed=0)
    wanted = dict.fromkeys(TYPES, 30)
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
def short(monkeypatch, at_once):
    """Cells of a few batches, run at once and in this process."""

    def config(*cell):
        model = query_config(*cell).model | {"hidden_channels": 8}
        few = {"max_epochs": -1, "max_steps": 6, "iterations": (1, 3)}
        return replace(query_config(*cell), model=model, **few)

    monkeypatch.setattr(experiment, "query_config", config)


@pytest.mark.parametrize(("preset", "model"), [("paper", "transe"), ("best", "rotate")])
def test_cells_are_run_once(folder, short, preset, model, tmp_path, monkeypatch, capsys):
    results = tmp_path / "results" / "queries.jsonl"
    arguments = ["--data", str(folder), "--preset", preset, "--model", model]
    arguments += ["--results", str(results)]
    experiment.main(arguments)
    records = read_records(results)
    assert len(records) == 2 * 2 * len(TYPES)
    for record in records:
        assert record["ratio"] == "550"
        assert record["queries"] > 0
        assert 0 <= record["hits@1"] <= record["hits@10"] <= 1
        if record["model"] != HEURISTIC:
            assert (record["model"], record["preset"]) == (model, preset)
            assert record["iterations"] in (1, 3)
    assert {record["model"] for record in records} == {model, HEURISTIC}
    assert f"{preset} |" in capsys.readouterr().out

    def fail(*_, **__):
        raise AssertionError("a finished cell was run again")

    monkeypatch.setattr(experiment, "run_cell", fail)
    monkeypatch.setattr(experiment, "heuristic_records", fail)
    experiment.main(arguments)
    assert read_records(results) == records
    with pytest.raises(SystemExit):
        experiment.main([*arguments, "--seed", "1"])
    assert "1 of 1 cells failed: 550" in capsys.readouterr().err


def test_changed_configurations_are_run_again(folder, short, tmp_path, monkeypatch):
    results = tmp_path / "queries.jsonl"
    arguments = ["--data", str(folder), "--results", str(results)]
    experiment.main(arguments)
    first = read_records(results)
    config = experiment.query_config
    monkeypatch.setattr(
        experiment, "query_config", lambda *cell: replace(config(*cell), max_steps=9)
    )
    experiment.main(arguments)
    second = read_records(results)
    # What was found before stays: published results are never replaced by those of other settings.
    assert second[: len(first)] == first
    hashes = [{record["config_hash"] for record in part} for part in (first, second[len(first) :])]
    assert not hashes[0] & hashes[1]
    assert len(second) - len(first) == 2 * len(TYPES)


def test_only_validation_chooses(folder, monkeypatch):
    """What is chosen is what ranks the validation queries best, whatever the test says."""
    data = read_compact_queries(folder / "550.npz")
    valid = QueryTask(data, "valid", False)
    config = replace(query_config("best", "550", "transe"), iterations=(1, 2, 5))
    model = SheafCompletion(**config.model | {"hidden_channels": 8}).build(
        valid.completion.train.num_nodes, valid.completion.num_relations
    )
    asked, current = [], []

    def scorer(self, model, x, settings, interior_prior):
        current.append(x)
        return x

    def rank(self, scorer, kind, limit=None):
        assert self.split == "valid"
        asked.append((kind, limit))
        # Two steps are best by the mean over types, five steps for 1p alone.
        good = {1: 0.1, 2: 0.6, 3: 0.4 if kind != "1p" else 1.0}[len(current)]
        worse = torch.tensor([0 if number < 10 * good else 50 for number in range(10)])
        counts = RankCounts(worse, torch.zeros(10, dtype=torch.long), torch.full((10,), 99))
        return QueryRanking(counts, torch.arange(10), 10, 100)

    monkeypatch.setattr(QueryTask, "scorer", scorer)
    monkeypatch.setattr(QueryTask, "rank", rank)
    chosen, value = choose_settings(valid, model, config, 3)
    assert (chosen.iterations, value) == (2, pytest.approx(0.6))
    assert asked == [(kind, 1000) for _ in range(3) for kind in config.selection_types]
    current.clear()
    only = replace(config, selection_types=("1p",))
    chosen, value = choose_settings(valid, model, only, 3)
    assert (chosen.iterations, chosen.seed, value) == (5, 3, 1.0)


def test_a_cell_chooses_on_validation_and_ranks_the_test_once(folder, short, tmp_path, monkeypatch):
    data = read_compact_queries(folder / "550.npz")
    seen = []
    rank = QueryTask.rank

    def watched(self, scorer, kind, limit=None):
        seen.append((self.split, kind, limit))
        return rank(self, scorer, kind, limit)

    monkeypatch.setattr(QueryTask, "rank", watched)
    config = experiment.query_config("best", "550", "transe")
    records = query_cell.run_cell(folder, "550", config, 0, folder=tmp_path)
    assert [entry for entry in seen if entry[0] == "test"] == [("test", k, None) for k in TYPES]
    assert {entry[0] for entry in seen[: -len(TYPES)]} == {"valid"}
    asked = {record["type"]: record["queries"] for record in records}
    assert asked == {kind: len(data.queries["test"][kind]) for kind in TYPES}


@pytest.mark.parametrize("inverse", [False, True])
def test_relations_and_entities_are_those_of_the_model(folder, inverse):
    data = read_compact_queries(folder / "550.npz")
    task = QueryTask(data, "test", inverse)
    known, half = task.completion.train.relations, len(data.relations)
    for relation, label in enumerate(data.relations.labels):
        assert known.labels[task.relations[relation]] == label
        own = int(task.relations[relation + half])
        if inverse:
            assert known.labels[own] == f"inverse of {label}"
        else:
            assert own == task.relations[relation] + half
    model = SheafCompletion(kge="rotate", hidden_channels=4).build(1, len(known))
    x = torch.randn(task.completion.inference.num_nodes, 2, 4, dtype=torch.complex64)
    settings = PropagationSettings(start="random", num_random=2)
    scorer = task.scorer(model, x, settings)
    for entity in data.candidates("test").tolist():
        row = int(task.completion.inference.entities.ids([data.entities.labels[entity]]))
        assert torch.equal(scorer.x[entity], x[row])


def test_the_paper_trains_as_its_table_says():
    config = query_config("paper", "106", "rotate")
    assert config.inverse_relations
    assert config.selection_types == ("1p",)
    assert config.model["hidden_channels"] == 128
    assert config.model["lr"] == 0.0013
    assert config.model["loss_args"] == {"margin": 23.09, "adversarial_temperature": 1.13}
    assert config.model["num_negatives"] == 30
    assert (config.batch_size, config.max_epochs) == (256, 500)
    transe = query_config("paper", "550", "transe").model
    assert transe["loss_args"] == {"label_smoothing": 0.72}
    assert transe["sides"] == "tail"
    assert query_config("paper", "550", "se").max_epochs == 1000


@pytest.mark.parametrize("preset", ["best", "paper"])
@pytest.mark.parametrize("model", MODELS)
def test_every_cell_has_a_configuration(preset, model):
    hashes = set()
    for ratio in RATIOS:
        config = query_config(preset, ratio, model)
        SheafCompletion(**config.model)
        assert config.model["kge"] == model
        assert published_rows("queries", "paper", ratio)
        hashes.add(config.hash(ratio, 0))
    assert len(hashes) == len(RATIOS)
    assert (
        query_config("best", "106", model).max_steps > query_config("best", "122", model).max_steps
    )
    assert config.hash("550", 0) != config.hash("550", 1)
    assert config.hash("550", 0) != replace(config, batch_size=7).hash("550", 0)


def test_the_data_must_be_named(monkeypatch, capsys):
    monkeypatch.delenv("SHEAFPROP_DATA", raising=False)
    with pytest.raises(SystemExit):
        experiment.main([])
    assert "give --data, or set SHEAFPROP_DATA" in capsys.readouterr().err


def test_reports_are_written(folder, short, tmp_path, capsys):
    results, report = tmp_path / "queries.jsonl", tmp_path / "report"
    common = ["--results", str(results)]
    experiment.main([*common, "--report", str(report)])
    assert "holds no results" in capsys.readouterr().out
    assert not report.exists()
    experiment.main([*common, "--data", str(folder)])
    experiment.main([*common, "--report", str(report)])
    assert "RotatE, best" in (report / "queries.md").read_text("utf-8")
    assert (report / "queries.png").read_bytes().startswith(b"\x89PNG")


def test_hyperparameters_are_tuned_by_two_criteria(folder, short, tmp_path, monkeypatch):
    monkeypatch.setattr(query_tuning, "SPACE", {"lr": (0.01, 0.1), "scale": (2.0,)})
    results = tmp_path / "queries.jsonl"
    arguments = ["--data", str(folder), "--results", str(results), "--tune"]
    experiment.main(arguments)
    records = read_records(results)
    assert {record["preset"] for record in records} == set(query_tuning.CRITERIA)
    assert len(records) == 2 * 2 * len(TYPES)
    for record in records:
        assert [entry["lr"] for entry in record["tried"]] == [0.01, 0.1]
        assert all(
            0 <= entry[name] <= 1 for entry in record["tried"] for name in query_tuning.CRITERIA
        )
    monkeypatch.setattr(experiment, "run_tuning", None)
    experiment.main(arguments)
    assert read_records(results) == records


def test_splits_are_read_as_they_are_released_too(tmp_path):
    write_released(tmp_path / "550")
    data = read_queries(tmp_path, "550")
    assert data.name == "550"
    assert data.queries["valid"]["1p"].tolist() == [[2, 1], [3, 3]]
    write_compact(tmp_path / "106.npz")
    assert read_queries(tmp_path, "106").name == "106"
    with pytest.raises(DataError, match=r"neither a folder .*113, as .* nor .*113\.npz: name"):
        read_queries(tmp_path, "113")


def test_each_criterion_picks_its_own_best(folder, tmp_path, monkeypatch):
    config = query_config("best", "550", "rotate")
    trained_on, ran = [], []

    def train(own, part, seed, place):
        trained_on.append((own.model["lr"], own.model["loss_args"]["scale"], part, place))
        return own.model, 0.0

    def chosen(valid, model, own, seed):
        assert own.selection_types == ("pi", "ip")
        return None, {(0.01, 2.0): 0.9}.get((model["lr"], model["loss_args"]["scale"]), 0.1)

    def cell(place, ratio, own, seed, *, folder):
        ran.append((own.model["lr"], own.model["loss_args"]["scale"], own.selection_types))
        return [{}]

    monkeypatch.setattr(query_tuning, "train", train)
    monkeypatch.setattr(query_tuning, "choose_settings", chosen)
    monkeypatch.setattr(query_tuning, "run_cell", cell)
    monkeypatch.setattr(
        query_tuning,
        "rank_triples",
        lambda model, held, known: SimpleNamespace(
            metrics=lambda name: {"hits@10": model["lr"] + model["loss_args"]["scale"]}
        ),
    )
    records = query_tuning.run_tuning(folder, "550", config, 0, folder=tmp_path)
    assert [record["preset"] for record in records] == list(query_tuning.CRITERIA)
    assert ran == [(0.1, 4.0, ("1p",)), (0.01, 2.0, ("pi", "ip"))]
    # Each training has a folder of its own to go on from.
    assert len({place for *_, place in trained_on}) == len(trained_on) == 6
    data = read_queries(folder, "550")
    whole = len(QueryTask(data, "valid", False).completion.train.triples)
    assert all(len(part.train.triples) < whole for _, _, part, _ in trained_on)


def test_held_out_triples_are_ranked_without_the_known_ones():
    triples = torch.tensor([[0, 0, 1], [0, 0, 2], [0, 0, 3]])
    model = SheafCompletion(kge="transe", hidden_channels=2).build(14, 1)
    with torch.no_grad():
        model.node_emb.weight.copy_(torch.arange(14.0).view(-1, 1).expand(-1, 2))
        model.rel_emb.weight.zero_()
    known = TripleFilter({"train": triples}, 14, 1)
    # As tails, 1 and 2 are known and only 0 is closer: rank 2. As heads, 1 to 5 are closer and 6 is
    # as close: rank 6.5.
    assert rank_triples(model, triples[2:], known).metrics("full")["hits@10"] == 1.0
    far = torch.tensor([[0, 0, 13]])
    found = rank_triples(model, far, TripleFilter({"t": far}, 14, 1))
    assert found.metrics("full")["hits@10"] == 0.0


def test_learning_curves_look_at_validation_alone(folder, short, tmp_path, monkeypatch, capsys):
    splits = []
    rank = QueryTask.rank
    monkeypatch.setattr(
        QueryTask, "rank", lambda self, *rest: splits.append(self.split) or rank(self, *rest)
    )
    results = tmp_path / "queries.jsonl"
    arguments = ["--data", str(folder), "--results", str(results), "--curve", "32"]
    experiment.main(arguments)
    assert set(splits) == {"valid"}
    assert not results.exists()
    stored = tmp_path / "query_curves.jsonl"
    points = read_records(stored)
    assert [point["steps"] for point in points] == [2, 4, 8, 16, 24, 32]
    for point in points:
        assert (point["ratio"], point["preset"], point["length"]) == ("550", "best", 32)
        assert point["iterations"] in (1, 3)
        assert 0 <= point["micro"] <= 1
        assert 0 <= point["macro"] <= 1
    seconds = [point["seconds"] for point in points]
    assert seconds == sorted(seconds)
    assert "16 of 32" in capsys.readouterr().out
    monkeypatch.setattr(experiment, "run_curve", None)
    experiment.main(arguments)
    assert read_records(stored) == points
    for wrong in ([*arguments[:-1], "0"], [*arguments, "--tune"]):
        with pytest.raises(SystemExit):
            experiment.main(wrong)


def test_the_end_of_a_learning_curve_is_the_trained_model(folder, short, tmp_path):
    """Looking at a model does not change its training, and its best point is what a cell finds."""
    data = read_compact_queries(folder / "550.npz")
    config = replace(experiment.query_config("best", "550", "rotate"), max_steps=16)
    points = query_cell.run_curve(folder, "550", config, 0, folder=tmp_path)
    # Asked again, it goes on from the end of the training.
    assert query_cell.run_curve(folder, "550", config, 0, folder=tmp_path) == points
    valid = QueryTask(data, "valid", config.inverse_relations)
    model, _ = query_cell.train(config, valid.completion, 0)
    settings, value = choose_settings(valid, model, config, 0)
    assert points[-1]["iterations"] == settings.iterations
    assert points[-1]["micro"] == pytest.approx(value, abs=1e-6)


def test_cells_rank_entities_beside_the_energy(folder, short, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(entity_cell, "ITERATIONS", (1, 2))
    monkeypatch.setattr(entity_cell, "NEGATION", ())
    monkeypatch.setattr(entity_cell, "SELECTION", (3, 2))
    results = tmp_path / "results" / "queries.jsonl"
    arguments = ["--data", str(folder), "--entities", "--most-valid", "5", "--most-test", "6"]
    methods = [name for name in entity_cell.METHODS if "episodes" not in name]
    arguments += ["--results", str(results), "--method", *methods]
    experiment.main(arguments)
    records = read_records(results.with_name("query_entities.jsonl"))
    assert list(dict.fromkeys(r["method"] for r in records)) == methods
    assert len(records) == len(methods) * 2 * len(TYPES)
    assert all(0 < r["queries"] <= 6 and r["limit"] == 6 for r in records)
    assert all(r["standard_error"] >= 0 for r in records if r["averaging"] == "macro")
    assert not results.exists()
    assert "entities without facts" in capsys.readouterr().out
    # All methods of a ratio have one training, and nothing is run again.
    assert len({r["train_seconds"] for r in records}) == 1
    monkeypatch.setattr(experiment, "run_entities", None)
    experiment.main(arguments)
    assert read_records(results.with_name("query_entities.jsonl")) == records
