import json

import numpy as np
import pytest
from benchmarks import default_benchmark
from benchmarks.cells import RESULTS
from benchmarks.default_benchmark import DATASETS, KEYS, cells, run_cell

from sheafprop.data import build_dataset
from sheafprop.report.tables import NOTHING
from tests.toy import parts, ring, toy_data
from tests.toy import write_folder as write_toy


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setattr(
        default_benchmark, "write_folder", lambda folder, *_: write_toy(folder, "fully-inductive")
    )
    small = ["--model.hidden_channels=4", "--trainer.max_steps=3", "--trainer.max_epochs=-1"]
    small += ["--model.propagation.iterations=[1,3]", "--model.propagation.settings.num_random=1"]
    command = default_benchmark.sheafprop
    monkeypatch.setattr(
        default_benchmark,
        "sheafprop",
        lambda words: command(words + small if words[0] == "fit" else words),
    )
    return parts("fully-inductive")


def test_each_setting_gives_a_record(tmp_path, toy):
    found = {}
    for cell in cells(["fb237_v4"], list(default_benchmark.SETTINGS), [3]):
        folder = tmp_path / str(len(found))
        (found[cell.key["settings"]],) = run_cell(*cell.arguments, folder=folder)
        assert set(cell.key) == set(KEYS)
    json.dumps(found)
    assert {name: row["selected_on"] for name, row in found.items()} == {
        "default": "validation",
        "default without validation": "training graph",
        "default with episodes": "validation",
        "default without frequency": "validation",
        "default without proximity": "validation",
        "preset": "validation",
        "preset with episodes": "validation",
    }
    with_proximity = {name for name, row in found.items() if row["proximity"] is not None}
    names = ("", " without validation", " with episodes", " without frequency")
    assert with_proximity == {f"default{name}" for name in names}
    before = found["default without frequency"]["proximity"]
    assert (before["frequency"], before["teleport"]) == (0.0, 0.15)
    for row in found.values():
        assert 0 <= row["mrr"] <= row["hits@10"] <= 1
        assert 0 < row["seconds_train"] <= row["seconds_fit"]
    ranked = {name for name, row in found.items() if "merged_mrr" in row}
    assert ranked == {"default without validation"}
    merged = found["default without validation"]
    assert merged["merged_mrr"] != merged["mrr"]
    assert 0 <= merged["merged_mrr"] <= merged["merged_hits@10"] <= 1
    assert found["default"]["validation_triples"] == len(toy["valid"])
    assert found["default without validation"]["validation_triples"] == len(toy["train_valid"])


def test_the_default_is_compared_with_the_preset_on_the_seeds_of_both():
    def row(settings, seed, hits, train):
        values = {"hits@10": hits, "mrr": 0.5, "seconds_train": train, "seconds_fit": 9.0}
        return {
            "dataset": "nell_v4",
            "settings": settings,
            "seed": seed,
            "seconds_test": 1,
        } | values

    rows = [row("preset", 0, 0.6, 30.0), row("default", 0, 0.61, 10.0), row("default", 1, 0.2, 2.0)]
    rows.append(row("preset with episodes", 1, 0.7, 8.0))
    lines = default_benchmark.default_table(rows).splitlines()[2:]
    assert [line.split(" | ")[1:9] for line in lines] == [
        ["default", "2", "40.5 (0.500)", "+1.0", "-50.0", "6 s", "0.33", "0.25"],
        ["preset", "1", "60.0 (0.500)", NOTHING, NOTHING, "30 s", NOTHING, NOTHING],
        ["preset with episodes", "1", "70.0 (0.500)", NOTHING, NOTHING, "8 s", NOTHING, NOTHING],
    ]


def test_other_benchmarks_have_the_setting_without_validation_alone():
    names = ["nell_v2", "nell_v4"]
    found = [cell.key for cell in cells(names, list(default_benchmark.SETTINGS), [0])]
    assert [key["settings"] for key in found if key["dataset"] == "nell_v2"] == [
        "default without validation"
    ]
    assert len([key for key in found if key["dataset"] == "nell_v4"]) == len(
        default_benchmark.SETTINGS
    )


