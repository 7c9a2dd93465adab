import dataclasses

import numpy as np
import pytest
import torch

from sheafprop.errors import DataError, UnknownRelationError
from sheafprop.inductive.inductive_propagation import InductivePropagation
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.kge import KGE_REGISTRY, build_model
from sheafprop.pretrained.sheaf_model import SheafModel
from sheafprop.pretrained.stored_model import StoredModel
from tests.inductive.test_inductive_propagation import trained
from tests.pretrained.models import ADRIFT, FACTS, SETTINGS, close, sheaf_model, stored_model
from tests.toy import parts, toy_data

MODELS = sorted(KGE_REGISTRY)
#: TransH projects on hyperplanes: its maps have kernels.
INJECTIVE = [name for name in MODELS if name != "transh"]


def least_squares(model, facts):
    """Minimises the energy over the new entities by NumPy's own solver, from the definition."""
    sheaf, relations = model.kge.sheaf(), model.relations.index
    known = {label: i for i, label in enumerate(model.labels())}
    x = model.kge.entity_vectors().detach().numpy()
    new = list(dict.fromkeys(e for h, _, t in facts for e in (h, t) if e not in known))
    d = x.shape[1]
    rows, right = [], []
    for head, relation, tail in dict.fromkeys(facts):  # a fact counts once
        r = relations[relation]
        maps = {
            head: -sheaf.restriction_map(r, "head", d).detach().numpy(),
        }
        tail_map = sheaf.restriction_map(r, "tail", d).detach().numpy()
        maps[tail] = maps[tail] + tail_map if tail == head else tail_map
        b = sheaf.translation_of(torch.tensor([r]))
        k = tail_map.shape[0]
        target = np.zeros(k, dtype=x.dtype) if b is None else b[0].detach().numpy().copy()
        row = np.zeros((k, len(new) * d), dtype=x.dtype)
        for entity, matrix in maps.items():
            if entity in known:
                target -= matrix @ x[known[entity]]
            else:
                place = new.index(entity) * d
                row[:, place : place + d] = matrix
        rows.append(row)
        right.append(target)
    solution = np.linalg.lstsq(np.concatenate(rows), np.concatenate(right), rcond=None)[0]
    return {label: solution[i * d : (i + 1) * d] for i, label in enumerate(new)}


def test_a_new_entity_is_the_mean_of_what_its_facts_say():
    model = sheaf_model("transe")
    old = model.vectors()
    grown = model.extend([("n", "next", "a1"), ("a0", "skip", "n")], normalize_output=False)
    x, b = old[:, 0], model.kge.rel_emb.weight.detach()
    names, relations = model.labels(), model.relations.index
    expected = (
        x[names.index("a1")] - b[relations["next"]] + x[names.index("a0")] + b[relations["skip"]]
    ) / 2
    close(grown.vectors("n")[0, 0], expected)
    assert torch.equal(grown.vectors()[:-1], old)
    assert torch.equal(model.vectors(), old)
    assert len(grown.predict_tails("n", "next", k=3)) == 3
    assert "n" not in model.labels()
    assert grown.report.solved_exactly == 1


@pytest.mark.parametrize("name", INJECTIVE)
def test_the_exact_solution_minimises_the_energy(name):
    model = sheaf_model(name)
    grown = model.extend(FACTS, normalize_output=False)
    assert grown.report.solved_exactly == 3
    assert grown.report.reasons == {}
    assert grown.report.facts_between_known == 1
    assert grown.report.duplicates == 1
    for label, vector in least_squares(model, FACTS).items():
        close(grown.vectors(label)[0, 0], torch.from_numpy(vector))


def test_a_singular_system_is_solved_exactly_where_enough_facts_meet():
    # Maps from 4 to 3 dimensions: one fact leaves a direction open, two relations close it.
    model = sheaf_model("transr", relation_channels=3)
    facts = [*FACTS, ("poor", "next", "a1"), ("poorer", "next", "poor")]
    grown = model.extend(facts, normalize_output=False)
    (count,) = grown.report.reasons.values()
    assert (count, grown.report.solved_exactly) == (2, 3)
    expected = least_squares(model, FACTS)
    for label in ("n0", "n1", "n2"):
        close(grown.vectors(label)[0, 0], torch.from_numpy(expected[label]), 1e-7)
    assert torch.isfinite(grown.vectors(["poor", "poorer"])).all()
    assert model.extend(facts, normalize_output=False).vectors().equal(grown.vectors())


