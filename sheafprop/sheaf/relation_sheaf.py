import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal, Self

import torch
from torch import Tensor

from sheafprop.kernels.coupling import Coupling, CouplingEntries
from sheafprop.kernels.relation_incidence import RelationIncidence
from sheafprop.sheaf.vertex_blocks import VertexBlocks

Side = Literal["head", "tail"]


class RelationSheaf(ABC):
    r"""A cellular sheaf over a knowledge graph whose restriction maps depend on the relation only.

    Every vertex carries a stalk :math:`K^d`, every triple of relation :math:`r` an edge stalk
    :math:`K^k`, with :math:`K` real or complex. A relation has two restriction maps and a
    translation, and a triple :math:`(h, r, t)` has the residual

    .. math::
        (\delta x - b)_e = R_t x_t - R_h x_h - b_r .

    Features are ``[N, s, d]``: :math:`s` independent sections that share all maps. Maps and
    translations may have different number types; the layers compute in the type that all of them
    and the features promote to, at least single precision.

    Subclasses are frozen dataclasses, registered as pytrees. See Cobb and Gebhart, "Feature
    Propagation on Knowledge Graphs Using Cellular Sheaves", and Hansen and Ghrist, "Toward a
    spectral theory of cellular sheaves" (2019).
    """

    @property
    @abstractmethod
    def num_relations(self) -> int:
        """Number of relations :math:`R`."""

    @property
    @abstractmethod
    def stalk_dim(self) -> int | None:
        """Dimension :math:`d` of the vertex stalks; None if the sheaf takes any width."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype | None:
        """Number type that maps and translations promote to; None if the sheaf takes any."""

    @abstractmethod
    def restrict(self, x: Tensor, edge_type: Tensor, side: Side) -> Tensor:
        r"""Applies the restriction maps edge by edge, :math:`y_e = R_{\text{side}} x_e`.

        Args:
            x (Tensor): Vectors at that end of every edge, ``[..., E, d]``.
            edge_type (Tensor): Relations, int64 ``[E]``.
            side (str): ``"head"`` or ``"tail"``: which of the two maps.

        Returns:
            Tensor: ``[..., E, k]``.
        """

    @abstractmethod
    def restrict_adjoint(self, y: Tensor, edge_type: Tensor, side: Side) -> Tensor:
        r"""Applies their conjugate transposes, :math:`x_e = R_{\text{side}}^* y_e`.

        Args:
            y (Tensor): Vectors of the edges, ``[..., E, k]``.
            edge_type, side: As in :meth:`restrict`.

        Returns:
            Tensor: ``[..., E, d]``.
        """

    @abstractmethod
    def translation_of(self, edge_type: Tensor) -> Tensor | None:
        """Translations :math:`b_r` ``[E, k]`` of edges with relations ``edge_type`` ``[E]``.

        None where all are zero.
        """

    @abstractmethod
    def restriction_map(self, relation: int, side: Side, width: int | None = None) -> Tensor:
        """One restriction map written out as a matrix ``[k, d]``.

        Args:
            relation (int): The relation.
            side (str): ``"head"`` or ``"tail"``.
            width (int, optional): The dimension :math:`d`, for sheaves that take any.
        """

    @abstractmethod
    def end_translations(self) -> Tensor | None:
        r"""Rows :math:`R_t^* b_r` (tail side) then :math:`-R_h^* b_r` (head side), ``[2R, d]``."""

    @abstractmethod
    def end_norms(self) -> Tensor:
        r"""Squared spectral norms :math:`\|R_t\|_2^2`, then :math:`\|R_h\|_2^2`, ``[2R]``."""

    @abstractmethod
    def vertex_blocks(self, ends: RelationIncidence, loops: RelationIncidence) -> VertexBlocks:
        """The block diagonal of the Laplacian from the incidence of proper edges and of loops.

        A self-loop contributes :math:`(R_t - R_h)^* (R_t - R_h)`, once.

        Args:
            ends: Weights summed by vertex and end, of edges between different vertices.
            loops: The same of self-loops, each counted at its tail end only.
        """

    @abstractmethod
    def coupling(self, entries: CouplingEntries) -> Coupling:
        """The sum of messages for a list of ``entries``, as an operator on the source features."""

    @property
    def independent_columns(self) -> bool:
        """Whether the maps act on every coordinate of the stalk separately."""
        return True

    def promoted(self, dtype: torch.dtype) -> Self:
        """The sheaf with all its tensors of type ``dtype``; itself if they are already.

        A tensor given twice stays one tensor, and gradients reach the tensors given.
        """
        if all(tensor.dtype == dtype for tensor in self.tensors().values()):
            return self
        return self.mapped(lambda tensor: tensor.to(dtype))

    def mapped(self, function: Callable[[Tensor], Tensor]) -> Self:
        """The sheaf with a ``function`` applied to its tensors; itself if that changes none.

        A tensor given twice stays one tensor.
        """
        tensors = self.tensors()
        image = {id(tensor): function(tensor) for tensor in tensors.values()}
        changes: Any = {name: image[id(tensor)] for name, tensor in tensors.items()}
        if all(changes[name] is tensor for name, tensor in tensors.items()):
            return self
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    def tensors(self) -> dict[str, Tensor]:
        """Maps and translations by the name of their field."""
        own: Any = self
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(own)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def common_dtype(*tensors: Tensor | None) -> torch.dtype | None:
    """Number type that some tensors promote to; None without any.

    Raises:
        ValueError: If one of them is no tensor, or holds integers.
    """
    dtype = None
    for tensor in tensors:
        if tensor is None:
            continue
        if not isinstance(tensor, Tensor):
            raise ValueError(f"maps and translations must be tensors (got {type(tensor).__name__})")
        if not (tensor.is_floating_point() or tensor.is_complex()):
            raise ValueError(
                f"maps and translations must be floating point or complex (got {tensor.dtype})"
            )
        dtype = tensor.dtype if dtype is None else torch.promote_types(dtype, tensor.dtype)
    return dtype
