from dataclasses import replace

import pandas as pd
import pytest
import torch

from sheafprop.data import FeatureTable, KnowledgeGraph, assemble
from sheafprop.data.inductive_data import add_features
from sheafprop.inductive.free_system import FreeSystem
from sheafprop.inductive.inductive_propagation import InductivePropagation
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.inductive.section_scorer import KnownRows, SectionScorer
from sheafprop.kge import KGE_REGISTRY, build_model
from sheafprop.nn import RelationPrototypes, SheafPropagation
from sheafprop.nn.relation_weights import relation_weights, residual_variance
from tests.toy import parts, toy_data


def trained(name, data, **arguments):
    model = build_model(
        name,
        num_nodes=data.train.num_nodes,
        num_relations=data.num_relations,
        hidden_channels=8,
        **arguments,
    )
    model.reset_parameters(0)
    return model


@pytest.mark.parametrize("name", sorted(KGE_REGISTRY))
@pytest.mark.parametrize("start", ["random", "zeros", "prototype", "mixed"])
@pytest.mark.parametrize("mode", ["semi-inductive", "fully-inductive"])
def test_known_vectors_stay_and_new_ones_come(name, start, mode):
    data = toy_data(mode)
    model = trained(name, data)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    settings = PropagationSettings(start=start, num_random=3, iterations=5)
    propagation = InductivePropagation(model, data, settings)
    x = propagation.vectors()
    assert x.shape == (data.inference.num_nodes, settings.num_sections, 8)
    known = data.boundary_mask
    trained_rows = model.entity_vectors()[data.boundary_source[known]].unsqueeze(1)
    assert torch.equal(x[known], trained_rows.expand_as(x[known]))
    lengths = torch.linalg.vector_norm(x[~known], dim=-1)
    # Without a translation and an anchor, zeros stay zeros and are left alone.
    expected = float(model.sheaf().translation is not None or start != "zeros" or bool(known.any()))
    assert torch.allclose(lengths, torch.full_like(lengths, expected), atol=1e-5)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])


@pytest.mark.parametrize("name", sorted(KGE_REGISTRY))
def test_equals_the_layer_called_by_hand(name):
    data = toy_data()
    model = trained(name, data)
    settings = PropagationSettings(
        start="zeros", iterations=4, normalize_output=False, teleport=0.2, step_size=0.7
    )
    x = InductivePropagation(model, data, settings).vectors()
    full = torch.zeros(data.inference.num_nodes, 8, dtype=x.dtype)
    full[: data.train.num_nodes] = model.entity_vectors().detach()
    layer = SheafPropagation(4, step_size=0.7, teleport=0.2)
    by_hand = layer(
        full,
        data.inference.edge_index,
        data.inference.edge_type,
        model.sheaf(),
        boundary_mask=data.boundary_mask,
    )
    assert torch.allclose(x.squeeze(1), by_hand, atol=1e-6)


def test_a_start_does_not_depend_on_who_else_is_new():
    kept = parts("fully-inductive")
    some = assemble("some", "fully-inductive", **kept)
    more = assemble(
        "more",
        "fully-inductive",
        **kept | {"observed": [("z0", "next", "z1"), *kept["observed"]]},
    )
    model = trained("rotate", some)
    settings = PropagationSettings(start="random", num_random=2, iterations=0)
    a = InductivePropagation(model, some, settings).vectors()
    b = InductivePropagation(model, more, settings).vectors()
    place = more.inference.entities.ids(some.inference.entities.labels)
    assert torch.equal(a, b[place])


def test_relation_weights_change_the_result_and_stay_finite():
    data = toy_data()
    model = trained("transe", data)
    plain = InductivePropagation(model, data, PropagationSettings()).vectors()
    weighted = InductivePropagation(
        model, data, PropagationSettings(relation_weights=True)
    ).vectors()
    assert torch.isfinite(weighted).all()
    assert not torch.allclose(plain, weighted)


def test_mixed_scores_weigh_the_prototype_section():
    data = toy_data("fully-inductive")
    model = trained("rotate", data, squared=True)
    settings = PropagationSettings(start="mixed", num_random=4, prototype_share=0.4)
    propagation = InductivePropagation(model, data, settings)
    x = propagation.vectors()
    scorer = propagation.scorer()
    assert sum(settings.section_weight) == pytest.approx(1)
    h, r, t = torch.tensor([0, 3]), torch.tensor([1, 2]), torch.tensor([5, 0])
    expected = sum(
        w * model.score_triples(x[:, i], h, r, t) for i, w in enumerate(settings.section_weight)
    )
    assert torch.allclose(scorer.score_tails(h, r)[[0, 1], t], expected, atol=1e-5)
    assert torch.allclose(scorer.score_heads(r, t)[[0, 1], h], expected, atol=1e-5)


