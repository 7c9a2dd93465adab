import dataclasses

import pytest
import torch

from sheafprop.pretrained.model_state import ModelState
from sheafprop.pretrained.sheaf_model import SheafModel
from tests.pretrained.models import ADRIFT, FACTS, close, sheaf_model, stored_model


def test_old_vectors_are_shared_not_copied():
    model = sheaf_model("rotate", dtype=torch.float32)
    grown = model
    for i in range(40):
        grown = grown.extend([(f"n{i}", "next", f"a{i % 12}")])
    table = model.kge.node_emb.weight
    assert grown._state.rows.blocks[0].data_ptr() == table.data_ptr()
    assert len(grown._state.rows.blocks) < 8
    assert grown.labels()[12:] == tuple(f"n{i}" for i in range(40))
    assert torch.equal(grown.vectors(model.labels()), model.vectors())
    expected = model.extend([(f"n{i}", "next", f"a{i % 12}") for i in range(40)])
    close(grown.vectors(), expected.vectors(), 1e-7)
    assert grown.num_facts == model.num_facts + 40


def test_repeated_facts_of_an_older_folder_count_once():
    stored = stored_model("transe")
    often = SheafModel(dataclasses.replace(stored, facts=stored.facts.repeat_interleave(3, dim=0)))
    assert often.num_facts == len(stored.facts)
    frame = often.explain("a3")
    assert len(frame) == len(SheafModel(stored).explain("a3"))


@pytest.mark.parametrize("propagation", ["exact", "selected"])
def test_a_state_comes_back_from_what_is_stored(propagation):
    state = sheaf_model("rotate").extend(FACTS + ADRIFT, propagation=propagation)._state
    again = ModelState.from_stored(state.stored())
    assert torch.equal(again.vectors(), state.vectors())
    assert again.section_weight == state.section_weight
    assert again.index.vocabulary() == state.index.vocabulary()
    assert again.index.origins() == state.index.origins()
    facts = state.facts.from_row(0)
    assert torch.equal(again.facts.from_row(0), facts)
    assert torch.equal(again.added_facts(), state.added_facts())
    added = (facts[:, [0, 2]] >= state.num_trained).any(1)
    assert torch.equal(state.added_facts(), facts[added])


@pytest.mark.parametrize("propagation", ["exact", "selected"])
@pytest.mark.parametrize("name", ["transe", "rotate", "se"])
def test_a_score_is_the_weighted_one_of_the_sections(name, propagation):
    state = sheaf_model(name).extend(FACTS, propagation=propagation)._state
    head, rel, tail = torch.tensor([[0, 12, 13], [0, 1, 2], [13, 4, 14]])
    x = state.vectors()
    want = sum(
        weight * state.kge.score_triples(x[:, i], head, rel, tail)
        for i, weight in enumerate(state.section_weight)
    )
    close(state.score(head, rel, tail), want)


def test_rewritten_entities_have_other_vectors_and_origins():
    state = sheaf_model("transe").extend(FACTS)._state
    vectors = torch.arange(24, dtype=torch.float64).view(2, 3, 4)
    changed = state.rewrite(torch.tensor([12, 14]), vectors, ["unanchored", "extended"])
    assert torch.equal(changed.rows.select(torch.tensor([12, 14])), vectors)
    assert torch.equal(changed.rows.blocks[0], state.rows.blocks[0])
    old = state.vectors(torch.tensor([13])).expand(-1, 3, -1)
    assert torch.equal(changed.rows.select(torch.tensor([13])), old)
    assert changed.index.origins()[12:] == ("unanchored", "extended", "extended")
    assert state.index.origins()[12:] == ("extended",) * 3


def test_what_was_removed_is_gone_from_what_is_stored():
    state = sheaf_model("rotate").extend(FACTS)._state
    kept = torch.ones(state.num_entities, dtype=torch.bool)
    kept[[2, 13]] = False
    facts = state.facts.from_row(0)
    facts = facts[kept[facts[:, [0, 2]]].all(1)]
    smaller = state.without(torch.tensor([2, 13]))
    assert smaller.rows.blocks[0] is state.rows.blocks[0]
    stored = smaller.stored()
    labels = [label for label, own in zip(state.index.iterate(), kept, strict=True) if own]
    assert list(stored.entities.labels) == labels
    assert torch.equal(stored.model.entity_vectors(), state.vectors()[:12][kept[:12], 0])
    assert torch.equal(stored.extended, state.vectors(torch.tensor([12, 14])))
    assert stored.entities.labels_of(stored.facts[:, 0]) == state.index.labels_of(facts[:, 0])
    assert stored.entities.labels_of(stored.facts[:, 2]) == state.index.labels_of(facts[:, 2])
    assert smaller.num_trained_facts == stored.num_trained_facts


def test_scores_in_blocks_are_those_in_one_piece(monkeypatch):
    monkeypatch.setattr("sheafprop.inductive.section_scorer._NUMBERS", 1)
    monkeypatch.setattr("sheafprop.inductive.section_scorer.max", lambda *x: 5, raising=False)
    state = sheaf_model("pairre").extend(FACTS)._state
    entity, relation = torch.arange(15), torch.arange(15) % 3
    found = list(state.score_blocks(entity, relation, "head"))
    assert [first for first, _ in found] == [0, 5, 10, 12]
    want = state.candidate_scores(entity, relation, "head")
    close(torch.cat([scores for _, scores in found], 1), want)
