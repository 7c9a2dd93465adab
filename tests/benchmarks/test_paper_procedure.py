import json
from types import SimpleNamespace

import pytest
from benchmarks import completion_cell, paper_curve
from benchmarks import paper_procedure as procedure
from benchmarks.cells import read_records
from benchmarks.measuring import current_commit
from benchmarks.paper_training import ProjectedTransR
from benchmarks.tables.paper_tables import OURS, THEIRS

from sheafprop.report.tables import NOTHING
from tests.benchmarks.test_completion import small
from tests.toy import toy_data

VARIANTS = [(model, name) for model, names in procedure.TRAINED.items() for name in names]


@pytest.fixture
def toy(monkeypatch):
    data = toy_data("fully-inductive")
    monkeypatch.setattr(
        completion_cell, "build_dataset", lambda *_, **__: SimpleNamespace(load=lambda: data)
    )
    monkeypatch.setattr(procedure, "_COUNTS", (1, 4))
    return data


def config_of(model):
    config = small("paper", model, max_epochs=4, max_steps=-1, check_val_every_n_epoch=1)
    if model == "transr":
        config["model"]["kge_args"] |= {"relation_channels": 4}
    return config


def run(model, name, tmp_path, monkeypatch, iterations=3):
    monkeypatch.setattr(procedure, "published_iterations", lambda config: iterations)
    monkeypatch.setitem(procedure.OTHER_RUN, ("fb237_v1", "transe"),
                        {"lr": 0.02, "step_size": 0.5, "iterations": iterations})  # fmt: skip
    return procedure.run_variant(config_of(model), name, 0, folder=tmp_path)


@pytest.mark.parametrize(("model", "name"), VARIANTS)
def test_every_variant_is_trained_and_ranked_every_way(toy, model, name, tmp_path, monkeypatch):
    records = run(model, name, tmp_path, monkeypatch)
    json.dumps(records)
    ways = {(r["step"], r["start"], r["evaluated"]) for r in records}
    assert {OURS[1:], THEIRS[1:]} <= ways
    assert len(ways) == len(records) == 4 * 7
    assert all(0 <= r["hits@10"] <= 1 for r in records)
    assert all(r["leak"] == ("on test" in r["evaluated"]) for r in records)
    given = [r for r in records if r["evaluated"] == THEIRS[3]]
    assert {r["iterations"] for r in given} == {3}


def test_iterations_are_chosen_on_validation_unless_marked_as_a_leak(toy, tmp_path, monkeypatch):
    records = run("transe", "as we do", tmp_path, monkeypatch)
    for step, start in {(r["step"], r["start"]) for r in records}:
        of = {r["evaluated"]: r for r in records if (r["step"], r["start"]) == (step, start)}
        assert of["iterations chosen on test"]["hits@10"] >= of["as we do"]["hits@10"]
        assert of["optimistic ties"]["hits@10"] >= of["as we do"]["hits@10"]
        assert of["validation triples not filtered"]["hits@10"] <= of["as we do"]["hits@10"]
        sides = of["tails alone"]["hits@10"] + of["heads alone"]["hits@10"]
        assert sides / 2 == pytest.approx(of["as we do"]["hits@10"])


class Fixed:
    """Ranks with given shares among the first ten on either side."""

    def __init__(self, tail, head):
        self.values = {"tail/hits@10": tail, "head/hits@10": head, "hits@10": (tail + head) / 2}

    def metrics(self, protocol, ties="realistic"):
        return self.values | {"hits@10_optimistic": self.values["hits@10"]}


def test_test_triples_choose_nothing_but_the_leak():
    ranked = object.__new__(procedure.Ranked)
    ranked.valid = {1: Fixed(0.5, 0.5), 2: Fixed(1.0, 0.5), 4: Fixed(1.0, 0.5)}
    ranked.test = {1: Fixed(1.0, 1.0), 2: Fixed(1.0, 0.5), 4: Fixed(0.5, 0.5)}
    ranked.test_unfiltered = dict.fromkeys((1, 2, 4), Fixed(0.5, 0.5))
    found = {r["evaluated"]: (r["iterations"], r["hits@10"], r["leak"]) for r in ranked.records(4)}
    assert found == {
        "as we do": (2, 0.75, False),
        "tails alone": (2, 1.0, False),
        "heads alone": (2, 0.5, False),
        "optimistic ties": (2, 0.75, False),
        "validation triples not filtered": (2, 0.5, False),
        "iterations chosen on test": (1, 1.0, True),
        "the paper's number of iterations": (4, 0.5, False),
    }


def test_all_triples_are_trained_on_where_nothing_is_held_out(toy, tmp_path, monkeypatch):
    seen = []

    def train(model, triples, watched, **settings):
        seen.append((type(model), len(triples), len(watched), settings["pairs"]))
        return {}

    monkeypatch.setattr(procedure, "train_on_pairs", train)
    for name in ("as we do", "released"):
        variant = procedure.TRAINED["transr"][name]
        procedure.train(config_of("transr"), variant, toy, 0, tmp_path)
    count = len(toy.train.triples)
    (kind, trained, watched, pairs), other = seen
    assert (kind.__name__, pairs, trained + watched) == ("TransR", False, count)
    assert other == (ProjectedTransR, count, count, True)


