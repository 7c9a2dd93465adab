import numpy as np
import pytest
import torch

from sheafprop.errors import DataError
from sheafprop.pretrained.importers.arrays import import_arrays
from sheafprop.pretrained.sheaf_model import SheafModel
from tests.pretrained.models import stored_model

COMMON = {"entities": ["a", "b", "c"], "relations": ["r"]}


@pytest.mark.parametrize("name", ["transe", "rotate", "transr", "se", "pairre"])
def test_the_parts_of_a_model_make_the_model(name):
    stored = stored_model(name)
    state = {k: v.numpy() for k, v in stored.model.state_dict().items()}
    vectors = state.pop("node_emb.weight")
    if name == "rotate":
        complex_ones = vectors[:, 0::2] + 1j * vectors[:, 1::2]
    facts = SheafModel(stored).facts().to_numpy().tolist()
    for rows in [vectors] + ([complex_ones] if name == "rotate" else []):
        again = import_arrays(
            name,
            entities=stored.entities.labels,
            relations=stored.relations.labels,
            vectors=rows,
            parameters=state,
            facts=facts,
        )
        head, relation, tail = stored.facts.unbind(1)
        assert torch.equal(again.facts, stored.facts)
        assert torch.equal(again.model(head, relation, tail), stored.model(head, relation, tail))
        assert torch.allclose(again.residual_variance, stored.residual_variance)


def test_arrays_of_another_byte_order_or_direction_are_read():
    rows = np.random.default_rng(3).normal(size=(3, 4))
    steps = np.arange(4.0).reshape(1, 4)
    expected = import_arrays("transe", vectors=rows, parameters={"rel_emb.weight": steps}, **COMMON)
    for turned in (rows.astype(">f8"), np.ascontiguousarray(rows[::-1])[::-1], rows.T.copy().T):
        parameters = {"rel_emb.weight": steps.astype(">f4")}
        found = import_arrays("transe", vectors=turned, parameters=parameters, **COMMON)
        for name, value in expected.model.state_dict().items():
            assert torch.equal(found.model.state_dict()[name], value)


def test_repeated_facts_are_counted_in_a_warning_and_count_once():
    facts = [("c", "r", "a"), ("b", "r", "c")]
    arrays = COMMON | {
        "vectors": np.arange(12.0).reshape(3, 4),
        "parameters": {"rel_emb.weight": np.ones((1, 4))},
    }
    once = import_arrays("transe", facts=facts, **arrays)
    with pytest.warns(UserWarning, match="3 facts repeat an earlier one"):
        often = import_arrays("transe", facts=[*facts, facts[0], *facts], **arrays)
    assert torch.equal(often.facts, once.facts)
    assert torch.equal(often.prototypes.mean, once.prototypes.mean)
    assert torch.equal(often.residual_variance, once.residual_variance)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"vectors": np.zeros((2, 4))}, ValueError, r"\[3, d\], a row for each"),
        ({"vectors": np.zeros(3)}, ValueError, "a row for each"),
        ({"parameters": {}}, ValueError, "has the parameters"),
        ({"parameters": {"rel_emb.weight": np.zeros((1, 5))}}, ValueError, "has the parameters"),
        (
            {"parameters": {"rel_emb.weight": np.zeros((1, 4), dtype=int)}},
            ValueError,
            "real numbers",
        ),
        ({"entities": ["a", "a", "b"]}, DataError, "once"),
        ({"facts": [("a", "r", "z")]}, DataError, "'z'"),
    ],
)
def test_parts_that_do_not_fit_are_named(changes, error, message):
    given = {
        "vectors": np.zeros((3, 4)),
        "parameters": {"rel_emb.weight": np.zeros((1, 4))},
        **COMMON,
    }
    with pytest.raises(error, match=message):
        import_arrays("transe", **(given | changes))


@pytest.mark.parametrize("name", ["transe", "rotate", "se"])
def test_entities_without_a_fact_are_left_out_and_counted(name):
    stored = stored_model(name)
    state = {k: v.numpy() for k, v in stored.model.state_dict().items()}
    rows = state.pop("node_emb.weight")
    given = {
        "entities": ["odd", *stored.entities.labels, "idle"],
        "relations": stored.relations.labels,
        "vectors": np.concatenate([rows[:1], rows, rows[:1]]),
        "parameters": state,
    }
    facts = SheafModel(stored).facts().to_numpy().tolist()
    with pytest.warns(UserWarning, match="2 of the 14 entities occur in no fact"):
        model = SheafModel(import_arrays(name, facts=facts, **given))
    want = SheafModel(stored)
    assert model.labels() == want.labels()
    assert torch.equal(model.vectors(), want.vectors())
    assert model.facts().equals(want.facts())
    assert set(model.predict_tails("a0", "next", 99)["tail"]) <= set(want.labels())
    assert (
        SheafModel(import_arrays(name, facts=facts, keep_unused=True, **given)).num_entities == 14
    )
    # Without facts nobody can tell.
    assert SheafModel(import_arrays(name, **given)).num_entities == 14


