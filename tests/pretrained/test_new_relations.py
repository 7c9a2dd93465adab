"""Relations that a model was not trained with, fitted to facts between entities with vectors."""

import json
import random
from dataclasses import replace

import pytest
import torch

from sheafprop.errors import DataError, DivergenceError, FormatError
from sheafprop.inductive.proximity_scorer import ProximitySettings
from sheafprop.kge import KGE_REGISTRY
from sheafprop.nn import RelationPrototypes
from sheafprop.nn.relation_weights import residual_variance
from sheafprop.pretrained.sheaf_model import SheafModel
from sheafprop.pretrained.stored_model import StoredModel
from sheafprop.report.inspection import inspect_model
from tests.pretrained.models import ADRIFT, close, sheaf_model, stored_model
from tests.pretrained.test_graph_scorer import with_episodes

MODELS = sorted(KGE_REGISTRY)
#: Facts of two new relations between known entities, six and five of them.
BACK = [(f"a{i}", "back", f"a{(i + 11) % 12}") for i in range(0, 12, 2)]
OVER = [(f"a{i}", "over", f"a{(i + 5) % 12}") for i in range(5)]
#: New entities: by relations old and new, and by a new one alone.
NEW = [("n0", "next", "a1"), ("n0", "back", "a7"), ("a3", "over", "n1"), ("n1", "back", "n0")]
ALL = [*BACK, *OVER, *NEW]


def fit(model, facts=ALL, **options):
    return model.extend(facts, on_unknown_relation="fit", **options)


def rows_of(model, label):
    place = model.relations.index[label]
    state = model.kge.state_dict()
    return {key: value[place] for key, value in state.items() if key != "node_emb.weight"}


@pytest.mark.parametrize("name", MODELS)
def test_a_new_relation_has_the_closed_form_of_its_facts_and_works_everywhere(name, tmp_path):
    model = sheaf_model(name)
    grown = fit(model)
    ends = [model.vectors([t[side] for t in BACK])[:, 0] for side in (0, 2)]
    for key, value in model.kge.fit_relation(*ends).items():
        close(rows_of(grown, "back")[key], value)
    # What the model was trained with stays as it was.
    for key, value in model.kge.state_dict().items():
        assert torch.equal(grown.kge.state_dict()[key][: len(value)], value)
    assert torch.equal(grown.vectors()[: model.num_entities], model.vectors())
    assert grown.relations.labels == (*model.relations.labels, "back", "over")
    assert grown.num_facts == model.num_facts + len(ALL)
    # Its mean vectors and residuals are those that training would have given.
    head, tail = (torch.tensor([model.labels().index(t[s]) for t in BACK]) for s in (0, 2))
    kind = torch.full((len(BACK),), 3)
    x, index = model.vectors()[:, 0], torch.stack([head, tail])
    stored = grown.stored()
    expected = RelationPrototypes.from_triples(x, index, kind, 5)
    for row in (3, 5 + 3):
        close(stored.prototypes.mean[row], expected.mean[row])
        assert int(stored.prototypes.count[row]) == len(BACK)
    residual = residual_variance(x, index, kind, grown.kge.sheaf())[3]
    close(stored.residual_variance[3], residual)
    # The facts of training, in the order tails, then heads.
    close(
        stored.prototypes.mean.view(2, 5, -1)[:, :3].flatten(0, 1), model.stored().prototypes.mean
    )
    assert stored.num_trained_facts == model.num_facts
    for layout in ("plain", "mapped") if name in ("rotate", "stranse") else ("plain",):
        place = grown.save(tmp_path / layout, layout=layout)
        loaded = SheafModel.load(place, verify="full")
        for one in (grown, loaded):
            frame = one.predict_tails("a4", "back", k=99)
            assert "a3" not in frame["tail"].tolist()  # a fact
            assert frame["score"].is_monotonic_decreasing
            assert len(one.predict_heads("over", "n0", k=3)) == 3
            shown = one.explain("n0")
            assert set(shown["relation"]) == {"next", "back"}
            assert len(one.answer("via(back, via(over, a0))", k=2)) == 2
            assert one.score([("a1", "back", "n1")])["ratio"].notna().all()
            assert one.rank([("a1", "back", "a5")]).metrics("full")["mrr"] > 0
        assert loaded.describe_relations().equals(grown.describe_relations())
        assert loaded.predict_tails("n1", "back").equals(grown.predict_tails("n1", "back"))
        again = loaded.extend([("m", "back", "a2"), ("m", "over", "a2"), ("m", "next", "a3")])
        assert again.report.new_entities == 1
    described = grown.describe_relations()
    assert described["origin"].tolist() == ["trained"] * 3 + ["fitted"] * 2
    assert described["facts"].tolist() == [13, 12, 12, 8, 6]
    assert inspect_model(grown).model["fitted_relations"] == ["back", "over"]
    assert "fitted_relations" not in inspect_model(model).model


