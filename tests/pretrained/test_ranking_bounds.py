"""Rankings and predictions within bounds of memory, whatever is held at once."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sheafprop.inductive import section_scorer
from sheafprop.kernels import pairwise_squares
from sheafprop.kge import KGE_REGISTRY
from tests.pretrained.models import FACTS, SETTINGS, sheaf_model


def test_many_candidates_under_matrices_take_a_bounded_part_of_memory():
    words = [sys.executable, "-m", "tests.pretrained.ranked_within_bounds"]
    root = Path(__file__).parents[2]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, check=True)
    # All scores and mapped candidates at once would take 512 x 20,000 x 64 numbers.
    assert int(done.stdout) < 500 * 2**20


@pytest.mark.parametrize("name", sorted(KGE_REGISTRY))
@pytest.mark.parametrize("propagation", ["exact", SETTINGS])
def test_what_is_held_at_once_changes_no_rank_and_no_prediction(monkeypatch, name, propagation):
    triples = [("n0", "far", "a3"), ("a2", "skip", "n1"), ("a4", "next", "a5"), ("n2", "far", "n0")]
    triples += [(f"a{i}", "next", f"a{i + 1}") for i in range(11)]
    heads = [head for head, _, _ in triples]
    seen = []
    for held in (None, 1, 7 * 15, 10**9):
        if held is not None:
            monkeypatch.setattr(section_scorer, "_SCORES", held)
            monkeypatch.setattr(pairwise_squares, "_CHUNK_NUMBERS", held)
        model = sheaf_model(name).extend(FACTS, propagation=propagation)
        result = model.rank(triples)
        frame = model.predict_tails(heads, "next", 4)
        seen.append((result, frame, model._state.scorer.block_size()))
    assert seen[1][2] == 1
    assert seen[2][2] == 7
    for result, frame, _ in seen[1:]:
        for side in ("head", "tail"):
            assert torch.equal(result.ranks(side), seen[0][0].ranks(side))
        assert list(frame["tail"]) == list(seen[0][1]["tail"])
        assert frame["score"].to_numpy() == pytest.approx(seen[0][1]["score"].to_numpy(), abs=1e-9)
