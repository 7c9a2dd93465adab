from dataclasses import dataclass

import torch
from torch import Tensor

from sheafprop.kernels.coupling import Coupling, CouplingEntries, IdentityCoupling
from sheafprop.kernels.relation_incidence import RelationIncidence
from sheafprop.kernels.rows import take_rows
from sheafprop.sheaf.diagonal_blocks import DiagonalBlocks
from sheafprop.sheaf.relation_sheaf import RelationSheaf, Side, common_dtype
from sheafprop.sheaf.vertex_blocks import VertexBlocks


@dataclass(frozen=True, eq=False)
class IdentitySheaf(RelationSheaf):
    r"""Both restriction maps are the identity, and a relation is its translation :math:`b_r`.

    The sheaf of TransE (:math:`b_r` its relation vectors), and without translations of plain
    feature propagation.

    Args:
        translation (Tensor, optional): :math:`b_r`, ``[R, d]`` real or complex; None for zero.
        relations (int, optional): Number of relations; needed only without translation.

    Raises:
        ValueError: If neither is given, the translation is not a matrix of floating-point or
            complex numbers, or the number of relations is none.
    """

    translation: Tensor | None = None
    relations: int | None = None

    def __post_init__(self) -> None:
        if self.translation is None and self.relations is None:
            raise ValueError("IdentitySheaf needs 'translation' or 'relations' (got neither)")
        # torch.export puts stand-ins of its own in the place of numbers.
        if isinstance(self.relations, float) or (
            isinstance(self.relations, int) and self.relations < 0
        ):
            raise ValueError(f"'relations' must be a number of relations (got {self.relations})")
        common_dtype(self.translation)
        if self.translation is not None:
            if self.translation.dim() != 2:
                raise ValueError(
                    f"'translation' must be [num_relations, d] (got {list(self.translation.shape)})"
                )
            if self.relations not in (None, self.translation.shape[0]):
                raise ValueError(
                    f"'translation' has {self.translation.shape[0]} rows for "
                    f"relations={self.relations}"
                )

    @property
    def num_relations(self) -> int:
        return self.relations if self.translation is None else self.translation.shape[0]  # type: ignore[return-value]

    @property
    def stalk_dim(self) -> int | None:
        return None if self.translation is None else self.translation.shape[1]

    @property
    def dtype(self) -> torch.dtype | None:
        return common_dtype(self.translation)

    def restrict(self, x: Tensor, edge_type: Tensor, side: Side) -> Tensor:
        return x

    def restrict_adjoint(self, y: Tensor, edge_type: Tensor, side: Side) -> Tensor:
        return y

    def translation_of(self, edge_type: Tensor) -> Tensor | None:
        return None if self.translation is None else take_rows(self.translation, 0, edge_type)

    def restriction_map(self, relation: int, side: Side, width: int | None = None) -> Tensor:
        size = self.stalk_dim or width
        if size is None:
            raise ValueError("a sheaf without translations takes any width: give 'width'")
        return torch.eye(size, dtype=self.dtype)

    def end_translations(self) -> Tensor | None:
        return (
            None if self.translation is None else torch.cat([self.translation, -self.translation])
        )

    def end_norms(self) -> Tensor:
        if self.translation is None:
            return torch.ones(2 * self.num_relations)
        return self.translation.real.new_ones(2 * self.num_relations)

    def vertex_blocks(self, ends: RelationIncidence, loops: RelationIncidence) -> VertexBlocks:
        return DiagonalBlocks(ends.total())

    def coupling(self, entries: CouplingEntries) -> Coupling:
        return IdentityCoupling(entries)


torch.export.register_dataclass(IdentitySheaf)
