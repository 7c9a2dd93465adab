import json
import math
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from benchmarks import completion, completion_cell, training
from benchmarks.cells import CellStore, read_records
from benchmarks.presets import (
    FAMILIES,
    MODELS,
    VERSIONS,
    completion_config,
    config_hash,
)

from sheafprop.errors import DivergenceError
from sheafprop.inductive.inductive_propagation import InductivePropagation
from sheafprop.inductive.propagation_search import PropagationSearch, inference_filter
from sheafprop.ranking import evaluate
from sheafprop.training import SheafCompletion
from tests.inductive.test_rank_completion import brute_ranks
from tests.toy import toy_data

FIGURES = ("hits@1", "hits@3", "hits@10", "mrr")


def small(preset="best", model="rotate", **trainer):
    """A configuration of the presets, cut down to a toy graph."""
    config = completion_config(preset, "fb237", "v1", model)
    config["model"] |= {"hidden_channels": 8, "lr": 0.05}
    search = config["model"]["propagation"]
    config["model"]["propagation"] = search | {"iterations": [1, 2, 4]}
    config["trainer"] |= {"max_epochs": -1, "max_steps": 12} | trainer
    config["data"]["batch_size"] = 16
    return config


@pytest.fixture
def toy(monkeypatch):
    """The toy graph in place of the benchmarks."""
    data = toy_data("fully-inductive")
    monkeypatch.setattr(
        completion_cell, "build_dataset", lambda *_, **__: SimpleNamespace(load=lambda: data)
    )
    return data


@pytest.fixture
def run(toy, tmp_path):
    def call(config, preset="best", seed=0):
        return completion_cell.run_cell(config, preset, seed, folder=tmp_path / "cell")

    return call


@pytest.mark.parametrize(
    ("preset", "family", "model"),
    [
        (preset, family, model)
        for preset, family, model in product(("best", "paper"), FAMILIES, MODELS)
        if (preset, family) != ("paper", "nell")
    ],
)
def test_every_preset_is_a_complete_configuration(preset, family, model):
    for version in VERSIONS:
        config = completion_config(preset, family, version, model)
        module = SheafCompletion(**config["model"])
        assert module.hparams["kge"] == model
        assert config["data"]["name"] == f"{family}_{version}"
        assert config["trainer"]["max_epochs"] > 0 or config["trainer"]["max_steps"] > 0


def test_the_papers_numbers_are_taken_as_published():
    config = completion_config("paper", "fb237", "v1", "rotate")
    model = config["model"]
    assert (model["hidden_channels"], model["lr"], model["num_negatives"]) == (128, 0.00997, 51)
    assert model["loss_args"] == {"margin": 5.0, "adversarial_temperature": 1.0}
    assert model["propagation"]["step_size"] == [0.112]
    config = completion_config("paper", "WN18RR", "v3", "transr")
    assert config["model"]["kge_args"]["relation_channels"] == 128
    assert config["model"]["kge_args"]["entity_constraint"] == "ball"
    assert config["model"]["loss_args"] == {"label_smoothing": 0.6}
    with pytest.raises(ValueError, match="no settings for 'nell'"):
        completion_config("paper", "nell", "v1", "se")


def test_the_hash_knows_what_matters():
    config = completion_config("best", "fb237", "v1", "rotate")
    other = completion_config("best", "fb237", "v1", "rotate")
    other["trainer"]["logger"] = None
    assert config_hash(config) == config_hash(other)
    other["model"]["lr"] /= 2
    assert config_hash(config) != config_hash(other)
    assert config_hash(config) != config_hash(completion_config("best", "fb237", "v2", "rotate"))


def test_a_cell_has_a_record_for_every_protocol_and_baseline(toy, run):
    records = run(small())
    own = {r["protocol"]: r for r in records if "model" not in r}
    assert set(own) == {"full", "sampled50", "merged"}
    baselines = {r["model"] for r in records if "model" in r}
    assert baselines == {f"rotate, {start} start, not propagated" for start in ("mixed", "random")}
    assert all(0 <= record[name] <= 1 for record in records for name in FIGURES)
    assert own["full"]["configurations_tried"] == 6
    assert own["full"]["selected_on"] == "validation"
    assert own["merged"]["selected_on"] == "training graph"
    for key in ("seconds_train", "seconds_propagate", "seconds_rank", "peak_bytes"):
        assert own["full"][key] >= 0
    json.dumps(records)


def test_what_is_chosen_is_best_on_validation(toy, run):
    (full,) = (r for r in run(small()) if r["protocol"] == "full" and "model" not in r)
    best = max(hits for _, _, hits in full["validation_curve"])
    assert full["selection_hits@10"] == pytest.approx(best, abs=1e-5)
    chosen = [hits for s, k, hits in full["validation_curve"]
              if (s, k) == (full["start"], full["iterations"])]  # fmt: skip
    assert chosen == [best]