def test_one_fact_between_two_new_entities_has_no_anchor():
    model = sheaf_model("transe")
    grown, again = (model.extend([("m", "next", "n")]) for _ in range(2))
    assert grown.report.unanchored == ["m", "n"]
    assert torch.equal(grown.vectors(), again.vectors())
    assert torch.isfinite(grown.vectors()).all()
    assert "unanchored: 'm', 'n'" in grown.report.summary()
    assert len(grown.predict_tails("m", "next", 3)) == 3


@pytest.mark.parametrize("name", MODELS)
def test_entities_without_an_anchor_are_seeded_and_said(name):
    model = sheaf_model(name)
    grown, again = (model.extend(ADRIFT) for _ in range(2))
    assert torch.equal(grown.vectors(), again.vectors())
    assert torch.isfinite(torch.view_as_real(grown.vectors().to(torch.complex128))).all()
    assert grown.report.unanchored == ["m0", "m1"]
    assert "no fact connects" in grown.report.summary()
    assert list(grown.entities()["origin"])[-2:] == ["unanchored"] * 2
    other = model.extend(ADRIFT, seed=9, propagation=PropagationSettings(start="random"))
    assert not torch.equal(other.vectors("m0")[:, :1], grown.vectors("m0"))
    # What hangs on nothing anchors nothing.
    hanging = grown.extend([("m2", "next", "m1")])
    assert hanging.report.unanchored == ["m2"]
    anchored = grown.extend([("m2", "next", "m1"), ("a0", "next", "m2")])
    assert anchored.report.unanchored == []


@pytest.mark.parametrize("name", ["transe", "rotate", "se", "transh"])
@pytest.mark.parametrize("propagation", ["exact", SETTINGS])
def test_groups_do_not_depend_on_each_other(name, propagation):
    model = sheaf_model(name)
    once = model.extend(FACTS + ADRIFT, propagation=propagation)
    twice = model.extend(FACTS, propagation=propagation).extend(ADRIFT, propagation=propagation)
    assert twice.report.touched == []
    assert once.labels() == twice.labels()
    close(once.vectors(), twice.vectors(), 1e-8)
    assert once.report.unanchored == twice.report.unanchored


@pytest.mark.parametrize("name", ["transe", "rotate", "transr", "se"])
@pytest.mark.parametrize("propagation", ["exact", SETTINGS])
def test_refining_equals_extending_once(name, propagation):
    model = sheaf_model(name)
    more = [("n1", "next", "p0"), ("p0", "skip", "a4"), ("n1", "far", "a6")]
    once = model.extend(FACTS + more, propagation=propagation)
    first = model.extend(FACTS, propagation=propagation)
    kept = first.extend(more, propagation=propagation)
    assert kept.report.touched == ["n1"]
    assert kept.report.pull > 1e-3
    assert "mode='refine'" in kept.report.summary()
    assert torch.equal(kept.vectors(first.labels()), first.vectors())
    refined = first.extend(more, propagation=propagation, mode="refine")
    assert set(refined.report.refined) == {"n0", "n1"}
    assert refined.labels() == once.labels()
    close(refined.vectors(), once.vectors(), 1e-8)
    untouched = [label for label in first.labels() if label not in ("n0", "n1")]
    assert torch.equal(refined.vectors(untouched), first.vectors(untouched))