def test_neither_the_order_of_lines_nor_repetitions_have_an_effect():
    model, rng = sheaf_model("stranse"), random.Random(0)
    grown = fit(model)
    for _ in range(3):
        facts = [*ALL, *rng.choices(ALL, k=4)]
        rng.shuffle(facts)
        other = fit(model, facts)
        assert other.relations == grown.relations
        assert other.report.duplicates == 4
        assert other.report.fitted_relations == grown.report.fitted_relations
        for label in ("back", "over"):
            for key, value in rows_of(grown, label).items():
                assert torch.equal(rows_of(other, label)[key], value)
        close(other.vectors(["n0", "n1"]), grown.vectors(["n0", "n1"]))


def test_relations_come_first_and_entities_second():
    """As in two steps: the facts between known entities, then the others."""
    model = sheaf_model("rotate")
    steps = fit(model, [*BACK, *OVER]).extend(NEW)
    at_once = fit(model)
    assert rows_of(at_once, "back")["rel_emb.weight"].equal(
        rows_of(steps, "back")["rel_emb.weight"]
    )
    close(at_once.vectors(["n0", "n1"]), steps.vectors(["n0", "n1"]))
    assert steps.report.fitted_relations == {}


def test_later_facts_of_a_fitted_relation_are_said_to_change_no_maps():
    model = fit(sheaf_model("rotate"), [*BACK, *OVER])
    later = [("a1", "back", "a4"), ("a3", "back", "a5"), ("n", "back", "a1"), ("a1", "next", "a6")]
    report = fit(model, [*later, BACK[0]]).report
    assert report.fitted_before == {"back": 2}
    assert "'back' was fitted before, and 2 facts between known entities here" in report.summary()
    assert model.extend(later).report.fitted_before == {"back": 2}
    assert model.report.fitted_before == model.extend(NEW).report.fitted_before == {}


def test_relations_fitted_before_do_not_shape_later_ones():
    """The norms and matrices that the gauge takes are of trained relations."""
    for name in ("pairre", "transr"):
        model = sheaf_model(name)
        first = fit(model, BACK)
        with torch.no_grad():  # far from the others
            first.kge.state_dict()["rel_map" if name == "transr" else "rel_map_head"][3] += 9
        alone = rows_of(fit(model, OVER), "over")
        for key, value in rows_of(fit(first, OVER), "over").items():
            assert torch.equal(value, alone[key])


def test_the_report_compares_with_trained_relations(capsys):
    model = sheaf_model("transe")
    report = fit(model, [*ALL, *[(h, "Back ", t) for h, _, t in BACK]]).report
    found = report.to_dict()["fitted_relations"]
    assert list(found) == ["Back ", "back", "over"]
    assert found["over"]["facts"] == 5
    usual = model.stored().residual_variance
    share = float((usual < found["over"]["residual"]).double().mean())
    assert found["over"]["share"] == share
    assert json.loads(json.dumps(report.to_dict()))["trained_residuals"]["median"] == pytest.approx(
        float(usual.median())
    )
    text = report.summary()
    assert "fewer than the 4 dimensions" not in text
    few = fit(model, OVER[:1], min_facts=1).report.summary()
    assert "too small where they are fewer than the 4 dimensions ('over')" in few
    assert "3 relations were fitted: 'Back ' to 6 facts, residual " in text
    assert f"median {float(usual.median()):.3g}" in text
    assert "new relations that differ from another only in case" in text


