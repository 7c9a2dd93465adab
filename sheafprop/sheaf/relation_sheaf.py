"""What every sheaf has, and its defaults.

Long because the defaults of all methods, with their documentation, are those of one class.
"""

import copy
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from sheafprop.kernels.algebra import DIAGONAL, Algebra
from sheafprop.kernels.coupling import Coupling, CouplingEntries, EmptyCoupling
from sheafprop.kernels.dense_coupling import DenseCoupling
from sheafprop.kernels.pairwise_squares import mapped_squares
from sheafprop.kernels.relation_incidence import RelationIncidence
from sheafprop.sheaf.dense_blocks import DenseBlocks
from sheafprop.sheaf.vertex_blocks import VertexBlocks

Side = Literal["head", "tail"]
#: The order of tables of triple ends.
SIDES: tuple[Side, Side] = ("tail", "head")


class RelationSheaf(ABC):
    r"""A cellular sheaf over a knowledge graph whose restriction maps depend on the relation only.

    Every vertex carries a stalk :math:`K^d`, every triple of relation :math:`r` an edge stalk
    :math:`K^k`, with :math:`K` real or complex. A relation has two restriction maps and a
    translation, and a triple :math:`(h, r, t)` has the residual

    .. math::
        (\delta x - b)_e = R_t x_t - R_h x_h - b_r .

    Features are ``[N, s, d]``: :math:`s` independent sections that share all maps. Maps and
    translations may have different dtypes; the layers compute in the type to which they and the
    features promote, at least in single precision.

    A custom sheaf defines :meth:`restrict`, :meth:`restrict_adjoint`, :meth:`translation_of` and,
    unless it is a dataclass with tensors as fields, :meth:`tensors`. Every tensor has a row for
    each relation; the last dimension of the first one is :math:`d`, unless :attr:`stalk_dim` is
    overridden as well. All other methods have a default that materializes the maps as matrices;
    override them if a cheaper form exists. Sheaves are immutable; those of the package are frozen
    dataclasses, registered as pytrees with ``torch.export.register_dataclass``, which
    ``torch.export`` requires.

    See Cobb and Gebhart, "Feature Propagation on Knowledge Graphs Using Cellular Sheaves", and
    Hansen and Ghrist, "Toward a spectral theory of cellular sheaves" (2019).
    """

    #: Whether the maps act on every coordinate of the stalk separately: :meth:`diagonals` has them.
    independent_columns: ClassVar[bool] = False
    #: Whether the maps multiply by rows of a table, :meth:`diagonals`, in an :attr:`algebra` whose
    #: moduli make every :math:`R^* R` diagonal.
    has_diagonal_blocks: ClassVar[bool] = False
    #: The product of these rows with vectors.
    algebra: ClassVar[Algebra] = DIAGONAL
    #: Whether :meth:`vertex_blocks` and :meth:`coupling` also take what
    #: :class:`~sheafprop.kernels.fact_csr.FactCSR` gives, and a slice of ``columns``.
    takes_rows: ClassVar[bool] = False
    #: Whether all maps are the identity: the constant sheaf, up to its translations.
    is_constant: ClassVar[bool] = False
    #: Whether ``torch.compile`` can follow the maps, so that layers compile into one graph.
    is_traceable: ClassVar[bool] = False

    # What a sheaf of your own defines ------------------------------------------------------------

    @abstractmethod
    def restrict(self, x: Tensor, edge_type: Tensor, side: Side) -> Tensor:
        r"""Applies the restriction maps edge by edge, :math:`y_e = R_{\text{side}} x_e`.

        Args:
            x (Tensor): Vectors at this end of every edge, ``[..., E, d]``.
            edge_type (Tensor): Relations, int64 ``[E]``.
            side (str): ``"head"`` or ``"tail"``.

        Returns:
            Tensor: ``[..., E, k]``.
        """

    @abstractmethod
    def restrict_adjoint(self, y: Tensor, edge_type: Tensor, side: Side) -> Tensor:
        r"""Applies the conjugate transposes of the restriction maps,
        :math:`x_e = R_{\text{side}}^* y_e`.

        Args:
            y (Tensor): Vectors of the edges, ``[..., E, k]``.
            edge_type, side: As in :meth:`restrict`.

        Returns:
            Tensor: ``[..., E, d]``.
        """

    @abstractmethod
    def translation_of(self, edge_type: Tensor) -> Tensor | None:
        """Returns the translations :math:`b_r` ``[E, k]`` of edges with relations ``edge_type``
        ``[E]``.

        None if all are zero.
        """

    def tensors(self) -> dict[str, Tensor]:
        """Returns the tensors of the maps and translations by the name of the attribute,
        ``[R, ...]``."""
        own: Any = self
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(own)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def __repr__(self) -> str:
        shown = [f"{name}={list(tensor.shape)}" for name, tensor in self.tensors().items()]
        return f"{type(self).__name__}({', '.join(shown) or f'num_relations={self.num_relations}'})"

    # Sizes ---------------------------------------------------------------------------------------

    @property
    def num_relations(self) -> int:
        """Number of relations :math:`R`; by default, the number of rows of the first tensor."""
        return next(iter(self.tensors().values())).shape[0]

    @property
    def stalk_dim(self) -> int | None:
        """Dimension :math:`d` of the vertex stalks; None if the sheaf supports any width.

        By default, the last dimension of the first tensor. A sheaf with None also has to define
        what writes the maps out as matrices: :meth:`vertex_blocks`, :meth:`coupling`,
        :meth:`end_norms`. A field of the sheaf for the width avoids this.
        """
        return next(iter(self.tensors().values())).shape[-1]

    @property
    def dtype(self) -> torch.dtype | None:
        """Dtype of maps and translations; None if the sheaf supports any.

        By default, the type to which the tensors promote.
        """
        return common_dtype(*self.tensors().values())

    # Maps written out ----------------------------------------------------------------------------

    def matrices(
        self, side: Side, relations: Tensor | None = None, width: int | None = None
    ) -> Tensor:
        """Returns the restriction maps as matrices ``[n, k, d]``.

        Args:
            side (str): ``"head"`` or ``"tail"``.
            relations (Tensor, optional): The relations, ``[n]``. (default: all)
            width (int, optional): The dimension :math:`d`, for sheaves that support any width.

        Raises:
            ValueError: If the sheaf supports any width and none is given.
        """
        relations = self._relations() if relations is None else relations
        size = self.stalk_dim or width
        if size is None:
            raise ValueError(
                f"the maps of {type(self).__name__} cannot be written out as matrices, because its "
                "'stalk_dim' is None: return the width of the features there (or give 'width')"
            )
        eye = torch.eye(size, dtype=self.dtype, device=relations.device)
        columns = self.restrict(eye.unsqueeze(1).expand(-1, len(relations), -1), relations, side)
        return columns.permute(1, 2, 0)

    def restriction_map(self, relation: int, side: Side, width: int | None = None) -> Tensor:
        """Returns the map of one ``relation`` at a ``side`` as a matrix ``[k, d]``.

        ``width`` is that of :meth:`matrices`.
        """
        index = torch.tensor([relation], device=self._relations().device)
        return self.matrices(side, index, width)[0]

    @property
    def shares_maps(self) -> bool:
        """Whether heads and tails share their maps, independent of the values."""
        return False

    def diagonals(self, side: Side) -> Tensor | None:
        """Returns the diagonals ``[R, d]`` of the maps at a ``side`` for
        :attr:`independent_columns`, or the rows that they multiply by for
        :attr:`has_diagonal_blocks`; None for the identity."""
        return self.matrices(side).diagonal(dim1=1, dim2=2)

    def map_parameters(self, side: Side, relations: Tensor) -> Tensor:
        """Returns the parameters of the maps of ``relations`` ``[n]`` at a ``side``,
        ``[n, ...]``."""
        return self.matrices(side, relations)

    def apply_map(self, x: Tensor, parameters: Tensor) -> Tensor:
        """Applies one map, given by its ``parameters`` (a row of :meth:`map_parameters`), to all
        rows of ``x`` ``[..., d]``."""
        return x @ parameters.mT

    def restrict_sections(self, x: Tensor, edge_type: Tensor, side: Side) -> Tensor:
        """Applies :meth:`restrict` for an ``edge_type`` and a ``side`` to sections ``x``
        ``[E, s, d]``."""
        return self.restrict(x.transpose(0, 1), edge_type, side).transpose(0, 1)

    def is_injective(self, side: Side, rtol: float) -> Tensor:
        """Returns a bool ``[R]``: whether the smallest singular value of each map at a ``side`` is
        at least ``rtol`` times the largest."""
        maps = self.matrices(side)
        if maps.shape[1] < maps.shape[2]:
            return torch.zeros(len(maps), dtype=torch.bool, device=maps.device)
        values = torch.linalg.svdvals(maps)
        return values[:, -1] > rtol * values[:, 0]

    # Sums over the triple ends of a vertex -------------------------------------------------------

    def end_translations(self) -> Tensor | None:
        r"""Returns the rows :math:`R_t^* b_r` (tail side), then :math:`-R_h^* b_r` (head side),
        ``[2R, d]``."""
        every = self._relations()
        b = self.translation_of(every)
        if b is None:
            return None
        into_tail, into_head = (self.restrict_adjoint(b, every, side) for side in SIDES)
        return torch.cat([into_tail, -into_head])

    def end_norms(self) -> Tensor:
        r"""Returns the squared spectral norms :math:`\|R_t\|_2^2`, then :math:`\|R_h\|_2^2`,
        ``[2R]``."""
        maps = torch.cat([self.matrices(side) for side in SIDES])
        return torch.linalg.matrix_norm(maps, ord=2) ** 2

    def block_terms(self) -> tuple[Tensor, Tensor, Tensor]:
        r"""Computes the contributions of a triple to the block diagonal of the Laplacian.

        Returns:
            :math:`R_t^* R_t` (to the tail), :math:`R_h^* R_h` (to the head) and, for a self-loop,
            :math:`(R_t - R_h)^* (R_t - R_h)`: matrices ``[R, d, d]`` in double precision, or
            diagonals ``[R, d]``, or multiples of the identity ``[R, 1]``.
        """
        tail, head = (double_precision(self.matrices(side)) for side in SIDES)
        gap = tail - head
        return tail.mH @ tail, head.mH @ head, gap.mH @ gap

    def vertex_blocks(self, ends: RelationIncidence, loops: RelationIncidence) -> VertexBlocks:
        """Computes the block diagonal of the Laplacian from the incidence of edges and self-loops.

        A self-loop contributes :math:`(R_t - R_h)^* (R_t - R_h)`, once. ``columns``, a slice of the
        feature columns, is given only if :attr:`takes_rows`.

        Args:
            ends: Weights summed by vertex and end, of edges between different vertices.
            loops: The same of self-loops, each counted at its tail end only.
        """
        return DenseBlocks.of_maps(self.matrices("tail"), self.matrices("head"), ends, loops)

    def coupling(self, entries: CouplingEntries) -> Coupling:
        """Returns the sum of messages for a list of ``entries``, as an operator on the source
        features.

        Where :attr:`takes_rows`, there may be ``columns``, a slice of those of the features.
        """
        head, tail = self.matrices("head"), self.matrices("tail")
        if entries.dst.numel() == 0 or 0 in head.shape[1:]:
            return EmptyCoupling(entries.num_dst)
        return DenseCoupling(entries, head, tail)

    # Energies of all candidates ------------------------------------------------------------------

    def targets(self, x: Tensor, edge_type: Tensor, side: Side) -> Tensor:
        r"""Computes the targets of the mapped candidates at a ``side``, ``[E, k]``.

        These are :math:`R_h x + b` for tails and :math:`R_t x - b` for heads, with the vectors
        ``x`` ``[E, d]`` at the other end and the relations ``edge_type`` ``[E]``.
        """
        target = self.restrict(x, edge_type, "head" if side == "tail" else "tail")
        shift = self.translation_of(edge_type)
        if shift is None:
            return target
        return target + shift if side == "tail" else target - shift

    def pairwise_energy(
        self,
        queries: Tensor,
        candidates: Tensor,
        edge_type: Tensor,
        side: Side,
        *,
        lengths: Callable[[], Tensor] | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Computes the energies of the triples of each query with every candidate, without
        gradients.

        They may be computed from matrix products; energies close to zero keep at least half of
        their digits.

        Args:
            queries (Tensor): Vectors ``[B, d]`` at the other end.
            candidates (Tensor): Vectors ``[C, d]``.
            edge_type (Tensor): Relations of the queries, int64 ``[B]``.
            side (str): The side of the candidates, ``"head"`` or ``"tail"``.
            lengths (callable, optional): Returns the squared norms ``[C]`` of the candidates, for
                callers that cache them.
            out (Tensor, optional): A tensor for the result.

        Returns:
            Tensor: Real, ``[B, C]``.
        """
        target = self.targets(queries, edge_type, side)
        out = target.real.new_empty(len(target), len(candidates)) if out is None else out
        for relation in edge_type.unique():
            rows = (edge_type == relation).nonzero().flatten()
            matrix = self.matrices(side, relation.view(1))[0]
            out[rows] = mapped_squares(candidates, matrix, target[rows])
        return out

    # Copies --------------------------------------------------------------------------------------

    def select(self, relations: Tensor) -> Self:
        """Returns the sheaf of some ``relations`` ``[n]``, renumbered in this order."""
        return self.map_tensors(lambda tensor: tensor[relations])

    def scale_energy(self, weight: Tensor, width: int | None = None) -> "RelationSheaf":
        r"""Returns the sheaf whose energy weights relation :math:`r` by :math:`w_r`.

        Its maps and translations are those of this sheaf times :math:`\sqrt{w_r}`; the result is
        differentiable in the weights.

        Args:
            weight (Tensor): :math:`w_r > 0`, real ``[R]``.
            width (int, optional): Dimension :math:`d`, for a sheaf that supports any width.
        """
        return _Weighted(self, weight.sqrt())

    def promote(self, dtype: torch.dtype) -> Self:
        """Returns the sheaf with all tensors converted to ``dtype``, or itself if they have this
        type.

        A tensor that is given twice remains one tensor, and gradients flow to the given tensors.
        """
        if all(tensor.dtype == dtype for tensor in self.tensors().values()):
            return self
        return self.map_tensors(lambda tensor: tensor.to(dtype))

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Returns the sheaf with a ``function`` applied to its tensors, or itself if none changes.

        A tensor that is given twice remains one tensor."""
        tensors = self.tensors()
        image = {id(tensor): function(tensor) for tensor in tensors.values()}
        changes: Any = {name: image[id(tensor)] for name, tensor in tensors.items()}
        if all(changes[name] is tensor for name, tensor in tensors.items()):
            return self
        if dataclasses.is_dataclass(self):
            return dataclasses.replace(self, **changes)
        other = copy.copy(self)
        vars(other).update(changes)
        return other

    def _relations(self) -> Tensor:
        device = next((tensor.device for tensor in self.tensors().values()), None)
        return torch.arange(self.num_relations, device=device)


class _Weighted(RelationSheaf):
    """The maps and translations of a ``sheaf``, each times the ``root`` of its relation.

    The tensors of a sheaf need not scale its maps: they may be angles, or get normalized."""

    def __init__(self, sheaf: RelationSheaf, root: Tensor) -> None:
        self.sheaf, self.root = sheaf, root

    def restrict(self, x: Tensor, edge_type: Tensor, side: Side) -> Tensor:
        return self.sheaf.restrict(x, edge_type, side) * self.root[edge_type, None]

    def restrict_adjoint(self, y: Tensor, edge_type: Tensor, side: Side) -> Tensor:
        return self.sheaf.restrict_adjoint(y, edge_type, side) * self.root[edge_type, None]

    def translation_of(self, edge_type: Tensor) -> Tensor | None:
        shift = self.sheaf.translation_of(edge_type)
        return None if shift is None else shift * self.root[edge_type, None]

    def tensors(self) -> dict[str, Tensor]:
        return {**self.sheaf.tensors(), "root of the weights": self.root}

    @property
    def stalk_dim(self) -> int | None:
        return self.sheaf.stalk_dim

    @property
    def shares_maps(self) -> bool:
        return self.sheaf.shares_maps

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> "_Weighted":
        return _Weighted(self.sheaf.map_tensors(function), function(self.root))


def double_precision(tensor: Tensor) -> Tensor:
    """The ``tensor`` in double precision, real or complex."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float64))


def common_dtype(*tensors: Tensor | None) -> torch.dtype | None:
    """Number type that some tensors promote to; None without any.

    Raises:
        ValueError: If one of them is not a tensor, or holds integers.
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