@pytest.mark.parametrize("name", ["transe", "rotate", "se"])
def test_the_selected_propagation_is_the_one_of_the_run(name):
    data = toy_data()
    settings = PropagationSettings(iterations=4, num_random=3, relation_weights=True)
    kge = trained(name, data).double()
    model = SheafModel(
        StoredModel.from_training(
            kge,
            data.train.entities,
            data.train.relations,
            data.train.triples,
            settings=settings.to_dict(),
        )
    )
    grown = model.extend(parts("semi-inductive")["observed"], propagation="selected")
    expected = InductivePropagation(kge, data, settings).vectors()
    assert grown.labels() == data.inference.entities.labels
    close(grown.vectors(), expected, 1e-9)
    scorer = InductivePropagation(kge, data, settings).scorer()
    best = grown.predict_tails("a3", "next", k=1, include_known=True)
    query = data.inference.entities.ids(["a3"]), data.train.relations.ids(["next"])
    values = scorer.score_tails(*query).detach()
    assert best["score"][0] == pytest.approx(float(values.max()), abs=1e-9)
    # A later exact extension of a model with sections has them too.
    later = grown.extend([("late", "next", "a3")])
    assert later.vectors("late").shape == (1, 4, 8)
    with pytest.raises(ValueError, match="4 sections already"):
        grown.extend([("x", "next", "a0")], propagation=PropagationSettings(num_random=5))


def test_a_model_without_a_choice_says_so():
    model = sheaf_model("transe", settings=None)
    with pytest.raises(ValueError, match="no propagation that was chosen"):
        model.extend(FACTS, propagation="selected")
    assert model.extend(ADRIFT).report.settings["iterations"] == PropagationSettings().iterations


def test_unknown_relations_are_an_error_or_dropped():
    model = sheaf_model("transe")
    facts = [("n", "next", "a1"), ("a0", "unheard", "n"), ("a1", "unheard", "z")]
    with pytest.raises(UnknownRelationError, match=r"'unheard' \(2 facts.*2 of 3 facts"):
        model.extend(facts)
    grown = model.extend(facts, on_unknown_relation="drop")
    assert grown.report.dropped_facts == {"unheard": 2}
    assert "2 facts dropped" in grown.report.summary()
    assert grown.labels()[-1] == "n"
    with pytest.raises(DataError, match="no fact is left"):
        model.extend(facts[1:], on_unknown_relation="drop")


def test_facts_between_known_entities_move_nothing_and_are_kept():
    model = sheaf_model("rotate")
    grown = model.extend([("a0", "far", "a1")])
    assert grown.num_entities == model.num_entities
    assert grown.num_facts == model.num_facts + 1
    assert torch.equal(grown.vectors(), model.vectors())
    assert bool(grown.score([("a0", "far", "a1")])["known"][0])


def test_a_loop_alone_anchors_nothing():
    grown = sheaf_model("transe").extend([("n", "next", "n")])
    assert grown.report.unanchored == ["n"]
    assert torch.isfinite(grown.vectors("n")).all()


@pytest.mark.parametrize("side", ["head", "tail"])
@pytest.mark.parametrize("name", INJECTIVE)
def test_one_fact_is_met_from_either_side(name, side):
    model = sheaf_model(name)
    fact = ("n", "far", "a1") if side == "head" else ("a1", "far", "n")
    grown = model.extend([fact], normalize_output=False)
    assert float(grown.vectors("n").abs().max()) > 0
    energy = grown.explain("n")["energy"]
    assert len(energy) == 1
    assert energy[0] < 1e-16
    best = (
        grown.predict_tails("n", "far", 1, include_known=True)["tail"]
        if side == "head"
        else grown.predict_heads("far", "n", 1, include_known=True)["head"]
    )
    assert best[0] == "a1"


@pytest.mark.parametrize("name", ["transe", "rotate", "se"])
@pytest.mark.parametrize("seed", range(3))
def test_facts_in_batches_give_what_they_give_at_once(name, seed):
    model = sheaf_model(name)
    facts = [*FACTS, ("n2", "next", "p"), ("p", "far", "n1"), *ADRIFT, ("m1", "skip", "m2")]
    order = np.random.default_rng(seed).permutation(len(facts))
    grown = model
    for batch in np.array_split(order, 5):
        grown = grown.extend([facts[i] for i in batch], mode="refine")
    once = model.extend(facts)
    assert set(grown.labels()) == set(once.labels())
    assert grown.num_facts == once.num_facts
    labels = sorted(once.labels())
    close(grown.vectors(labels), once.vectors(labels), 1e-7)
    assert grown.entities().set_index("entity")["origin"].to_dict() == (
        once.entities().set_index("entity")["origin"].to_dict()
    )