def test_a_thousand_triples_decide_for_merged_and_the_others_are_known(toy, run, monkeypatch):
    monkeypatch.setattr(completion_cell, "MOST_VALID", 3)
    monkeypatch.setattr(completion_cell, "PROTOTYPE_SHARES", (0.33,))
    ranked = []
    select = PropagationSearch.select

    def watched(self, model, data, **more):
        found = select(self, model, data, **more)
        ranked.append((data, found))
        return found

    monkeypatch.setattr(PropagationSearch, "select", watched)
    run(small())
    (_, own), (data, merged) = ranked
    assert own.available is None
    assert data.inference is toy.train
    assert not data.boundary_mask.any()
    assert (merged.count, merged.available) == (3, len(toy.train_valid))
    assert inference_filter(data).num_triples == len(
        torch.unique(torch.cat([toy.train.triples, toy.train_valid]), dim=0)
    )


def test_merged_is_chosen_on_the_training_graph_and_ranks_both_sets(toy, run, monkeypatch):
    """What the record says: settings from the training graph, ranks of validation and test."""
    chosen = []
    select = PropagationSearch.select

    def watched(self, model, data, **more):
        chosen.append((self.settings.prototype_share, data, select(self, model, data, **more)))
        return chosen[-1][-1]

    monkeypatch.setattr(PropagationSearch, "select", watched)
    trained = []
    train = completion_cell.train_model
    monkeypatch.setattr(
        completion_cell, "train_model", lambda *a, **k: trained.append(train(*a, **k)) or trained[0]
    )
    (merged,) = (r for r in run(small()) if r["protocol"] == "merged")
    (_, first, _), *others = chosen
    assert first is toy  # of full and sampled50
    assert [share for share, _, _ in others] == list(completion_cell.PROTOTYPE_SHARES)
    for _, data, _ in others:
        assert data.inference is toy.train
        assert data.valid is toy.train_valid
        assert data.test is None
    best = max((one for *_, one in others), key=lambda one: one.value)
    settings = best.settings
    for key in ("start", "iterations", "prototype_share"):
        assert merged[key] == getattr(settings, key)
    assert merged["selected_on"] == "training graph"
    assert merged["configurations_tried"] == sum(one.tried for *_, one in others)
    propagation = InductivePropagation(trained[0][0], toy, settings)
    scorer = propagation.scorer()
    result = evaluate(
        scorer.score_tails,
        scorer.score_heads,
        torch.cat([toy.test, toy.valid]),
        inference_filter(toy),
    ).metrics("merged")
    for name in FIGURES:
        assert merged[name] == pytest.approx(result[f"{name}_merged"], abs=1e-12)


def test_the_heuristic_is_a_cell_that_knows_what_is_observed(toy):
    observed = toy.inference.triples.tolist()
    seen = {(0, r, h) for h, r, _ in observed} | {(2, r, t) for _, r, t in observed}
    ranks = brute_ranks(toy, toy.test, lambda place, t: (place, t[1], t[place]) in seen)
    records = completion_cell.heuristic_records("toy", None, folder=None)
    full, sampled = records
    assert (full["protocol"], sampled["protocol"]) == ("full", "sampled50")
    hits = [1 + b + e / 2 <= 3 for b, e in ranks]
    assert full["hits@3"] == pytest.approx(sum(hits) / len(hits))
    hits = [min(max((3 - b) / (e + 1), 0), 1) for b, e in ranks]
    assert full["expected_hits@3"] == pytest.approx(sum(hits) / len(hits))
    assert {"expected_hits@10", "expected_mrr"} <= set(sampled)


def test_the_papers_preset_holds_out_a_tenth_and_no_inference_triple(toy, run, monkeypatch):
    seen = []
    fit = training.Trainer.fit

    def spy(self, module, datamodule, ckpt_path):
        seen.append(datamodule.data)
        fit(self, module, datamodule=datamodule)

    monkeypatch.setattr(training.Trainer, "fit", spy)
    config = small("paper", "transe", max_epochs=6, max_steps=-1, check_val_every_n_epoch=1)
    (full,) = (r for r in run(config, "paper") if r["protocol"] == "full" and "model" not in r)
    (part,) = seen
    assert part.valid is None
    assert part.test is None
    both = torch.cat([part.train.triples, part.train_valid])
    assert len(part.train_valid) == round(0.1 * len(toy.train.triples))
    assert {tuple(t) for t in both.tolist()} == {tuple(t) for t in toy.train.triples.tolist()}
    assert [k for k, _ in full["test_curve"]] == [1, 2, 4]
    assert full["start"] == "random"
    assert full["configurations_tried"] == 3


def test_the_reference_is_trained_on_observed_triples_for_as_many_steps(toy, run, monkeypatch):
    seen = {}
    prepare = completion_cell.prepare_reference

    def spy(module, data, **arguments):
        seen.update(arguments)
        return prepare(module, data, **arguments)

    monkeypatch.setattr(completion_cell, "prepare_reference", spy)
    records = run(small(), "reference")
    assert seen == {"max_epochs": -1, "max_steps": 12, "batch_size": 16}
    assert {r["protocol"] for r in records} == {"full", "sampled50"}


