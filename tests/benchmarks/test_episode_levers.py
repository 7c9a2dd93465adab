import json
import math
from dataclasses import replace

import pytest
import torch
from benchmarks import episode_levers
from benchmarks.episode_levers import (
    LEVERS,
    _values,
    lever_table,
    paired_gain,
    run_levers,
)
from benchmarks.proximity_weights import score_hidden

from sheafprop.inductive.episode_model import EpisodeSettings
from sheafprop.inductive.episode_scorer import EpisodeScorer
from sheafprop.inductive.proximity_scorer import LogProximity, ProximityScorer, ProximitySettings
from sheafprop.ranking import TripleFilter, evaluate
from tests.benchmarks.test_completion import small
from tests.benchmarks.test_episode_search import poisoned
from tests.inductive.episode_cases import random_triples, small_model


def test_the_error_is_clustered_by_triple():
    generator = torch.Generator().manual_seed(0)
    difference = torch.randn(40, generator=generator, dtype=torch.float64)
    triple = torch.randint(12, (40,), generator=generator)
    mean = float(difference.mean())
    squares = [float((difference[triple == c] - mean).sum()) ** 2 for c in range(12)]
    found = paired_gain(difference, triple)
    assert found == pytest.approx((mean, math.sqrt(sum(squares)) / 40))
    # Queries that repeat a triple say nothing new.
    again = paired_gain(difference.repeat(3), triple.repeat(3))
    assert again == pytest.approx(found)


@pytest.mark.parametrize("loops", [[True, True, True], [False, True, False]])
def test_values_are_those_of_the_ranking(loops):
    triples, walk = random_triples(count=40), ProximitySettings()
    model, may_loop = small_model("rotate", torch.float32), torch.tensor(loops)
    part = score_hidden(model, triples, walk, share=0.4, seed=1)
    hidden = torch.unique(part.triple)
    observed = triples[~torch.isin(torch.arange(len(triples)), hidden)]
    scorer = EpisodeScorer(model, observed, [str(i) for i in range(9)], 1)
    near = LogProximity.of_settings(walk, observed, 9)
    both = ProximityScorer(scorer, near, 0.7, may_loop=may_loop)
    known = TripleFilter({"all": triples}, 9, 3)
    result = evaluate(both.score_tails, both.score_heads, triples[hidden], known)
    metrics = result.metrics("merged")
    mrr, hits = _values(part, 0.7, may_loop).mean(0).tolist()
    assert mrr == pytest.approx(metrics["mrr_merged"])
    assert hits == pytest.approx(metrics["hits@10_merged"])
    weights = torch.full((6,), 0.7)
    assert torch.equal(_values(part, weights, may_loop), _values(part, 0.7, may_loop))


def test_every_lever_is_judged_on_the_training_graph_alone(tmp_path, monkeypatch):
    _, blind = poisoned()
    monkeypatch.setattr(episode_levers, "load_data", lambda *_: blind)
    config = small()
    config["model"] |= {
        "episodes": {"num_steps": 2, "batch_size": 8, "num_random": 2},
        "proximity": {"weight": 0.4},
    }
    records = run_levers(config, 0, LEVERS, folder=tmp_path)
    json.dumps(records)
    names = [row["setting"] for row in records]
    assert names[0] == "preset"
    assert len(set(names)) == len(names)
    assert {name.rpartition(", ")[2] for name in names[1:]} == set(LEVERS)
    assert (records[0]["gain"], records[0]["error"]) == (0, 0)
    whole = {row["setting"]: row["hits@10"] + row["mrr"] for row in records}
    for row in records:
        expected = whole[row["setting"]] - whole[row["against"]]
        assert row["gain"] == pytest.approx(expected, abs=1e-6)
    rows = [{"dataset": "fb237_v2", "split": 0, **row} for row in records]
    assert len(lever_table(rows).splitlines()) == 2 + len(names) - 1


def test_the_table_weighs_families_alike():
    rows = [
        {"dataset": name, "split": split, "setting": "a", "gain": gain, "error": error}
        for name, split, gain, error in [
            ("x_v2", 0, 0.01, 0.003),
            ("x_v3", 0, 0.9, 0.004),  # measured again below
            ("x_v3", 1, 0.02, 0.004),
            ("x_v3", 0, 0.04, 0.004),
            ("y_v2", 0, 0.0, 0.008),
        ]
    ]
    (line,) = lever_table(rows).splitlines()[2:]
    assert line == "| a | +1.00 ± 0.41 | +2.00 ± 0.21 | +0.00 ± 0.80 | 4 |"


def test_levers_change_their_own_settings_alone(tmp_path, monkeypatch):
    _, blind = poisoned()
    monkeypatch.setattr(episode_levers, "load_data", lambda *_: blind)
    seen, train = [], episode_levers.train_episodes

    def spy(kge, triples, settings, *args, **kwargs):
        seen.append(settings)
        return train(kge, triples, settings, *args, **kwargs)

    monkeypatch.setattr(episode_levers, "train_episodes", spy)
    base = EpisodeSettings(
        num_steps=2, batch_size=8, num_random=2, observed="number", count_weight=0.2
    )
    base = replace(base, rank_isolated=True, hidden_share=0.4)
    config = small()
    config["model"] |= {"episodes": base.to_dict(), "proximity": {"weight": 0.4}}
    run_levers(config, 0, ["observed answers", "connected triples"], folder=tmp_path)
    counted = [("number", 1.0), ("number", 2.0), ("frequency", 0.5)]
    assert seen == [
        base,
        *(replace(base, observed=kind, count_weight=start) for kind, start in counted),
        *(replace(base, rank_isolated=False, hidden_share=share) for share in (0.2, 0.3, 0.5)),
    ]


def test_levers_change_a_preset_that_ranks_isolated_entities_unless_another_is_named(
    tmp_path, monkeypatch
):
    found = []

    def run_none(cells, *_, **__):
        found.extend(cell.arguments[0]["model"]["episodes"] for cell in cells)

    monkeypatch.setattr(episode_levers, "run_cells", run_none)
    options = ["--family", "nell", "--version", "v2", "--results", str(tmp_path / "r.jsonl")]
    episode_levers.main(options)
    episode_levers.main([*options, "--preset", "numbers"])
    assert [(one["rank_isolated"], one["observed"]) for one in found] == [
        (True, "frequency"),
        (True, "number"),
    ]