@pytest.mark.parametrize("name", ["transe", "rotate", "transr", "se", "transh"])
@pytest.mark.parametrize("propagation", ["exact", SETTINGS])
@pytest.mark.parametrize("mode", ["keep", "refine"])
def test_a_batch_size_bounds_the_work_and_changes_nothing(monkeypatch, name, propagation, mode):
    model = sheaf_model(name).extend(FACTS, propagation=propagation)
    facts = [("n1", "next", "p0"), ("p0", "far", "a3"), ("p0", "skip", "p1"), *ADRIFT]
    facts += [(f"q{i}", r, f"a{i % 12}") for i in range(20) for r in ("next", "skip")]
    facts += [(f"q{i}", "far", f"q{i + 1}") for i in range(0, 20, 5)]
    order = np.random.default_rng(0).permutation(len(facts))
    facts = [facts[i] for i in order]
    whole = model.extend(facts, propagation=propagation, mode=mode)
    sizes = []
    for solve in ("exact", "finite_time"):
        solver = model._state.trained.solver
        method = getattr(type(solver), solve)

        def spy(system, settings, method=method, solver=solver, **arguments):
            sizes.append(len(system.edge_type))
            return method(solver, system, settings, **arguments)

        monkeypatch.setattr(solver, solve, spy)
    for size in (1, 4, 10**6):
        sizes.clear()
        parts = model.extend(facts, propagation=propagation, mode=mode, batch_size=size)
        assert parts.labels() == whole.labels()
        close(parts.vectors(), whole.vectors(), 1e-8)
        assert parts.entities().equals(whole.entities())
        ours, theirs = parts.report.to_dict(), whole.report.to_dict()
        lengths = ours.pop("length_before"), theirs.pop("length_before")
        assert lengths[0] is lengths[1] or lengths[0] == pytest.approx(lengths[1])
        assert ours["pull"] == pytest.approx(theirs["pull"])
        for key in ours.keys() - {"seconds", "relative_residual", "pull"}:
            assert ours[key] == theirs[key], key
        # The group around n1 is the largest that facts connect.
        assert max(sizes) <= max(size - 1, 0) + 12 if size < 100 else len(sizes) == 1
        assert len(sizes) >= 8 or size > 1


@pytest.mark.parametrize("size", [0, -3])
def test_a_batch_holds_at_least_a_fact(size):
    with pytest.raises(ValueError, match="'batch_size' must be an integer of at least 1"):
        sheaf_model("transe").extend(FACTS, batch_size=size)


@pytest.mark.parametrize(
    "arguments", [{"mode": "x"}, {"propagation": "x"}, {"on_unknown_relation": "x"}]
)
def test_bad_arguments_are_named(arguments):
    with pytest.raises(ValueError, match=r"must be one of .*\(got 'x'\)"):
        sheaf_model("transe").extend(FACTS, **arguments)


def test_removed_entities_are_gone_with_their_facts():
    model = sheaf_model("rotate").extend(FACTS + ADRIFT)
    smaller = model.remove(["a5", "n2"])
    assert smaller.labels() == tuple(x for x in model.labels() if x not in ("a5", "n2"))
    assert torch.equal(smaller.vectors(), model.vectors(smaller.labels()))
    facts = set(map(tuple, smaller.facts().to_numpy()))
    assert facts == {t for t in map(tuple, model.facts().to_numpy()) if not {"a5", "n2"} & {*t}}
    assert smaller.report.affected == ["n0"]
    assert "lost a fact and kept its vector" in smaller.report.summary()
    assert smaller.num_trained == model.num_trained - 1
    assert "a5" in model.labels()
    with pytest.raises(DataError, match="no trained entity"):
        model.remove([f"a{i}" for i in range(12)])


@pytest.mark.parametrize("name", ["transe", "rotate", "se"])
def test_a_refined_removal_equals_never_having_had_the_facts(name):
    model = sheaf_model(name)
    gone = model.extend(FACTS).remove("n2", mode="refine")
    close(gone.vectors(), model.extend([t for t in FACTS if "n2" not in t]).vectors(), 1e-8)
    without = model.extend(FACTS).remove("a5", mode="refine")
    assert set(without.report.refined) == {"n0", "n1"}
    expected = model.extend([t for t in FACTS if "a5" not in t])
    close(without.vectors(["n0", "n1"]), expected.vectors(["n0", "n1"]), 1e-8)


