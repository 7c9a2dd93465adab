import numpy as np
import pytest
import torch

from sheafprop.errors import DataError
from sheafprop.io.importers import import_arrays
from sheafprop.service import SheafModel
from tests.service.models import stored_model

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
