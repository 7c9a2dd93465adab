from dataclasses import replace
from functools import partial

import pytest
import torch
from benchmarks import episode_search
from benchmarks.episode_search import CENTRE, CHANGES, split_training_graph, table

from sheafprop.inductive.episode_model import EpisodeSettings
from tests.benchmarks.test_completion import small
from tests.toy import toy_data


class Poison:
    """Whatever is asked of it is a leak."""

    def __getattr__(self, name):
        raise AssertionError(f"the search looked at {name}")


def poisoned():
    """The training graph of the toy data, with nothing else to look at."""
    data = toy_data("fully-inductive")
    blind = object.__new__(type(data))
    for name in ("inference", "valid", "test", "train_valid", "boundary_mask", "boundary_source"):
        object.__setattr__(blind, name, Poison())
    object.__setattr__(blind, "name", data.name)
    object.__setattr__(blind, "train", data.train)
    object.__setattr__(blind, "mode", data.mode)
    return data, blind


@pytest.mark.parametrize("seed", [0, 1])
def test_the_parts_share_no_entity_and_nothing_else_is_looked_at(seed):
    data, blind = poisoned()
    part = split_training_graph(blind, seed)
    train, other = set(part.train.entities.labels), set(part.inference.entities.labels)
    assert not train & other
    assert train | other <= set(data.train.entities.labels)

    def labels(triples, graph):
        return {
            (graph.entities.labels[h], r, graph.entities.labels[t]) for h, r, t in triples.tolist()
        }

    held = labels(part.valid, part.inference)
    observed = labels(part.inference.triples, part.inference)
    whole = {
        (data.train.entities.labels[h], r, data.train.entities.labels[t])
        for h, r, t in data.train.triples.tolist()
    }
    assert not held & observed
    assert held | observed | labels(part.train.triples, part.train) <= whole


def test_every_setting_of_the_grid_is_one():
    for family, changes in CHANGES.items():
        for change in changes.values():
            EpisodeSettings(**(CENTRE[family] | change))


def test_a_search_that_was_interrupted_goes_on(tmp_path, monkeypatch):
    _, blind = poisoned()
    monkeypatch.setattr(episode_search, "load_data", lambda *_: blind)
    short = {"num_steps": 2, "batch_size": 8, "num_random": 2}
    monkeypatch.setitem(CENTRE, "fb237", short)
    settings = {"centre": {}, "hidden": {"hidden_share": 0.3}}
    config = small()
    folder = tmp_path / "cell"
    folder.mkdir()
    whole = episode_search.run_search(config, "fb237", 0, settings, folder=folder)
    assert {r["setting"] for r in whole} == {"propagation", *settings}
    (folder / "hidden.json").unlink()
    calls = []
    train = episode_search.train_episodes
    monkeypatch.setattr(
        episode_search, "train_episodes", lambda *a: (calls.append(a[2]), train(*a))[1]
    )
    again = episode_search.run_search(config, "fb237", 0, settings, folder=folder)
    assert [one.hidden_share for one in calls] == [0.3]

    def figures(rows):
        return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]

    assert figures(again) == figures(whole)
    for base in ("short", None):
        run = partial(episode_search.run_search, base=base)
        rows = run(config, "fb237", 0, {"centre": {}}, folder=folder)
        assert {r["setting"] for r in rows} == {"centre"} | ({base} if base else set())


def test_the_table_takes_the_best_weight_of_each_setting():
    rows = [
        {"dataset": "fb237_v1", "split": s, "setting": n, "weight": w, "hits@10": h, "mrr": 0.1}
        for s in (0, 1)
        for n, w, h in [("a", 0.0, 0.2), ("a", 0.4, 0.5), ("b", 0.0, 0.3), ("b", 0.4, 0.1)]
    ]
    lines = table([*rows, replaced(rows[0], setting="half")]).splitlines()
    assert lines[0] == "fb237: 2 splits"
    assert [line.split()[0] for line in lines[1:]] == ["a", "b"]
    assert "weight 0.4: 50.00" in lines[1]
    assert "weight 0.0: 30.00" in lines[2]


def replaced(row, **changes):
    return row | changes


def test_data_of_the_toy_is_whole():
    """The guard above would say nothing if the toy had no held-out triples."""
    data = toy_data("fully-inductive")
    assert len(data.valid)
    assert len(data.test)
    assert isinstance(replace(data).train.triples, torch.Tensor)


def test_the_search_sees_former_settings_unless_a_change_says_otherwise():
    for family, changes in CHANGES.items():
        for name, change in changes.items():
            found = EpisodeSettings(**(CENTRE[family] | change))
            connected = name.startswith("connected")
            frequency = name == "frequency, walk" or (connected and family != "WN18RR")
            start = ("frequency", 0.5) if frequency else ("number", 0.0)
            assert (found.observed, found.count_weight) == start
            assert found.walk_steps == (60 if frequency or name.endswith("walk") else 0)
            assert found.rank_isolated != connected


def test_options_of_the_base_model_are_in_the_name_and_in_the_configuration(tmp_path, monkeypatch):
    found = {}

    def keep(cells, *_, **__):
        for cell in cells:
            config, _, _, settings, _ = cell.arguments
            found[cell.key["config_hash"]] = (
                config["model"].get("hidden_channels"),
                config["trainer"]["max_steps"],
                set(settings),
                cell.function.keywords["base"],
            )

    monkeypatch.setattr(episode_search, "run_cells", keep)
    common = ["--family", "nell", "--version", "v2", "--splits", "0", "--settings", "k 2"]
    common += ["--results", str(tmp_path / "search.jsonl")]
    for more in (
        [],
        ["--width", "12"],
        ["--base-steps", "7"],
        ["--width", "12", "--base-steps", "7"],
    ):
        episode_search.main([*common, *more])
    plain, wide, short, both = found.values()
    steps = plain[1]
    assert plain[2:] == ({"k 2"}, "propagation")
    assert wide == (12, steps, {"k 2, d 12"}, None)
    assert short == (plain[0], 7, {"k 2, base 7"}, "propagation, base 7")
    assert both == (12, 7, {"k 2, d 12, base 7"}, None)