def expected_lengths(model, facts, target):
    """The least-squares solution of all facts together, each row scaled to a length."""
    rows = {k: torch.from_numpy(v) for k, v in least_squares(model, facts).items()}
    return {label: row * (target / torch.linalg.vector_norm(row)) for label, row in rows.items()}


@pytest.mark.parametrize("size", [None, 2])
@pytest.mark.parametrize("name", INJECTIVE)
def test_exact_solutions_have_the_length_of_unit_rows(name, size):
    model = sheaf_model(name)
    grown = model.extend(FACTS, batch_size=size)
    before = least_squares(model, FACTS)
    for label, row in expected_lengths(model, FACTS, 1.0).items():
        close(grown.vectors(label)[0, 0], row)
    assert torch.equal(grown.vectors()[: model.num_entities], model.vectors())
    report = grown.report
    assert report.rescaled == 3
    mean = np.mean([np.linalg.norm(row) for row in before.values()])
    assert report.length_before == pytest.approx(mean, rel=1e-6)
    assert "scaled to the norm used in training" in report.summary()
    plain = model.extend(FACTS, normalize_output=False).report
    assert (plain.rescaled, plain.length_before) == (0, None)
    assert "scaled" not in plain.summary()


@pytest.mark.parametrize("constraint", ["ball", None])
def test_models_without_unit_rows_keep_exact_solutions_unless_asked(constraint):
    model = sheaf_model("transe", entity_constraint=constraint)
    model.kge.node_emb.weight.data.mul_(0.7 if constraint == "ball" else 3.0)
    model = SheafModel(model.stored())
    exact = least_squares(model, FACTS)
    for label, row in exact.items():
        close(model.extend(FACTS).vectors(label)[0, 0], row)
    target = torch.linalg.vector_norm(model.kge.node_emb.weight, dim=1).mean().detach()
    scaled = model.extend(FACTS, normalize_output=True)
    for label, row in expected_lengths(model, FACTS, target).items():
        close(scaled.vectors(label)[0, 0], row)


def test_imported_models_with_unit_rows_have_them_without_a_constraint():
    stored = stored_model("rotate", dtype=torch.float32)
    model = build_model("rotate", **stored.model.config() | {"entity_constraint": None})
    model.load_state_dict(stored.model.state_dict())
    grown = SheafModel(dataclasses.replace(stored, model=model)).extend(FACTS)
    assert grown.report.rescaled == 3
    lengths = torch.linalg.vector_norm(grown.vectors(["n0", "n1", "n2"]), dim=-1)
    # The target is the mean of twelve float32 lengths, each one up to rounding.
    close(lengths, torch.ones(3, 1), 1e-5)


def test_a_solution_without_a_direction_is_left_alone():
    model = sheaf_model("um")
    weight = model.kge.node_emb.weight.data
    weight[1] = -weight[0]
    model = SheafModel(model.stored())
    first, second = model.labels()[:2]
    grown = model.extend([("n", "next", first), ("n", "far", second), ("n", "skip", "m")])
    assert float(grown.vectors(["n", "m"]).abs().max()) < 1e-8
    assert grown.report.rescaled == 0


@pytest.mark.parametrize("unit", [1e-12, 1e-3, 1e9])
def test_a_model_of_any_unit_has_its_rows_scaled(unit):
    model = sheaf_model("um")
    model.kge.node_emb.weight.data *= unit
    model.kge.entity_constraint = None
    weight = model.kge.node_emb.weight.data
    weight[1] = -weight[0]
    model = SheafModel(model.stored())
    first, second, third = model.labels()[:3]
    new = [("n", "next", first), ("n", "far", second), ("m", "skip", third), ("m", "skip", first)]
    grown = model.extend(new, normalize_output=True)
    assert grown.report.rescaled == 1
    length = float(torch.linalg.vector_norm(grown.vectors("m")))
    assert length == pytest.approx(float(torch.linalg.vector_norm(weight, dim=1).mean()))
    assert float(grown.vectors("n").abs().max()) < 1e-8 * unit


