from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sheafprop.kernels.coupling import Coupling, CouplingEntries, IdentityCoupling
from sheafprop.kernels.csr_product import CSRProduct
from sheafprop.kernels.pairwise_squares import near_squares
from sheafprop.kernels.relation_incidence import RelationIncidence
from sheafprop.kernels.rows import take_rows
from sheafprop.sheaf.diagonal_sheaf import DiagonalSheaf
from sheafprop.sheaf.relation_sheaf import RelationSheaf, Side, common_dtype
from sheafprop.sheaf.vertex_blocks import DiagonalBlocks, VertexBlocks


@dataclass(frozen=True, eq=False, repr=False)
class IdentitySheaf(RelationSheaf):
    r"""Both restriction maps are the identity; relations differ in their translations :math:`b_r`.

    The sheaf of TransE (:math:`b_r` are its relation vectors) and, without translations, of feature
    propagation.

    Args:
        translation (Tensor, optional): :math:`b_r`, ``[R, d]`` real or complex; None for zero.
        relations (int, optional): Number of relations; required only without translation.

    Raises:
        ValueError: If neither is given, the translation is not a matrix of floating-point or
            complex numbers, or the number of relations is not positive.
    """

    independent_columns: ClassVar[bool] = True
    has_diagonal_blocks: ClassVar[bool] = True
    takes_rows: ClassVar[bool] = True
    is_constant: ClassVar[bool] = True
    is_traceable: ClassVar[bool] = True

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

    def restrict(self, x: Tensor, edge_type: Tensor, side: Side) -> Tensor:
        return x

    def restrict_adjoint(self, y: Tensor, edge_type: Tensor, side: Side) -> Tensor:
        return y

    def translation_of(self, edge_type: Tensor) -> Tensor | None:
        return None if self.translation is None else take_rows(self.translation, 0, edge_type)

    def diagonals(self, side: Side) -> Tensor | None:
        return None

    def map_parameters(self, side: Side, relations: Tensor) -> Tensor:
        return torch.ones(len(relations), 1, dtype=self.dtype, device=relations.device)

    def apply_map(self, x: Tensor, parameters: Tensor) -> Tensor:
        return x

    def scale_energy(self, weight: Tensor, width: int | None = None) -> DiagonalSheaf:
        width = self.stalk_dim or width
        if width is None:
            raise ValueError("a sheaf without translations needs 'width' to be weighted (got None)")
        root = weight.sqrt().to(self.dtype or weight.dtype).unsqueeze(1)
        table = root.expand(-1, width)
        return DiagonalSheaf(
            table, table, None if self.translation is None else self.translation * root
        )

    def is_injective(self, side: Side, rtol: float) -> Tensor:
        return torch.ones_like(self._relations(), dtype=torch.bool)

    def end_norms(self) -> Tensor:
        if self.translation is None:
            return torch.ones(2 * self.num_relations)
        return self.translation.real.new_ones(2 * self.num_relations)

    def block_terms(self) -> tuple[Tensor, Tensor, Tensor]:
        ones = self.end_norms()[: self.num_relations].unsqueeze(1)
        return ones, ones, torch.zeros_like(ones)

    def vertex_blocks(
        self, ends: RelationIncidence, loops: RelationIncidence, columns: slice = slice(None)
    ) -> VertexBlocks:
        return DiagonalBlocks(ends.total())

    def coupling(
        self, entries: CouplingEntries | CSRProduct, columns: slice = slice(None)
    ) -> Coupling:
        return IdentityCoupling(entries)

    def pairwise_energy(
        self, queries: Tensor, candidates: Tensor, edge_type: Tensor, side: Side, **options: Any
    ) -> Tensor:
        return near_squares(candidates, self.targets(queries, edge_type, side), **options)

    def select(self, relations: Tensor) -> "IdentitySheaf":
        if self.translation is None:
            return IdentitySheaf(relations=len(relations))
        return IdentitySheaf(self.translation[relations])


torch.export.register_dataclass(IdentitySheaf)
