"""Extensions by features: their energy, their reports, and what becomes of them later."""

import re

import numpy as np
import pandas as pd
import pytest
import torch

from sheafprop import SheafModel
from sheafprop.data import FeatureTable
from sheafprop.errors import DataError
from sheafprop.inductive import PropagationSettings
from sheafprop.kge import KGE_REGISTRY
from sheafprop.pretrained.model_folder import load_model_folder
from tests.pretrained.models import ADRIFT, FACTS, close, sheaf_model

OWN = [f"a{i}" for i in range(12)]
NEW = ["n0", "n1", "n2", "m0", "m1", "lone", "lost"]


def frame(seed=0):
    rng = np.random.default_rng(seed)
    labels = [*OWN, *NEW]
    found = pd.DataFrame(
        {"size": rng.normal(size=len(labels)), "kind": rng.choice(["x", "y"], len(labels))},
        index=labels,
    )
    found.loc[["n1", "lost"], "size"] = np.nan
    found.loc[["n1", "lost"], "kind"] = None
    return found


def columns_of(kind):
    """Features of the same entities, with the same gaps: as above, or of another shape."""
    found = frame()
    if kind == "one":
        found = found[["size"]]
    elif kind == "constant":
        found = found.assign(same=found["size"] * 0 + 7).drop(columns="size")
    elif kind == "many":  # more than training entities
        wide = np.random.default_rng(3).normal(size=(len(found), 30))
        found = pd.DataFrame({"text": list(wide)}, index=found.index).mask(found["size"].isna())
    return found


def energy(model, x, facts, targets, gamma):
    """The energy of all facts of new entities, and of their features."""
    labels = {label: i for i, label in enumerate(model.labels())}
    sheaf, total = model.kge.sheaf(), 0.0
    for head, relation, tail in dict.fromkeys(facts):
        kind = model.relations.ids([relation])
        ends = {"head": x[labels[head]], "tail": x[labels[tail]]}
        mapped = {s: sheaf.restrict(v.unsqueeze(0), kind, s)[0] for s, v in ends.items()}
        shift = sheaf.translation_of(kind)
        gap = mapped["tail"] - mapped["head"] - (0 if shift is None else shift[0])
        total = total + gap.abs().square().sum()
    for label, target in targets.items():
        number = sum((head == label) + (tail == label) for head, _, tail in dict.fromkeys(facts))
        total = total + 2 * gamma / (1 + number) * (x[labels[label]] - target).abs().square().sum()
    return total


@pytest.mark.parametrize("columns", ["mixed", "one", "constant", "many"])
@pytest.mark.parametrize("name", sorted(KGE_REGISTRY))
def test_vectors_are_the_minimum_of_the_energy_with_features(name, columns):
    table = FeatureTable.of(columns_of(columns))
    model = sheaf_model(name).extend([*FACTS, *ADRIFT], features=table, normalize_output=False)
    report, mapped = model.report, model.feature_map
    assert (report.new_entities, report.solved_exactly, report.unanchored) == (6, 6, [])
    assert (report.with_features, report.from_features_alone) == (5, 1)
    assert any("without a known feature" in note for note in report.feature_notes)
    named = [label for label in NEW if label not in ("n1", "lost")]
    rows, known = mapped.predict(table.select(named))
    assert bool(known.all())
    targets = dict(zip(named, rows, strict=True))
    x = model.vectors()[:, 0]
    close(x[model.labels().index("lone")], targets["lone"])
    leaf = x.detach().clone().requires_grad_()
    total = energy(model, leaf, [*FACTS, *ADRIFT], targets, mapped.gamma)
    (slope,) = torch.autograd.grad(total.real, leaf)
    # Of a convex energy, a point without slope is the minimum.
    assert float(slope[12:].abs().max()) < 1e-9
    explained = model.explain("n0")
    assert explained["head"].tolist()[-1] == "(features)"
    assert not explained["fact"].iloc[-1]
    gap = (x[12] - targets["n0"]).abs().square().sum()
    assert explained["energy"].iloc[-1] == pytest.approx(mapped.gamma / 2 * float(gap))
    assert explained["ratio"].iloc[-1] == pytest.approx(float(gap) / mapped.error)
    assert "(features)" not in set(model.explain("n1")["head"])


@pytest.mark.parametrize("name", ["transe", "rotate", "transr"])
def test_an_entity_without_facts_gets_what_its_features_predict_at_finite_time_too(name):
    settings = PropagationSettings(iterations=3, num_random=2, normalize_output=False)
    model = sheaf_model(name).extend([*FACTS, *ADRIFT], features=frame(), propagation=settings)
    (target,), _ = model.feature_map.predict(FeatureTable.of(frame()).select(["lone"]))
    for section in model.vectors("lone")[0]:
        close(section, target)
    plain = sheaf_model(name).extend(FACTS, propagation=settings)
    assert not torch.allclose(model.vectors("n0"), plain.vectors("n0"))
    # It knows no features, and no fact ties it to an entity that does.
    close(sheaf_model(name).extend([("a1", "next", "q")], features=frame()).vectors("q"),
          sheaf_model(name).extend([("a1", "next", "q")]).vectors("q"))  # fmt: skip