@pytest.mark.parametrize("normalize", [True, False])
def test_the_flag_also_holds_for_what_is_propagated_and_for_removals(normalize):
    model = sheaf_model("rotate")
    grown = model.extend(FACTS + ADRIFT, normalize_output=normalize)
    again = model.extend(FACTS, propagation=SETTINGS, normalize_output=normalize)
    smaller = grown.remove("n2", mode="refine", normalize_output=normalize)
    smaller = smaller.remove("a5", mode="refine", normalize_output=normalize)
    for found, labels in (
        (grown, ["n0", "n2", "m0", "m1"]),
        (again, ["n1"]),
        (smaller, ["n0", "n1"]),
    ):
        lengths = torch.linalg.vector_norm(found.vectors(labels), dim=-1)
        unit = bool((lengths - 1).abs().max() < 1e-9)
        assert unit is normalize


def test_a_row_that_agrees_with_its_facts_but_for_its_length_is_not_pulled():
    model = sheaf_model("rotate").extend([("n", "next", "a1"), ("n", "far", "a6")])
    # What is new says the same again: a fact of an entity with the row that this one stands for.
    report = model.extend([("z", "skip", "n")]).report
    assert report.touched == ["n"]
    x, phase = model.vectors()[:, 0], model.kge.rel_emb.weight.detach()
    names = model.labels()
    facts = [("next", "a1"), ("far", "a6")]
    mean = sum(
        x[names.index(tail)]
        * torch.polar(torch.ones(4, dtype=x.real.dtype), -phase[model.relations.index[r]])
        for r, tail in facts
    )
    close(x[-1], mean / torch.linalg.vector_norm(mean))
    assert report.pull < 1e-9


#: Loops, both directions, parallel relations and a fact between trained entities.
KNOWN = [*FACTS, ("n0", "far", "a5"), ("n2", "next", "n2"), ("a1", "next", "n1")]


@pytest.mark.parametrize("propagation", ["exact", SETTINGS], ids=["exact", "steps"])
@pytest.mark.parametrize("name", ["transe", "rotate", "se", "transh"])
def test_facts_that_are_given_again_change_nothing(name, propagation):
    model = sheaf_model(name)
    first = model.extend(KNOWN, propagation=propagation)
    distinct = set(KNOWN)
    assert first.report.duplicates == len(KNOWN) - len(distinct)
    assert first.num_facts == model.num_facts + len(distinct)
    again = first
    for mode in ("keep", "refine", "keep"):
        before, again = again, again.extend([*KNOWN, KNOWN[2]], propagation=propagation, mode=mode)
        report = again.report
        assert mode == "refine" or torch.equal(again.vectors(), before.vectors())
        assert (report.facts, report.new_entities, report.pull) == (0, 0, 0)
        assert report.known_facts == len(distinct)
        assert report.duplicates == len(KNOWN) + 1 - len(distinct)
        assert f"{len(distinct)} facts are known to the model" in report.summary()
        assert again.num_facts == first.num_facts
        close(again.vectors(), first.vectors(), 1e-8)
    # Old and new facts in one batch: only the new ones count, also where all is solved again.
    more = [*KNOWN, ("n1", "next", "a4"), ("a8", "skip", "n3"), ("a8", "skip", "n3")]
    grown = again.extend(more, propagation=propagation, mode="refine")
    assert (grown.report.facts, grown.report.known_facts) == (2, len(distinct))
    close(grown.vectors(), model.extend(more, propagation=propagation).vectors(), 1e-8)
    # What was removed is new again.
    back = first.remove("n2").extend(KNOWN, propagation=propagation, mode="refine")
    assert back.report.new_entities == 1
    close(back.vectors(first.labels()), first.vectors(), 1e-8)
    assert back.num_facts == first.num_facts
    assert set(map(tuple, back.facts().to_numpy())) == set(map(tuple, first.facts().to_numpy()))


def test_an_entity_that_loses_all_its_facts_is_solved_again_without_any():
    model = sheaf_model("rotate").extend([("n", "far", "a4"), ("n", "next", "a4")])
    alone = model.remove("a4", mode="refine")
    assert alone.report.refined == ["n"]
    assert torch.isfinite(torch.view_as_real(alone.vectors())).all()
    assert list(alone.entities()["origin"])[-1] == "unanchored"


