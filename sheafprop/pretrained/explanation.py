from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sheafprop.data.triples import LABEL
from sheafprop.pretrained.feature_input import feature_rows
from sheafprop.pretrained.model_state import ModelState
from sheafprop.pretrained.triple_input import (
    TripleInput,
    label_triples,
    labels_as_given,
    restore_integers,
    triple_ids,
)
from sheafprop.sheaf import edge_energy

if TYPE_CHECKING:
    import pandas as pd


def explain(state: ModelState, target: str | Sequence[str]) -> "pd.DataFrame":
    """The facts at an entity or a triple by energy; see :meth:`SheafModel.explain`."""
    if isinstance(target, LABEL):
        asked, ids = torch.zeros(0, 3, dtype=torch.int64), state.index.ids(target)
    else:
        asked = state.triple_ids(label_triples([tuple(target)]))
        ids = asked[0, [0, 2]]
    facts = state.facts.at(ids)
    if len(asked):
        facts = facts[(facts != asked).any(1)]
    triples = torch.cat([asked, facts])
    energy, ratio = energy_ratio(state, triples)
    first = len(asked)
    order = torch.sort(energy[first:], descending=True, stable=True).indices + first
    order = torch.cat([torch.arange(first), order])
    frame = state.frame(triples[order])
    frame["energy"] = energy[order].tolist()
    frame["ratio"] = ratio[order].tolist()
    frame["fact"] = [*state.facts.contain(asked).tolist(), *[True] * len(facts)]
    given = ([target], []) if isinstance(target, LABEL) else (target[::2], target[1:2])
    frame = restore_integers(frame, *given)
    for row in feature_rows(state, ids.unique()):
        frame.loc[len(frame)] = row
    return frame


def score_triples(
    state: ModelState, triples: TripleInput, skip_unknown: bool = False
) -> "pd.DataFrame":
    """Scores and ratios of triples; see :meth:`SheafModel.score`."""
    if not isinstance(triples, str | PathLike) and iter(triples) is triples:
        triples = list(triples)
    rows = label_triples(triples, state.relations)
    ids = triple_ids(rows, state.index, state.relations, skip_unknown)
    frame = state.frame(ids)
    score = state.score(*ids.unbind(1)).double()
    state.check_scores(score)
    frame["score"] = score.tolist()
    frame["ratio"] = energy_ratio(state, ids)[1].tolist()
    if state.trained.calibration is not None:
        head, relation, tail = ids.unbind(1)
        sides = [
            state.probability("tail", head, relation, tail),
            state.probability("head", tail, relation, head),
        ]
        frame["probability"] = ((sides[0] + sides[1]) / 2).tolist()
    frame["known"] = state.facts.contain(ids).tolist()
    return restore_integers(frame, *labels_as_given(triples))


@torch.no_grad()
def energy_ratio(state: ModelState, triples: Tensor) -> tuple[Tensor, Tensor]:
    """The energy of triples ``[n, 3]``, and its ratio to the mean of its relation in training.

    The ratio is NaN where the relation fits exactly or has no training fact.
    """
    if state.graph_scorer is not None and state.trained.episodes is not None:
        return state.graph_scorer.energy_ratio(triples)
    sections, place = state.sections(triples[:, [0, 2]])
    energy = torch.zeros(len(triples), dtype=torch.float64)
    for weight, x in sections:
        energy += weight * edge_energy(x, place.T, triples[:, 1], state.trained.sheaf).double()
    usual = state.trained.residual_variance.double()[triples[:, 1]]
    return energy, torch.where(usual > 0, energy / usual, torch.nan)