def test_seconds_of_a_resumed_training_are_those_of_all_its_parts(toy, tmp_path, monkeypatch):
    train = procedure.train_until_it_stalls
    monkeypatch.setattr(procedure, "train_until_it_stalls", lambda *a: (train(*a)[0], 4321.06))
    records = run("rotate", "as we do", tmp_path, monkeypatch)
    assert {r["seconds_train"] for r in records} == {4321.1}


def test_cells_of_different_variants_differ_in_their_hash():
    found = procedure.cells(["fb237_v1", "fb237_v3"], "transe", [], [0, 1])
    assert len(found) == 2 * (5 + 4)  # the other stored settings are those of v1 and v2
    assert len({cell.key["config_hash"] for cell in found}) == 9
    (one,) = procedure.cells(["WN18RR_v2"], "rotate", ["released"], [0])
    assert one.key["trained"] == "released"


def test_a_training_that_ends_early_is_another_cell_and_says_so(toy, tmp_path, monkeypatch):
    (whole,) = procedure.cells(["WN18RR_v2"], "rotate", ["as we do"], [0])
    (short,) = procedure.cells(["WN18RR_v2"], "rotate", ["as we do"], [0], epochs=3)
    assert short.key["trained"] == "as we do, 3 epochs"
    assert short.key["config_hash"] != whole.key["config_hash"]
    config, name, *_ = short.arguments
    assert (name, config["trainer"]["max_epochs"]) == ("as we do", 3)
    assert whole.arguments[0]["trainer"]["max_epochs"] == 500


def test_a_step_size_that_oscillates_is_compared_with_a_smaller_one(toy, tmp_path, monkeypatch):
    monkeypatch.setattr(procedure, "published_iterations", lambda config: 3)
    sizes = []

    def trajectory(model, data, start, step_size, counts):
        sizes.append(step_size)
        return iter([(3, start.unsqueeze(1))])

    for name in ("text_trajectory", "released_trajectory"):
        monkeypatch.setattr(procedure, name, trajectory)
    found = {}
    for size in (1.0, 0.8):
        config = config_of("rotate")
        config["model"]["propagation"]["step_size"] = [size]
        records = procedure.run_variant(config, "as we do", 0, folder=tmp_path / str(size))
        found[size] = {r["step"] for r in records}
    assert found[1.0] - found[0.8] == {"step of the text, h = 0.9"}
    assert sizes == [1.0] * 4 + [0.9] * 2 + [0.8] * 4


def test_the_paper_prints_these_numbers_of_iterations():
    (cell,) = procedure.cells(["WN18RR_v4"], "transr", ["released"], [0])
    assert procedure.published_iterations(cell.arguments[0]) == 555


def test_the_report_shows_trainings_that_end_early(tmp_path, capsys):
    path = tmp_path / "p.jsonl"
    record = dict(
        zip(procedure.KEYS[:4], ("WN18RR_v4", "transr", 0, "released, 7 epochs"), strict=True)
    )
    record |= dict(zip(("step", "start", "evaluated"), THEIRS[1:], strict=True))
    record |= {"config_hash": "0", "iterations": 555, "hits@10": 0.25}
    path.write_text(json.dumps(record) + "\n")
    procedure.main(["--report", "--results", str(path)])
    row = "WN18RR_v4 | TransR | released, 7 epochs | released step | normal start"
    assert f"| {row} | {NOTHING} | 25.0 (555) | 5.1 |" in capsys.readouterr().out


def test_a_curve_goes_on_where_it_was(toy, tmp_path, monkeypatch):
    monkeypatch.setattr(paper_curve, "COUNTS", (1, 2))
    monkeypatch.setattr("benchmarks.training.CHECKPOINT_SECONDS", 0.0)
    config = config_of("se")
    whole, parts = tmp_path / "whole" / "c.jsonl", tmp_path / "parts" / "c.jsonl"
    paper_curve.follow_training(config, 0, 4, 2, whole)
    paper_curve.follow_training(config, 0, 2, 2, parts)
    assert [r["epochs"] for r in read_records(parts)] == [2]
    paper_curve.follow_training(config, 0, 4, 2, parts)
    points = [read_records(path) for path in (whole, parts)]
    for point in (*points[0], *points[1]):
        assert point.pop("seconds_train") >= 0
        assert point["commit"] == current_commit()
    assert points[0] == points[1]
    assert [r["epochs"] for r in points[0]] == [2, 4]


def test_the_validation_triples_of_the_curve_have_no_part_in_training(toy, tmp_path, monkeypatch):
    monkeypatch.setattr(paper_curve, "COUNTS", (1,))
    seen = []

    def train(module, config, part, **_):
        seen.append(part)

    monkeypatch.setattr(paper_curve, "train_model", train)
    paper_curve.follow_training(config_of("se"), 0, 2, 1, tmp_path / "c.jsonl")
    (part,) = seen
    assert part.valid is part.test is part.train_valid is None
    assert len(part.train.triples) < len(toy.train.triples)
    known = {tuple(triple) for triple in toy.train.triples.tolist()}
    assert {tuple(triple) for triple in part.train.triples.tolist()} < known
