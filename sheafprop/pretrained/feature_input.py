"""Features that a user gives to a model, and what they come to."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sheafprop.checks import agree, count_noun
from sheafprop.data.features import FeatureTable
from sheafprop.inductive.feature_map import FeatureMap, weigh_by_facts
from sheafprop.pretrained.entity_features import EntityFeatures
from sheafprop.pretrained.model_state import ModelState

#: What stands for head and relation where features are explained.
FEATURES = "(features)"


def fit_entity_features(state: ModelState, table: FeatureTable) -> EntityFeatures:
    """The map from features to the vectors of a model's trained entities.

    Raises:
        DataError: If fewer than three of these have features.
    """
    ids = state.index.lookup(table.labels)
    ids = ids[(ids >= 0) & (ids < state.num_trained)]
    x = state.rows.select(ids)[:, 0]
    facts = state.facts.from_row(0)[: state.num_trained_facts]
    count = torch.bincount(facts[:, [0, 2]].flatten(), minlength=state.num_trained)[ids]
    relations = facts[:, 1]
    variance = state.trained.residual_variance.double()
    residual = float(variance[relations].mean()) if len(relations) else 0.0
    labels = state.index.labels_of(ids)
    found = FeatureMap.fit(table, x, labels, edge_residual=residual, count=count)
    return EntityFeatures.of_map(found, x)


class GivenFeatures(NamedTuple):
    """What the features that an extension was given come to.

    ``alone`` are labels of new entities that no fact names, ``known`` ids of added entities that
    are solved again for their features, and ``number`` of how many entities features count.
    """

    state: ModelState
    alone: list[str]
    known: Tensor
    number: int
    notes: list[str]


def take_features(
    state: ModelState, table: FeatureTable | None, new: Sequence[str], mode: str
) -> GivenFeatures:
    """The state with the anchors of entities that are solved for, from given features.

    Args:
        state (ModelState): The model.
        table (FeatureTable, optional): The features.
        new (sequence of str): New entities that facts name.
        mode (str): ``"refine"`` to solve entities of earlier extensions with features again.

    Raises:
        DataError: If the features fit neither the model's nor its trained entities.
    """
    nothing = torch.zeros(0, dtype=torch.int64)
    if table is None:
        return GivenFeatures(state, [], nothing, 0, [])
    features, notes = state.trained.features, []
    if features is None:
        features = fit_entity_features(state, table)
        notes.append(f"the map was fitted now: {features.map.summary()}")
    else:
        notes += features.map.encoder.notes(table)
    ids = state.index.lookup(table.labels)
    has_facts = set(new)
    unknown = [
        label
        for label, number in zip(table.labels, ids.tolist(), strict=True)
        if number < 0 and label not in has_facts
    ]
    alone = [unknown[i] for i in features.map.anchors(table, unknown).nodes.tolist()]
    if left := len(unknown) - len(alone):
        notes.append(
            f"{count_noun(left, 'entity')} without a fact and without a known feature "
            f"{agree(left, 'is', 'are')} left out"
        )
    known = ids[ids >= state.num_trained]
    if mode == "keep" and len(known):
        notes.append(
            f"{count_noun(len(known), 'entity')} of earlier extensions "
            f"{agree(len(known), 'keeps its vector', 'keep their vectors')}; mode='refine' (--mode "
            "refine) takes their features"
        )
        known = nothing
    names = [*new, *alone, *state.index.labels_of(known)]
    count = len(features.map.anchors(table, names).nodes)
    features = features.add(table, names)
    state = replace(state, trained=replace(state.trained, features=features))
    return GivenFeatures(state, alone, known, count, notes)


def feature_rows(state: ModelState, ids: Tensor) -> list[list[Any]]:
    r"""What the features of entities add to the energy, as rows of an explanation.

    The energy is :math:`\gamma_v \| x_v - W f_v \|^2`, and its ratio is to the mean on training
    entities left out.
    """
    features = state.trained.features
    if features is None:
        return []
    labels = state.index.labels_of(ids)
    found = features.anchors(labels)
    x = state.vectors(ids[found.nodes])
    weights = torch.tensor(state.section_weight, dtype=torch.float64)
    named = ids[found.nodes]
    facts = state.facts.at(named)[:, [0, 2]]
    number = (facts.flatten().unsqueeze(1) == named).sum(0)
    gamma = weigh_by_facts(found.weight, number)
    square = (x - found.target.unsqueeze(1)).abs().double().square().sum(2) @ weights
    return [
        [FEATURES, FEATURES, labels[node], float(weight) * one, one / features.map.error, False]
        for node, weight, one in zip(
            found.nodes.tolist(), gamma.tolist(), square.tolist(), strict=True
        )
    ]