def test_the_table_of_merged_figures_has_means_over_seeds():
    def row(dataset, seed, hits, **more):
        values = {"merged_hits@10": hits, "merged_mrr": hits / 2, "seconds_train": 9.0 + seed}
        key = {"dataset": dataset, "settings": "default without validation", "seed": seed}
        return key | values | more

    rows = [row("nell_v2", 0, 0.6), row("nell_v2", 3, 0.7), row("WN18RR_v1", 0, 0.8)]
    rows.append(row("nell_v4", 0, 0.1, settings="default"))
    other = row("codex-s", 0, 0.9)
    del other["merged_mrr"]
    lines = default_benchmark.merged_table([*rows, other]).splitlines()[2:]
    empty = NOTHING
    assert [line.strip("| ").split(" | ") for line in lines] == [
        ["fb237", *[empty] * 5],
        ["WN18RR", "80.0 (0.400)", *[empty] * 3, "9 s"],
        ["nell", empty, "65.0 (0.325)", empty, empty, "12 s"],
    ]


def test_a_preset_with_episodes_has_the_weight_of_its_data_set():
    options = default_benchmark.options_of
    assert options("nell_v4", "preset with episodes") == {"proximity.weight": 0.8}
    assert options("fb237_v4", "preset with episodes") == {"proximity.weight": 0.3}
    assert options("codex-s", "preset with episodes") == {}
    assert options("nell_v4", "preset") == options("nell_v4", "default") == {}


@pytest.mark.parametrize("what", ["proximity", "frequency"])
def test_results_of_former_defaults_keep_their_hash(what):
    (cell,) = cells(["codex-s"], [f"default without {what}"], [0])
    lines = (RESULTS / "defaults.jsonl").read_text("utf-8").splitlines()
    stored = [row for row in map(json.loads, lines) if row["settings"] == cell.key["settings"]]
    assert {row["config_hash"] for row in stored} == {cell.key["config_hash"]}


@pytest.mark.parametrize("dataset", ["codex-s", "FB15k-237"])
def test_whole_graphs_are_split_by_the_command(tmp_path, monkeypatch, dataset):
    monkeypatch.setitem(default_benchmark._SPLIT, "FB15k-237", ("--max-triples", "290"))
    triples = ring("a", 100)
    monkeypatch.setattr(
        default_benchmark,
        "read_parts",
        lambda _: [np.array(part, dtype=object) for part in (triples[:200], triples[200:])],
    )
    mode = DATASETS[dataset][0]
    default_benchmark.write_folder(tmp_path / "ring", dataset)
    record = json.loads((tmp_path / "ring" / "split.json").read_text("utf-8"))
    data = build_dataset("folder", root=str(tmp_path / "ring"), mode=mode).load()
    sizes = [len(part) for part in (data.train_valid, data.valid, data.test)]
    assert min(sizes) > 0
    assert record["mode"] == mode
    if mode == "semi-inductive":
        assert int((~data.boundary_mask).sum()) == 10
        assert record["sample"]["triples"] == len(triples)
    else:
        assert 250 < record["sample"]["triples"] <= 290


def test_other_data_sets_are_written_as_they_are(tmp_path, monkeypatch):
    data = toy_data("fully-inductive")
    monkeypatch.setattr(
        default_benchmark,
        "build_dataset",
        lambda *_, **__: type("Loads", (), {"load": lambda _: data})(),
    )
    default_benchmark.write_folder(tmp_path / "fb237_v4", "fb237_v4")
    write_toy(tmp_path / "toy", "fully-inductive")
    for file in (tmp_path / "toy").iterdir():
        found = (tmp_path / "fb237_v4" / file.name).read_text("utf-8").splitlines()
        assert sorted(found) == sorted(file.read_text("utf-8").splitlines())