@pytest.mark.parametrize(
    ("facts", "options", "message"),
    [
        (
            [*BACK, *OVER[:4]],
            {},
            "5 facts at least.*1 relation has fewer: 'over' \\(4 of 4 facts\\)",
        ),
        ([*BACK, *OVER], {"min_facts": 6}, "6 facts at least.*'over' \\(5 of 5 facts\\)"),
        ([*NEW, *ADRIFT], {}, "'back' \\(0 of 2 facts\\), 'over' \\(0 of 1 fact\\)"),
        ([*BACK, *BACK[:3], ("n0", "next", "a0")] + 6 * [OVER[0]], {}, "'over' \\(1 of 6 facts\\)"),
        ([("a1", f"r{i}", "a2") for i in range(9)], {}, "'r4' \\(1 of 1 fact\\) and 4 more"),
        ([("next", f"a{i}", "a2") for i in range(9)], {}, "first column holds 1 known relation"),
    ],
)
def test_too_few_facts_are_refused_and_named(facts, options, message):
    with pytest.raises(DataError, match=message):
        fit(sheaf_model("transe"), facts, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"on_unknown_relation": "fit", "min_facts": 0},
        {"on_unknown_relation": "fit", "min_facts": 2.0},
        {"on_unknown_relation": "drop", "min_facts": 3},
        {"min_facts": 3},
    ],
)
def test_a_number_of_facts_that_means_nothing_is_refused(options):
    with pytest.raises(ValueError, match="'min_facts'"):
        sheaf_model("transe").extend(ALL, **options)


def test_entities_without_a_way_to_trained_ones_say_nothing_of_a_relation():
    adrift = sheaf_model("transe").extend(ADRIFT)
    facts = [*OVER[:4], ("m0", "over", "m1"), ("m0", "over", "a1"), ("a2", "over", "m1")]
    with pytest.raises(DataError, match="'over' \\(4 of 7 facts\\)"):
        fit(adrift, facts)
    anchored = sheaf_model("transe").extend([("m0", "next", "a1"), *ADRIFT])
    assert fit(anchored, facts).report.fitted_relations["over"]["facts"] == 7


def test_sections_count_by_their_weights():
    model = sheaf_model("transe").extend(NEW[:1], propagation="selected")
    weights = torch.tensor(model.stored().section_weight, dtype=torch.float64)
    assert len(weights) > 1
    facts = [*OVER, ("n0", "over", "a9")]
    grown = fit(model, facts)
    ends = [model.vectors([t[side] for t in facts]) for side in (0, 2)]
    offset = ((ends[1] - ends[0]) * weights.view(1, -1, 1)).sum(1).mean(0)
    close(rows_of(grown, "over")["rel_emb.weight"], offset)
    x = ((ends[1] - ends[0] - offset) ** 2).sum(2) @ weights
    close(grown.stored().residual_variance[3], x.mean())
    expected = (ends[1] * weights.view(1, -1, 1)).sum(1).mean(0)
    close(grown.stored().prototypes.mean[3], expected)


def test_refined_entities_follow_the_new_relation():
    model = sheaf_model("transe").extend([("n0", "next", "a1")])
    kept, refined = (fit(model, [*BACK, ("n0", "back", "a7")], mode=m) for m in ("keep", "refine"))
    assert torch.equal(kept.vectors("n0"), model.vectors("n0"))
    assert refined.report.refined == ["n0"]
    # The relation, fitted to the old vector too, comes first.
    shift = {name: rows_of(refined, name)["rel_emb.weight"] for name in ("next", "back")}
    mean = refined.vectors(["a1", "a7"])[:, 0] - torch.stack([shift["next"], shift["back"]])
    close(refined.vectors("n0")[0, 0], torch.nn.functional.normalize(mean.mean(0), dim=0))
    assert refined.report.fitted_relations["back"]["facts"] == 7


def test_scores_of_episodes_refuse_and_vectors_alone_do_not():
    model = with_episodes()
    with pytest.raises(DataError, match="with_scores\\(episodes=False\\) \\(--without-episodes\\)"):
        fit(model)
    assert "back" in fit(model.with_scores(episodes=False)).relations
    # Nothing is refused where there is nothing to fit.
    assert fit(model, NEW[:1]).report.new_entities == 1