def test_features_are_kept_in_the_folder_and_used_again(tmp_path):
    grown = sheaf_model("rotate").extend(FACTS, features=frame())
    for layout in ("plain", "mapped"):
        grown.save(tmp_path / layout, layout=layout)
        back = SheafModel.load(tmp_path / layout)
        assert torch.equal(back.vectors(), grown.vectors())
        more = [("n0", "far", "a4")]
        ours = back.extend(more, mode="refine")
        close(ours.vectors(), grown.extend(more, mode="refine").vectors(), 1e-12)
        without = sheaf_model("rotate").extend(FACTS).extend(more, mode="refine")
        assert not torch.allclose(ours.vectors("n0"), without.vectors("n0"))
    stored = load_model_folder(tmp_path / "plain")
    assert stored.features.labels == grown.stored().features.labels
    plain = sheaf_model("rotate").extend(FACTS)
    plain.save(tmp_path / "none")
    assert load_model_folder(tmp_path / "none").features is None


def test_all_at_once_is_one_after_the_other_with_refine():
    model, table = sheaf_model("transr"), frame()
    whole = model.extend([*FACTS, *ADRIFT], features=table)
    late = model.extend(FACTS, features=table.loc[OWN])
    late = late.extend(ADRIFT, features=table, mode="refine")
    assert late.report.refined == ["n0", "n1", "n2"]
    order = ["n0", "n1", "n2", "m0", "m1", "lone"]
    close(late.vectors(order), whole.vectors(order))
    kept = model.extend(FACTS, features=table.loc[OWN]).extend((), features=table)
    close(kept.vectors("n0"), model.extend(FACTS).vectors("n0"))
    assert any("mode='refine'" in note for note in kept.report.feature_notes)
    assert {"m0", "m1", "lone"} <= set(kept.labels())
    batched = model.extend([*FACTS, *ADRIFT], features=table, batch_size=1)
    close(batched.vectors(), whole.vectors())


def test_removal_forgets_features_and_solves_with_those_that_stay():
    model = sheaf_model("rotate").extend(FACTS, features=frame())
    smaller = model.remove("n2").extend([("n2", "far", "a7")])
    close(smaller.vectors("n2"), sheaf_model("rotate").extend([("n2", "far", "a7")]).vectors("n2"))
    again = model.remove("n1", mode="refine")
    assert again.report.refined == ["n0"]
    facts = [fact for fact in FACTS if "n1" not in fact]
    close(again.vectors("n0"), sheaf_model("rotate").extend(facts, features=frame()).vectors("n0"))


def test_what_the_report_says_and_what_is_refused():
    model = sheaf_model("transe")
    grown = model.extend(FACTS, features=frame())
    assert grown.report.feature_notes[0].startswith("the map was fitted now: 2 features of 12")
    assert "entities have features" in grown.report.summary()
    assert grown.report.to_dict()["with_features"] == 5
    alone = model.extend((), features=frame()).report.summary().splitlines()
    assert alone[0] == "5 new entities from 0 facts"
    other = frame()[["kind"]].assign(colour="red")
    notes = grown.extend([("q", "far", "n0")], features=other).report.feature_notes
    assert any("'colour'" in note for note in notes)
    assert any("missing here" in note for note in notes)
    scaled = frame().assign(size=frame()["size"] * 1e5)
    notes = grown.extend((), features=scaled.rename(index=str.upper)).report.feature_notes
    assert any("Check the unit" in note for note in notes)
    with pytest.raises(DataError, match=r"training entities must have features .got 0"):
        model.extend(FACTS, features=frame().rename(index=str.upper))
    with pytest.raises(DataError, match=r"there is no triple"):
        model.extend(())
    with pytest.raises(DataError, match=r"must be a feature of the model"):
        grown.extend((), features=other[["colour"]])
    assert model.feature_map is None


@pytest.mark.parametrize("value", [1e40, 1e308])
def test_features_that_lead_nowhere_are_named(value):
    table = frame().assign(text=[[0.1 * i, 1.0 - i % 3] for i in range(len(OWN + NEW))])
    model = sheaf_model("rotate").extend((), features=table.loc[OWN])
    table.at["lone", "text"] = [value, 1.0]
    expected = rf"row 17: the features of 'lone' are too far .*; .*'text'.*furthest: {value:g} at"
    with pytest.raises(DataError, match=re.escape(expected).replace(r"\.\*", ".*")):
        model.extend(FACTS, features=table)
    # A number counts by its logarithm.
    table = frame()
    table.loc["lone", "size"] = value
    assert np.isfinite(
        model.extend(FACTS, features=table).score([("lone", "next", "a1")])["score"]
    )[0]


def test_extended_entities_are_predicted_scored_and_ranked():
    model = sheaf_model("rotate").extend(FACTS, features=frame())
    found = model.predict_tails("lone", "next", 3)
    assert len(found) == 3
    assert "lone" in set(model.predict_heads("next", "a1", 99)["head"])
    assert np.isfinite(model.score([("lone", "next", "a1")])["score"]).all()
    assert model.rank([("lone", "next", "a1")]).metrics("full")["mrr"] > 0
    assert len(model.answer("via(next, lone)", 2)) == 2
