from dataclasses import dataclass
from functools import cached_property

import torch

from sheafprop.io import StoredModel
from sheafprop.service.extension_solver import ExtensionSolver
from sheafprop.sheaf import RelationSheaf


@dataclass(frozen=True, eq=False)
class ModelBase:
    """What a model and its extensions share: the trained model.

    Args:
        stored (StoredModel): The model as it was loaded or trained.
    """

    stored: StoredModel

    @cached_property
    def sheaf(self) -> RelationSheaf:
        """The sheaf of the trained relations."""
        with torch.no_grad():
            return self.stored.model.sheaf()

    @cached_property
    def solver(self) -> ExtensionSolver:
        """The solver of new vectors."""
        stored = self.stored
        return ExtensionSolver(
            stored.model, self.sheaf, stored.prototypes, stored.residual_variance
        )

    @cached_property
    def has_unit_rows(self) -> bool:
        """Whether the model trains with entities of length one."""
        return self.stored.model.has_unit_rows()

    @cached_property
    def num_trained_facts(self) -> int:
        """Facts before the first one that touches an added entity."""
        added = (self.stored.facts[:, [0, 2]] >= self.stored.model.num_nodes).any(1)
        return int(added.to(torch.uint8).argmax()) if bool(added.any()) else len(added)