def test_a_reference_that_was_killed_goes_on_to_the_same_figures(toy, run, tmp_path, monkeypatch):
    whole = completion_cell.run_cell(small(), "reference", 0, folder=tmp_path / "whole")
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)
    step, steps = SheafCompletion.training_step, []

    def killed(self, batch, batch_idx):
        steps.append(self.global_step)
        if len(steps) == 7:
            raise KeyboardInterrupt
        return step(self, batch, batch_idx)

    monkeypatch.setattr(SheafCompletion, "training_step", killed)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        run(small(), "reference")
    begun = len(steps)
    found = run(small(), "reference")
    assert steps[begun] > 0  # not from the beginning
    for record, expected in zip(found, whole, strict=True):
        assert {name: record[name] for name in FIGURES} == {n: expected[n] for n in FIGURES}


def test_a_cell_that_is_run_again_replaces_its_baselines_too(tmp_path):
    store = CellStore(tmp_path / "completion.jsonl", completion.KEYS)
    cell = {"dataset": "fb237_v1", "model": "rotate", "preset": "best", "seed": 0}
    cell["config_hash"] = "abc"
    found = [{"protocol": "full"}, {"protocol": "full", "model": "edge-type heuristic"}]
    other = cell | {"model": "transe", "config_hash": "def"}
    for _ in range(2):
        store.put(cell, found)
    store.put(other, found)
    assert len(store.records()) == 4
    assert store.holds(cell)
    assert store.holds(other)


def test_a_score_that_is_no_number_is_an_error():
    with pytest.raises(ArithmeticError, match="not finite"):
        completion_cell.figures(dict.fromkeys(FIGURES, math.nan), "full")


def stored():
    """The records of a cell, without the names of the cell."""
    return [
        {"protocol": "full", "iterations": 2, "start": "mixed", "peak_bytes": 1}
        | {"validation_curve": [["mixed", 1, 0.25], ["mixed", 2, 0.5]]}
        | {"seconds_train": 1.0, "selection_hits@10": 0.5}
        | dict.fromkeys(FIGURES, 0.5)
    ]


@pytest.fixture
def at_hand(at_once, monkeypatch):
    dataset = SimpleNamespace(check=lambda: None)
    monkeypatch.setattr(completion, "build_dataset", lambda *_, **__: dataset)
    monkeypatch.setattr(completion, "heuristic_records", lambda *_, **__: [])
    monkeypatch.setattr(completion, "proximity_records", lambda *_, **__: [])


def test_an_interrupted_run_goes_on_and_reports(at_hand, tmp_path, monkeypatch, capsys):
    path = tmp_path / "completion.jsonl"
    done = []

    def cell(config, preset, seed, *_, **__):
        done.append(seed)
        if seed == 1 and len(done) < 3:
            raise KeyboardInterrupt
        return stored()

    monkeypatch.setattr(completion, "run_cell", cell)
    words = ["--results", str(path), "--seeds", "0", "1", "2"]
    with pytest.raises(SystemExit) as stop:
        completion.main(words)
    assert stop.value.code == 130
    assert "finished cells are kept" in capsys.readouterr().err
    completion.main(words)
    assert done == [0, 1, 1, 2]
    assert [r["seed"] for r in read_records(path)] == [0, 1, 2]
    assert capsys.readouterr().out.count("Hits@10 0.500") == 3
    completion.main([*words, "--report", str(tmp_path / "report")])
    assert "50.0 ± 0.0" in capsys.readouterr().out
    assert (tmp_path / "report" / "hits_by_iteration.png").stat().st_size > 1000
    assert (tmp_path / "report" / "hits_by_version.png").stat().st_size > 1000


def test_a_cell_that_fails_does_not_stop_the_others(at_hand, tmp_path, monkeypatch, capsys):
    path = tmp_path / "completion.jsonl"

    def cell(config, preset, seed, *_, **__):
        if seed == 1:
            raise DivergenceError("the loss became nan")
        return stored()

    monkeypatch.setattr(completion, "run_cell", cell)
    with pytest.raises(SystemExit) as stop:
        completion.main(["--results", str(path), "--seeds", "0", "1", "2"])
    assert stop.value.code == 1
    printed = capsys.readouterr().err
    assert "1 of 5 cells failed: fb237_v1 rotate best 1: the loss became nan" in printed
    assert [r["seed"] for r in read_records(path)] == [0, 2]


def test_what_is_named_twice_is_run_once():
    twice = completion.cells(
        ["fb237", "fb237"], ["v1", "v1"], ["se", "se"], ["best", "best"], [0, 1, 0]
    )
    assert [cell.key["seed"] for cell in twice] == [0, 1]


def test_what_the_paper_has_no_settings_for_is_reported(at_hand, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(completion, "run_cell", lambda *_, **__: stored())
    words = ["--preset", "paper", "--family", "nell", "fb237"]
    completion.main([*words, "--results", str(tmp_path / "completion.jsonl")])
    printed = capsys.readouterr()
    assert "the paper has no settings for NELL-995: excluded" in printed.err
    assert "fb237_v1" in printed.out