def test_calibrations_take_the_median_of_each_side_for_a_new_relation():
    held = [("a0", "next", "a5"), ("a1", "far", "a2"), ("a4", "skip", "a1"), ("a9", "far", "a5")]
    model, _ = sheaf_model("rotate").calibrate(held)
    old = model.stored().calibration.links
    grown = fit(model)
    new = grown.stored().calibration.links
    for name in ("temperature", "num_answers"):
        before, after = (getattr(links, name).view(2, -1) for links in (old, new))
        assert torch.equal(after[:, :3], before)
        assert after[:, 3:].tolist() == [[float(row.median())] * 2 for row in before]
    assert "probability" in grown.predict_tails("a1", "back")


def test_loops_of_a_new_relation_let_entities_be_their_own_answer():
    near = ProximitySettings(weight=0.1, share=0.1, own_last=True)
    model = SheafModel(replace(stored_model("transe"), proximity=near))
    grown = fit(model, [*[(f"a{i}", "same", f"a{i}") for i in range(5)], *OVER])
    last = {r: grown.predict_tails("a9", r, k=99)["tail"].iloc[-1] for r in ("same", "over")}
    assert last["same"] != "a9"
    assert last["over"] == "a9"


def test_vectors_that_are_not_finite_are_named():
    stored = stored_model("transe")
    model = SheafModel(stored)
    with torch.no_grad():
        stored.model.node_emb.weight[model.labels().index("a3"), 0] = torch.inf
    with pytest.raises(DivergenceError, match="'a3'"):
        fit(model)


def test_removed_entities_take_facts_of_new_relations_with_them():
    grown = fit(sheaf_model("rotate"))
    smaller = grown.remove(["a0", "n1"])
    assert smaller.describe_relations()["facts"].tolist()[3:] == [6, 4]
    assert smaller.relations == grown.relations
    assert len(smaller.predict_tails("a1", "back", k=2)) == 2


@pytest.mark.parametrize(
    "edit",
    [
        lambda rows: rows[::-1],
        lambda rows: [row | {"origin": "fitted"} for row in rows],
        lambda rows: [*rows[:-1], rows[-1] | {"origin": "guessed"}],
    ],
)
def test_relations_of_an_edited_folder_are_refused(tmp_path, edit, monkeypatch):
    place = fit(sheaf_model("transe")).save(tmp_path / "model")
    file = place / "relations.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert rows[3:] == [{"label": label, "origin": "fitted"} for label in ("back", "over")]
    assert rows[0] == {"label": rows[0]["label"]}
    file.write_text("".join(json.dumps(row) + "\n" for row in edit(rows)))
    monkeypatch.setattr("sheafprop.pretrained.model_folder._check_manifest", lambda *_: (2, {}))
    with pytest.raises(FormatError, match=r"relations must be trained|some must be trained"):
        SheafModel.load(place)


def test_a_model_whose_closed_form_is_of_other_parameters_is_refused(monkeypatch):
    model = sheaf_model("lineare")
    monkeypatch.setattr(type(model.kge), "_fit", lambda self, facts: {"rel_emb.weight": facts.head})
    with pytest.raises(DataError, match=r"its closed form gives \['rel_emb.weight'\]"):
        fit(model)


def test_numbers_of_fitted_relations_are_checked():
    stored = stored_model("transe")
    for number in (-1, 3):
        with pytest.raises(ValueError, match="some must be trained"):
            StoredModel(**{f: getattr(stored, f) for f in stored.__dataclass_fields__}
                        | {"num_fitted_relations": number})  # fmt: skip


def test_a_mapped_model_is_fitted_without_being_read_whole(tmp_path):
    plain = sheaf_model("rotate")
    model = SheafModel.load(plain.save(tmp_path / "mapped", layout="mapped"))
    grown = fit(model)
    assert grown._state.kge.node_emb.weight.is_meta
    loaded = SheafModel.load(grown.save(tmp_path / "grown"), verify="full")
    assert loaded._state.is_mapped
    assert loaded.describe_relations().equals(fit(plain).describe_relations())
    assert loaded.predict_tails("n0", "over").equals(fit(plain).predict_tails("n0", "over"))
    assert loaded.kge.trained_length() == plain.kge.trained_length()