def full_step(model, label, normalize):
    """The mean of what all facts of an entity say, from their definition."""
    steps = model.kge.rel_emb.weight.detach()
    said = []
    for head, relation, tail in model.facts().to_numpy().tolist():
        step = steps[model.relations.index[relation]]
        for end, other, sign in ((head, tail, -1), (tail, head, 1)):
            if end == label:
                x = model.vectors(other)[0, 0]
                said.append(
                    x * torch.polar(torch.ones_like(step), sign * step)
                    if x.is_complex()
                    else x + sign * step
                )
    mean = sum(said) / len(said)
    return mean / torch.linalg.vector_norm(mean) if normalize else mean


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("name", ["transe", "rotate"])
def test_the_pull_counts_what_new_entities_say(name, normalize):
    first = sheaf_model(name).extend(
        [("p0", "next", "a1"), ("p1", "far", "a6"), ("p1", "skip", "a2")],
        normalize_output=normalize,
    )
    more = [("z", "skip", "p0"), ("y", "next", "z"), ("y", "far", "p1")]
    kept = first.extend(more, normalize_output=normalize)
    assert kept.report.touched == ["p0", "p1"]
    moved = [
        float(torch.linalg.vector_norm(full_step(kept, p, normalize) - kept.vectors(p)[0, 0]))
        for p in ("p0", "p1")
    ]
    assert kept.report.pull == pytest.approx(max(moved))
    assert kept.report.pull > 0.01
    assert f"a step would move them by up to {max(moved):.3g}" in kept.report.summary()
    refined = first.extend(more, mode="refine", normalize_output=normalize)
    change = refined.vectors(["p0", "p1"]) - kept.vectors(["p0", "p1"])
    assert float(torch.linalg.vector_norm(change, dim=-1).max()) > 0.01


@pytest.mark.parametrize("name", ["transe", "rotate", "se"])
def test_what_new_facts_agree_with_is_at_rest(name):
    first = sheaf_model(name, dtype=torch.float32).extend(FACTS, normalize_output=False)
    # One fact each: the new entities lie where it is met.
    report = first.extend([("z", "skip", "n1"), ("n2", "next", "y")], normalize_output=False).report
    assert (report.touched, report.pull) == (["n1", "n2"], 0)
    assert (
        "do not change (a step with all their facts moves none of them): 'n1', 'n2'"
        in report.summary()
    )
    assert "refine" not in report.summary()


def test_the_pull_of_several_sections_counts_new_entities_too():
    first = sheaf_model("rotate").extend([("p", "next", "a1")])
    kept = first.extend([("z", "skip", "p"), ("z", "far", "a6")], propagation=SETTINGS)
    assert kept.num_sections == 3
    assert kept.report.pull > 0.01


def test_facts_of_earlier_extensions_that_are_not_given_again_are_counted():
    model = sheaf_model("rotate")
    first = [("p", "next", "a1"), ("p", "far", "a2"), ("q", "skip", "p"), ("q", "next", "a3")]
    grown = model.extend(first)
    assert grown.report.kept_facts == 0
    for given, count in (
        ([("p", "next", "a1"), ("p", "skip", "a4")], 2),
        ([("p", "next", "a1"), ("p", "skip", "z"), ("p", "skip", "z")], 2),
        ([("z", "next", "q")], 2),
        ([*first, ("q", "far", "a1")], 0),
        ([("z", "next", "a1"), ("a0", "far", "a1")], 0),
    ):
        for mode in ("keep", "refine"):
            report = grown.extend(given, mode=mode).report
            assert report.kept_facts == count
            assert ("extend the original model" in report.summary()) is (count > 0)


@pytest.mark.parametrize("mode", ["keep", "refine"])
def test_entities_without_a_fact_left_are_named(mode):
    facts = [("n", "far", "a4"), ("m", "next", "a4"), ("m", "skip", "a1"), ("k", "far", "k")]
    facts += [("k", "next", "a4")]
    smaller = sheaf_model("transe").extend(facts).remove("a4", mode=mode)
    report = smaller.report
    assert set(report.affected) == {"n", "m", "k"}
    assert report.without_facts == ["n"]
    assert "1 entity of earlier extensions has no facts left: 'n'" in report.summary()
    assert smaller.explain("n").empty
