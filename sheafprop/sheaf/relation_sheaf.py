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
    translations may have different number types; the layers compute in the type that all of them
    and the features promote to, at least single precision.

    A sheaf of your own defines :meth:`restrict`, :meth:`restrict_adjoint`, :meth:`translation_of`
    and, unless it is a dataclass whose fields say it, :meth:`tensors`. Everything else has a
    default that writes the maps out as matrices; override it where a cheaper form is known. Sheaves
    are immutable; those of the package are frozen dataclasses, registered as pytrees.

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

    def tensors(self) -> dict[str, Tensor]:
        """What maps and translations are made of, by the name of the attribute, ``[R, ...]``."""
        own: Any = self
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(own)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    # Sizes ---------------------------------------------------------------------------------------

    @property
    def num_relations(self) -> int:
        """Number of relations :math:`R`; by default the rows of the first tensor."""
        return next(iter(self.tensors().values())).shape[0]

    @property
    def stalk_dim(self) -> int | None:
        """Dimension :math:`d` of the vertex stalks; None if the sheaf takes any width.

        By default the last dimension of the first tensor.
        """
        return next(iter(self.tensors().values())).shape[-1]

    @property
    def dtype(self) -> torch.dtype | None:
        """Number type of maps and translations; None if the sheaf takes any.

        By default what the tensors promote to.
        """
        return common_dtype(*self.tensors().values())

    # Maps written out ----------------------------------------------------------------------------

    def matrices(
        self, side: Side, relations: Tensor | None = None, width: int | None = None
    ) -> Tensor:
        """Restriction maps as matrices ``[n, k, d]``.

        Args:
            side (str): ``"head"`` or ``"tail"``.
            relations (Tensor, optional): The relations, ``[n]``; all of them without it.
            width (int, optional): The dimension :math:`d`, for sheaves that take any.

        Raises:
            ValueError: If the sheaf takes any width and none is given.
        """
        relations = self._relations() if relations is None else relations
        size = self.stalk_dim or width
        if size is None:
            raise ValueError("a sheaf without translations takes any width: give 'width'")
        eye = torch.eye(size, dtype=self.dtype, device=relations.device)
        columns = self.restrict(eye.unsqueeze(1).expand(-1, len(relations), -1), relations, side)
        return columns.permute(1, 2, 0)

    def restriction_map(self, relation: int, side: Side, width: int | None = None) -> Tensor:
        """The map of one ``relation`` at a ``side`` as a matrix ``[k, d]``.

        ``width`` is that of :meth:`matrices`.
        """
        index = torch.tensor([relation], device=self._relations().device)
        return self.matrices(side, index, width)[0]

    @property
    def shares_maps(self) -> bool:
        """Whether heads and tails have the same maps, known without looking at their values."""
        return False

    def diagonals(self, side: Side) -> Tensor | None:
        """Diagonals ``[R, d]`` of the maps at a ``side``, for :attr:`independent_columns`, or the
        rows that they multiply by, for :attr:`has_diagonal_blocks`; None for the identity."""
        return self.matrices(side).diagonal(dim1=1, dim2=2)

    def map_parameters(self, side: Side, relations: Tensor) -> Tensor:
        """What the maps of ``relations`` ``[n]`` at a ``side`` are made of, ``[n, ...]``."""
        return self.matrices(side, relations)

    def apply_map(self, x: Tensor, parameters: Tensor) -> Tensor:
        """Applies one map, given by its ``parameters`` (a row of :meth:`map_parameters`), to all
        rows of ``x`` ``[..., d]``."""
        return x @ parameters.mT

    def restrict_sections(self, x: Tensor, edge_type: Tensor, side: Side) -> Tensor:
        """As :meth:`restrict` of an ``edge_type`` and a ``side``, for ``x`` ``[E, s, d]`` with
        sections."""
        return self.restrict(x.transpose(0, 1), edge_type, side).transpose(0, 1)

    def is_injective(self, side: Side, rtol: float) -> Tensor:
        """Which maps at a ``side`` shrink no direction below a share ``rtol`` of the largest,
        bool ``[R]``."""
        maps = self.matrices(side)
        if maps.shape[1] < maps.shape[2]:
            return torch.zeros(len(maps), dtype=torch.bool, device=maps.device)
        values = torch.linalg.svdvals(maps)
        return values[:, -1] > rtol * values[:, 0]

    # Sums over the triple ends of a vertex -------------------------------------------------------

    def end_translations(self) -> Tensor | None:
        r"""Rows :math:`R_t^* b_r` (tail side) then :math:`-R_h^* b_r` (head side), ``[2R, d]``."""
        every = self._relations()
        b = self.translation_of(every)
        if b is None:
            return None
        into_tail, into_head = (self.restrict_adjoint(b, every, side) for side in SIDES)
        return torch.cat([into_tail, -into_head])

    def end_norms(self) -> Tensor:
        r"""Squared spectral norms :math:`\|R_t\|_2^2`, then :math:`\|R_h\|_2^2`, ``[2R]``."""
        maps = torch.cat([self.matrices(side) for side in SIDES])
        return torch.linalg.matrix_norm(maps, ord=2) ** 2

    def block_terms(self) -> tuple[Tensor, Tensor, Tensor]:
        r"""What a triple adds to the block diagonal of the Laplacian.

        Returns:
            :math:`R_t^* R_t` (to the tail), :math:`R_h^* R_h` (to the head) and, for a self-loop,
            :math:`(R_t - R_h)^* (R_t - R_h)`: matrices ``[R, d, d]`` in double precision, or
            diagonals ``[R, d]``, or multiples of the identity ``[R, 1]``.
        """
        tail, head = (double_precision(self.matrices(side)) for side in SIDES)
        gap = tail - head
        return tail.mH @ tail, head.mH @ head, gap.mH @ gap

    def vertex_blocks(self, ends: RelationIncidence, loops: RelationIncidence) -> VertexBlocks:
        """The block diagonal of the Laplacian from the incidence of proper edges and of loops.

        A self-loop contributes :math:`(R_t - R_h)^* (R_t - R_h)`, once. Where
        :attr:`takes_rows`, there may be ``columns``, a slice of those of the features.

        Args:
            ends: Weights summed by vertex and end, of edges between different vertices.
            loops: The same of self-loops, each counted at its tail end only.
        """
        return DenseBlocks.of_maps(self.matrices("tail"), self.matrices("head"), ends, loops)

    def coupling(self, entries: CouplingEntries) -> Coupling:
        """The sum of messages for a list of ``entries``, as an operator on the source features.

        Where :attr:`takes_rows`, there may be ``columns``, a slice of those of the features.
        """
        head, tail = self.matrices("head"), self.matrices("tail")
        if entries.dst.numel() == 0 or 0 in head.shape[1:]:
            return EmptyCoupling(entries.num_dst)
        return DenseCoupling(entries, head, tail)

    # Energies of all candidates ------------------------------------------------------------------

    def targets(self, x: Tensor, edge_type: Tensor, side: Side) -> Tensor:
        r"""What the maps of the candidates at a ``side`` should lead to, ``[E, k]``.

        That is :math:`R_h x + b` for tails and :math:`R_t x - b` for heads, of the vectors ``x``
        ``[E, d]`` at the other end and the relations ``edge_type`` ``[E]``.
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
        """Energies of the triples that each query forms with every candidate, without gradients.

        They may come from products, but those close to zero keep half of their digits at least.

        Args:
            queries (Tensor): Vectors ``[B, d]`` at the other end.
            candidates (Tensor): Vectors ``[C, d]``.
            edge_type (Tensor): Relations of the queries, int64 ``[B]``.
            side (str): The side of the candidates, ``"head"`` or ``"tail"``.
            lengths (callable, optional): Returns the squared lengths ``[C]`` of the candidates, for
                callers that keep them.
            out (Tensor, optional): Where to put the result.

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
        """The sheaf of some ``relations`` ``[n]``, which are numbered anew in their order."""
        return self.map_tensors(lambda tensor: tensor[relations])

    def scale_energy(self, weight: Tensor, width: int | None = None) -> "RelationSheaf":
        r"""The sheaf whose energy counts relation :math:`r` with weight :math:`w_r`.

        Its maps and translations are those of this sheaf times :math:`\sqrt{w_r}`; the result is
        differentiable in the weights.

        Args:
            weight (Tensor): :math:`w_r > 0`, real ``[R]``.
            width (int, optional): Dimension :math:`d`, for a sheaf that has none of its own.
        """
        root = weight.sqrt()
        return self.map_tensors(
            lambda tensor: tensor * root.to(tensor.dtype).view(-1, *[1] * (tensor.dim() - 1))
        )

    def promote(self, dtype: torch.dtype) -> Self:
        """The sheaf with all its tensors of type ``dtype``; itself if they are already.

        A tensor given twice stays one tensor, and gradients reach the tensors given.
        """
        if all(tensor.dtype == dtype for tensor in self.tensors().values()):
            return self
        return self.map_tensors(lambda tensor: tensor.to(dtype))

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> Self:
        """The sheaf with a ``function`` applied to its tensors; itself if that changes none.

        A tensor given twice stays one tensor.
        """
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
