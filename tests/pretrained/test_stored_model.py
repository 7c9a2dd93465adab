import dataclasses

import pytest
import torch

from sheafprop.data import Vocabulary
from sheafprop.errors import DivergenceError
from sheafprop.kge import KGE_REGISTRY
from sheafprop.pretrained.stored_model import StoredModel, select_entities
from sheafprop.sheaf import edge_energy
from tests.pretrained.models import FACTS, SETTINGS, sheaf_model, stored_model


@pytest.mark.parametrize("name", sorted(KGE_REGISTRY))
def test_training_statistics_are_means_over_the_facts(name):
    stored = stored_model(name)
    x, sheaf = stored.model.entity_vectors().detach(), stored.model.sheaf()
    head, rel, tail = stored.facts.unbind(1)
    energy = edge_energy(x, torch.stack([head, tail]), rel, sheaf).detach()
    for relation in range(len(stored.relations)):
        mean = energy[rel == relation].mean()
        torch.testing.assert_close(stored.residual_variance[relation], mean)
        for end, nodes in enumerate((head, tail)):
            row = relation + end * len(stored.relations)
            mean = x[nodes[rel == relation]].mean(0)
            torch.testing.assert_close(stored.prototypes.mean[row], mean)
    assert stored.origins == ("trained",) * stored.model.num_nodes
    assert stored.num_trained_facts == len(stored.facts)


@pytest.mark.parametrize("name", sorted(KGE_REGISTRY))
def test_statistics_keep_no_graph_of_what_they_were_computed_from(name):
    model = stored_model(name).model.train()
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    first = stored_model(name)
    stored = StoredModel.from_training(model, first.entities, first.relations, first.facts)
    assert not stored.prototypes.mean.requires_grad
    assert not stored.residual_variance.requires_grad


def test_repeated_facts_count_once():
    stored = stored_model("transe")
    often = StoredModel.from_training(
        stored.model, stored.entities, stored.relations, stored.facts.repeat(2, 1)
    )
    assert torch.equal(often.facts, stored.facts)
    assert torch.equal(often.residual_variance, stored.residual_variance)


@pytest.mark.parametrize("propagation", ["exact", SETTINGS])
def test_facts_of_training_come_before_those_of_added_entities(propagation):
    model = sheaf_model("transe")
    stored = model.extend(FACTS, propagation=propagation).stored()
    assert stored.num_trained_facts == model.num_facts
    assert stored.extended.shape[:2] == (3, len(stored.section_weight))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(entities=Vocabulary(["a"], kind="entities")), "same entities|out of range|ids"),
        (dict(origins=("trained",)), "'origins' must be 'trained' for the first 12"),
        (dict(section_weight=(0.5,)), "'section_weight' must be positive and add up to 1"),
        (dict(residual_variance=torch.zeros(2)), r"the shape of residual_variance must be \[3\]"),
        (dict(extended=torch.zeros(1, 1, 4)), "same entities"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(stored_model("transe"), **changes)


def test_a_variance_that_is_not_finite_is_named():
    stored = stored_model("transe")
    variance = stored.residual_variance.clone()
    variance[1] = torch.nan
    with pytest.raises(DivergenceError, match="residual variances: the row of relation 'skip'"):
        dataclasses.replace(stored, residual_variance=variance)


@pytest.mark.parametrize("name", ["transe", "rotate", "se"])
@pytest.mark.parametrize("as_mask", [False, True])
def test_selected_entities_keep_rows_and_relations(name, as_mask):
    model = stored_model(name).model
    kept = torch.tensor([0, 3, 7])
    mask = torch.zeros(12, dtype=torch.bool).index_fill(0, kept, True)
    smaller = select_entities(model, mask if as_mask else kept)
    assert smaller.num_nodes == 3
    assert torch.equal(smaller.entity_vectors(), model.entity_vectors()[kept])
    for key, value in smaller.state_dict().items():
        assert key == "node_emb.weight" or torch.equal(value, model.state_dict()[key])