def _trained(facts, phases, *, seed=0):
    """Unit phases on a walk: every fact fits exactly, and another triple does not."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.view_as_complex(torch.randn(30, 6, 2, generator=generator, dtype=torch.float64))
    turn = torch.polar(torch.ones_like(phases), phases)
    for head, relation, tail in facts:
        x[tail] = x[head] * turn[relation]
    return x


def test_layout_and_phase_scale_give_the_model_that_was_trained():
    phases = torch.linspace(-2, 2, 12, dtype=torch.float64).view(2, 6)
    facts = [(i, i % 2, i + 1) for i in range(29)]
    x = _trained(facts, phases)
    labels = [(f"e{h}", f"r{r}", f"e{t}") for h, r, t in facts]
    names = {"entities": [f"e{i}" for i in range(30)], "relations": ["r0", "r1"], "facts": labels}
    halves = torch.cat([x.real, x.imag], dim=1).numpy()
    want = import_arrays("rotate", vectors=x, parameters={"rel_emb.weight": phases}, **names)
    got = import_arrays(
        "rotate",
        vectors=halves,
        parameters={"rel_emb.weight": phases / 8},
        layout="halves",
        phase_scale=8.0,
        **names,
    )
    assert torch.equal(got.model.node_emb.weight, want.model.node_emb.weight)
    assert torch.allclose(got.model.rel_emb.weight, phases, atol=1e-12, rtol=0)
    scores = [m.model(*torch.tensor(facts).T) for m in (want, got)]
    assert all(torch.allclose(s, torch.zeros(29, dtype=s.dtype), atol=1e-12) for s in scores)
    # Read in the other layout, the facts do not fit, and this is reported.
    wrong = {"vectors": halves, "parameters": {"rel_emb.weight": phases}}
    with pytest.warns(UserWarning, match="--layout halves") as caught:
        stored = import_arrays("rotate", **wrong, **names)
    notes = " ".join(stored.metrics["import"]["notes"])
    assert "taken in turn" in notes
    assert "the vectors seem to be halves" in notes
    assert len(caught) == len(stored.metrics["import"]["notes"])


def test_facts_that_fit_no_better_than_chance_are_reported():
    generator = torch.Generator().manual_seed(1)
    vectors = torch.randn(40, 5, generator=generator)
    step = torch.randn(1, 5, generator=generator)
    facts = [(f"e{i}", "r", f"e{i + 1}") for i in range(39)]
    given = {"entities": [f"e{i}" for i in range(40)], "relations": ["r"], "facts": facts}
    exact = step * torch.arange(40).unsqueeze(1)
    good = import_arrays("transe", vectors=exact, parameters={"rel_emb.weight": step}, **given)
    assert good.metrics["import"]["notes"] == []
    shuffled = exact[torch.randperm(40, generator=generator)]
    for rows in (vectors, shuffled):
        with pytest.warns(UserWarning, match="chance: 50 %"):
            import_arrays("transe", vectors=rows, parameters={"rel_emb.weight": step}, **given)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "transe", "layout": "halves"}, "are for rotate"),
        ({"model": "transe", "phase_scale": 2.0}, "are for rotate"),
        ({"layout": "thirds"}, "'layout' must be 'halves' or 'pairs'"),
        ({"layout": "halves", "vectors": np.zeros((3, 5))}, "even number of columns"),
        ({"layout": "pairs", "vectors": np.zeros((3, 2), dtype=complex)}, "these are complex"),
    ],
)
def test_layouts_that_make_no_sense_are_named(changes, message):
    given = {
        "model": "rotate",
        "vectors": np.zeros((3, 4)),
        "parameters": {"rel_emb.weight": np.zeros((1, 2))},
        **COMMON,
    } | changes
    with pytest.raises(ValueError, match=message):
        import_arrays(given.pop("model"), **given)
