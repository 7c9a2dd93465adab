import pytest
import torch

from sheafprop.data import assemble
from tests.toy import parts
from tests.training.test_sheaf_completion import fit


def test_transductive_ranks_are_filtered_by_training_and_validation_triples(tmp_path):
    """Several validation triples answer one query, and count as no mistake of each other."""
    label_triples = parts("semi-inductive") | {
        "train_valid": [("a0", "next", f"a{i}") for i in (4, 5, 6, 8, 9, 10, 12, 13)]
    }
    del label_triples["valid"], label_triples["test"]
    data = assemble("ring", "semi-inductive", **label_triples)
    model, run = fit(tmp_path, 1, data)
    x = model.model.entity_vectors().detach()
    known = set(map(tuple, torch.cat([data.train.triples, data.train_valid]).tolist()))
    reciprocal = []
    for h, r, t in data.train_valid.tolist():
        for side in ("tail", "head"):
            triples = [(h, r, e) if side == "tail" else (e, r, t) for e in range(len(x))]
            true = t if side == "tail" else h
            scores = model.model.score_triples(x, *torch.tensor(triples).T).tolist()
            others = [s for e, s in enumerate(scores) if e != true and triples[e] not in known]
            reciprocal.append(1 / (1 + sum(s > scores[true] for s in others)))
    found = run.callback_metrics["val/transductive/mrr"]
    assert float(found) == pytest.approx(sum(reciprocal) / len(reciprocal), abs=1e-4)
