import pytest
import torch

from sheafprop.kge import KGE_REGISTRY
from sheafprop.pretrained.sheaf_model import SheafModel
from sheafprop.sheaf import edge_energy
from tests.pretrained.models import FACTS, close, sheaf_model, stored_model

MODELS = sorted(KGE_REGISTRY)


@pytest.mark.parametrize("name", MODELS)
def test_scores_are_those_of_the_model(name):
    model = sheaf_model(name).extend(FACTS)
    triples = [("n0", "next", "a1"), ("a2", "far", "n1"), ("a0", "next", "a1"), ("a0", "far", "a1")]
    frame = model.score(triples)
    assert list(frame["known"]) == [True, False, True, False]
    labels = model.labels()
    h, t = (torch.tensor([labels.index(row[i]) for row in triples]) for i in (0, 2))
    r = model.relations.ids([row[1] for row in triples])
    close(frame["score"], model.scorer().score_tails(h, r)[range(len(t)), t])


@pytest.mark.parametrize("name", MODELS)
def test_an_explanation_gives_every_fact_its_energy(name):
    model = sheaf_model(name).extend([*FACTS, ("n0", "next", "a9")])
    frame = model.explain("n0")
    assert list(frame["energy"]) == sorted(frame["energy"], reverse=True)
    assert sorted(map(tuple, frame[["head", "relation", "tail"]].to_numpy())) == sorted(
        [t for t in [*FACTS, ("n0", "next", "a9")] if "n0" in t]
    )
    labels = model.labels()
    edges = torch.tensor(
        [
            [labels.index(h), labels.index(t)]
            for h, t in zip(frame["head"], frame["tail"], strict=True)
        ]
    ).T
    types = model.relations.ids(frame["relation"])
    energy = edge_energy(model.vectors()[:, 0], edges, types, model.kge.sheaf()).detach()
    close(frame["energy"], energy)
    stored = stored_model(name)
    close(frame["ratio"], energy / stored.residual_variance[types])


def test_an_explained_triple_comes_first():
    model = sheaf_model("transe").extend(FACTS)
    asked = model.explain(("n0", "next", "a2"))
    assert tuple(asked.iloc[0][["head", "relation", "tail"]]) == ("n0", "next", "a2")
    assert list(asked["fact"])[:2] == [False, True]
    observed = model.explain(("n0", "next", "a1"))
    assert bool(observed["fact"].all())
    facts = model.facts()
    ends = {"n0", "a1"}
    assert len(observed) == sum(h in ends or t in ends for h, _, t in facts.to_numpy())


def test_a_contradicting_fact_stands_out():
    model = sheaf_model("transe")
    x, relations = model.kge.entity_vectors().detach(), model.relations.index
    # Facts that agree with a0's own place, and one that does not.
    with torch.no_grad():
        for name, step in (("next", 1), ("skip", 2)):
            model.kge.rel_emb.weight[relations[name]] = x[model.labels().index(f"a{step}")] - x[0]
    grown = SheafModel(model.stored()).extend(
        [("n", "next", "a1"), ("n", "skip", "a2"), ("n", "next", "a1"), ("n", "next", "a7")]
    )
    worst = grown.explain("n").iloc[0]
    assert worst["tail"] == "a7"