@pytest.mark.parametrize("mode", ["semi-inductive", "fully-inductive"])
@pytest.mark.parametrize("start", ["mixed", "prototype"])
def test_triples_to_predict_are_no_facts(mode, start):
    """Vectors depend on training and observed triples alone, whatever else is true."""
    data = toy_data(mode)
    model = trained("rotate", data)
    settings = PropagationSettings(start=start, num_random=2, relation_weights=True, iterations=3)
    x = InductivePropagation(model, data, settings).vectors()
    changes = {"valid": None, "test": data.test.flip(0) % 3, "train_valid": None}
    other = replace(data, **changes)
    assert torch.equal(InductivePropagation(model, other, settings).vectors(), x)
    # What is observed does count, and so does the training graph, through its prototypes.
    observed = data.inference.triples
    for change in (
        {"inference": graph(data.inference, observed[: len(observed) // 2])},
        {"train": graph(data.train, data.train.triples[::3])},
    ):
        vectors = InductivePropagation(model, replace(data, **change), settings).vectors()
        assert not torch.equal(vectors, x)


def graph(whole, triples):
    return KnowledgeGraph.from_triples(
        triples,
        num_nodes=whole.num_nodes,
        num_relations=whole.num_relations,
        entities=whole.entities,
        relations=whole.relations,
    )


def test_a_system_is_propagated_as_the_data_it_was_built_from():
    """The same free system, with the statistics of training given: bit for bit the same vectors."""
    data = toy_data()
    model = trained("rotate", data)
    settings = PropagationSettings(num_random=2, iterations=3, relation_weights=True)
    x, sheaf = model.entity_vectors().detach(), model.sheaf()
    edges, types = data.train.edge_index, data.train.edge_type
    known = data.boundary_source.clamp_min(0)
    system = FreeSystem(
        torch.where(data.boundary_mask[:, None], x[known], 0)[:, None],
        data.boundary_mask,
        data.inference.edge_index,
        data.inference.edge_type,
        data.inference.entities.labels_of((~data.boundary_mask).nonzero()),
    )
    again = InductivePropagation.from_system(
        model,
        system,
        settings,
        sheaf=sheaf,
        prototypes=RelationPrototypes.from_triples(x, edges, types, data.num_relations),
        variance=residual_variance(x, edges, types, sheaf).detach(),
    )
    expected = InductivePropagation(model, data, settings).vectors()
    torch.testing.assert_close(again.vectors(), expected)


def with_features(mode, share=1.0):
    """The ring with features of its entities: where they are in it, and a kind."""
    data = toy_data(mode)
    labels = [*data.train.entities.labels, *data.inference.entities.labels]
    labels = list(dict.fromkeys(labels))
    angle = torch.tensor([int(label[1:]) for label in labels]) * 0.5
    frame = pd.DataFrame(
        {"x": angle.sin().numpy(), "y": angle.cos().numpy(), "kind": [f"k{i % 3}" for i in
         range(len(labels))]}, index=labels,
    )  # fmt: skip
    return add_features(data, FeatureTable.of(frame.iloc[: int(share * len(frame))]))


@pytest.mark.parametrize("name", ["transe", "rotate", "transr", "um"])
@pytest.mark.parametrize("start", ["random", "zeros", "prototype", "mixed"])
@pytest.mark.parametrize("mode", ["semi-inductive", "fully-inductive"])
def test_features_draw_all_sections_or_in_a_graph_of_new_entities_the_prototype_alone(
    name, start, mode
):
    data = with_features(mode)
    model = trained(name, data)
    settings = PropagationSettings(start=start, num_random=2, iterations=4)
    ours = InductivePropagation(model, data, settings)
    plain = InductivePropagation(model, replace(data, features=None), settings)
    assert plain.feature_map is None
    assert ours.feature_map.count == data.train.num_nodes
    x, y = ours.vectors(), plain.vectors()
    assert x.shape == y.shape
    moved = ~torch.isclose(x, y).all(dim=2)
    free = ~data.boundary_mask
    assert not bool(moved[~free].any())
    moves = moved[free].all(0).tolist()
    if mode == "semi-inductive":
        assert moves == [True] * x.shape[1]
        return
    assert moves == [start in ("prototype", "mixed")] + [False] * (x.shape[1] - 1)
    same = torch.isclose(x, y).all(dim=2).all(0).tolist()
    assert same == [not move for move in moves]


def test_the_limit_of_the_run_is_that_of_the_extension_and_relations_weigh():
    data = with_features("semi-inductive", share=0.9)
    model = trained("transe", data).double()
    settings = PropagationSettings(
        start="zeros", iterations=2000, normalize_output=False, relation_weights=True
    )
    propagation = InductivePropagation(model, data, settings)
    x = propagation.vectors()[:, 0].detach()
    head, relation, tail = data.inference.triples.unbind(1)
    known = torch.stack([head, tail])
    sheaf = model.sheaf()
    variance = residual_variance(
        model.entity_vectors(), data.train.triples[:, [0, 2]].T, data.train.triples[:, 1], sheaf
    )
    count = torch.bincount(data.train.triples[:, 1], minlength=data.num_relations)
    weight = relation_weights(variance, count)[relation]
    labels = data.inference.entities.labels
    anchors = propagation.feature_map.anchors(data.features, labels)
    leaf = x.clone().requires_grad_()
    gap = leaf[tail] - leaf[head] - sheaf.translation[relation]
    energy = (weight * gap.square().sum(1)).sum()
    number = torch.bincount(known.flatten(), minlength=len(x))[anchors.nodes]
    pull = (leaf[anchors.nodes] - anchors.target).square().sum(1)
    energy = energy + (2 * anchors.weight / (1 + number) * pull).sum()
    (slope,) = torch.autograd.grad(energy, leaf)
    assert float(slope[~data.boundary_mask].abs().max()) < 1e-9
    usual = variance[data.train.triples[:, 1]].double().mean()
    assert propagation.feature_map.gamma == pytest.approx(
        float(usual) / propagation.feature_map.error
    )


def test_an_entity_without_a_fact_in_the_training_graph_is_not_fitted_on():
    data = with_features("semi-inductive")
    model = trained("rotate", data)
    lone = KnowledgeGraph.from_triples(
        data.train.triples[(data.train.triples[:, [0, 2]] != 2).all(1)],
        num_nodes=data.train.num_nodes,
        num_relations=data.num_relations,
        entities=data.train.entities,
        relations=data.train.relations,
    )
    found = InductivePropagation(model, replace(data, train=lone), PropagationSettings())
    assert found.feature_map.count == data.train.num_nodes - 1


@pytest.mark.parametrize("name", sorted(KGE_REGISTRY))
def test_known_vectors_are_scored_where_they_are(name, monkeypatch):
    """One table for all sections gives the scores of a copy for each section."""
    data = toy_data("semi-inductive")
    model = trained(name, data).double()
    settings = PropagationSettings(start="mixed", num_random=3, iterations=3)
    propagation = InductivePropagation(model, data, settings)
    full = SectionScorer(model, propagation.vectors(), settings.section_weight)

    def refuse(*_: object) -> None:
        raise AssertionError("known vectors were copied for every section")

    monkeypatch.setattr(KnownRows, "join", refuse)
    scorer = propagation.scorer()
    size, relations = data.inference.num_nodes, data.num_relations
    entity = torch.arange(size).repeat_interleave(relations)
    relation = torch.arange(relations).repeat(size)
    for got, want in (
        (scorer.score_tails(entity, relation), full.score_tails(entity, relation)),
        (scorer.score_heads(relation, entity), full.score_heads(relation, entity)),
    ):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-7)


def test_only_facts_of_new_entities_are_propagated():
    """The size of the system follows the new entities, not the graph."""
    data = toy_data("semi-inductive")
    settings = PropagationSettings(start="mixed", num_random=2, iterations=2)
    propagation = InductivePropagation(trained("rotate", data), data, settings)
    free = ~data.boundary_mask
    head, tail = data.inference.edge_index
    near = torch.unique(data.inference.edge_index[:, free[head] | free[tail]])
    rows = torch.unique(torch.cat([near, free.nonzero().flatten()]))
    assert len(rows) < data.inference.num_nodes
    ((_, local),) = propagation._steps([2])
    assert len(local) == len(rows)
    assert torch.equal(local[~data.boundary_mask[rows]], propagation.vectors()[free])
