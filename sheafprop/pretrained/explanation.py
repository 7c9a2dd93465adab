from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sheafprop.pretrained.model_state import ModelState
from sheafprop.pretrained.triple_input import label_triples
from sheafprop.sheaf import edge_energy

if TYPE_CHECKING:
    import pandas as pd


class Explanation:
    r"""The energies of the facts that an entity's vector has to agree with.

    Args:
        state (ModelState): The model.
    """

    def __init__(self, state: ModelState):
        self.state = state

    def of(self, target: str | Sequence[str]) -> "pd.DataFrame":
        """The facts at an entity or a triple by energy; see :meth:`SheafModel.explain`."""
        state = self.state
        if isinstance(target, str | int):
            asked, ids = None, state.index.ids(target)
        else:
            asked = state.triple_ids(label_triples([tuple(target)]))
            ids = asked[0, [0, 2]]
        facts = state.facts.at(ids)
        if asked is not None:
            facts = facts[(facts != asked).any(1)]
        energy, ratio = energy_ratio(state, facts)
        order = torch.sort(energy, descending=True, stable=True).indices
        facts, energy, ratio = facts[order], energy[order], ratio[order]
        observed = [True] * len(facts)
        if asked is not None:
            observed = [bool(state.facts.contain(asked)), *observed]
            facts = torch.cat([asked, facts])
            own = energy_ratio(state, asked)
            energy, ratio = torch.cat([own[0], energy]), torch.cat([own[1], ratio])
        frame = state.frame(facts)
        frame["energy"] = energy.tolist()
        frame["ratio"] = ratio.tolist()
        frame["fact"] = observed
        return frame


@torch.no_grad()
def energy_ratio(state: ModelState, triples: Tensor) -> tuple[Tensor, Tensor]:
    """The energy of triples ``[n, 3]``, and its ratio to the mean of its relation in training.

    The ratio is NaN where the relation fits exactly or has no training fact.
    """
    sections, place = state.sections(triples[:, [0, 2]])
    energy = torch.zeros(len(triples), dtype=torch.float64)
    for weight, x in sections:
        energy += weight * edge_energy(x, place.T, triples[:, 1], state.base.sheaf).double()
    usual = state.base.stored.residual_variance.double()[triples[:, 1]]
    return energy, torch.where(usual > 0, energy / usual, torch.nan)
