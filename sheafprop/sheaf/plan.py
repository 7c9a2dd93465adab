"""The operators of a propagation step.

Long because the three ways to set them up share one set of operators and their documentation.
"""

from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from sheafprop.data.graph_counts import connected_components
from sheafprop.kernels.backend import leave_inference_mode, outside_inference
from sheafprop.kernels.coupling import Coupling, needs_gradient
from sheafprop.kernels.csr_product import Terms
from sheafprop.kernels.diagonal_coupling import check_device
from sheafprop.kernels.fact_csr import FactCSR
from sheafprop.kernels.relation_incidence import RelationIncidence
from sheafprop.kernels.rows import take_rows
from sheafprop.sheaf.graph_checks import GraphInput, check_graph
from sheafprop.sheaf.plan_inputs import PlanInputs
from sheafprop.sheaf.relation_sheaf import RelationSheaf
from sheafprop.sheaf.row_plan import can_count_rows, check_takes_rows, count_rows, needs_labels
from sheafprop.sheaf.vertex_blocks import DiagonalBlocks, VertexBlocks

Normalization = Literal["block", "degree"] | None


class PropagationPlan:
    r"""The precomputed part of a propagation step for a graph, a sheaf and a boundary.

    Split the vertices into the boundary :math:`B` (known, fixed) and the free set :math:`U`. With
    :math:`L = \delta^* W \delta`, its block diagonal :math:`D` and :math:`c = \delta^* W b`,

    .. math::
        g(x)_U = (L x - c)_U = D_U x_U - A_{UU} x_U - \left( A_{UB} x_B + c_U \right),

    which is half the gradient of the energy (in torch's convention also for complex :math:`x`).
    Only edges with a free vertex are used. A plan is immutable and contains no features. Vertex
    features have shape ``[N, s, d]`` with :math:`s` sections; those of the free vertices have shape
    ``[n, s, d]``, in the order of :attr:`free_index`.

    Args:
        edge_index (Tensor): Heads and tails, int64 ``[2, E]``.
        edge_type (Tensor): Relation ids, int64 ``[E]``.
        sheaf (RelationSheaf): The restriction maps and translations.
        num_nodes (int): Number of vertices :math:`N`.
        edge_weight (Tensor, optional): :math:`w_e \ge 0`, ``[E]``; None for ones.
        boundary_mask (Tensor, optional): Bool ``[N]``, True for known (fixed) vertices; None if all
            are free.
        normalization (str, optional): ``"block"`` for :math:`M = D_U`; ``"degree"`` for
            :math:`M = c_v I`, where :math:`c_v` is the sum of :math:`w_e \|R\|_2^2` over the triple
            ends of the vertex (a self-loop counts twice); None for :math:`M = I`.
        dtype (torch.dtype, optional): Type of the features, real or complex; promoted with that of
            the sheaf and to single precision at least.

    Raises:
        ValueError: If the graph, the weights and the mask do not match.
    """

    #: Whether all free vertices are here, and not shared among processes.
    is_whole: ClassVar[bool] = True
    # A step size and the factors of its steps.
    _factors: tuple[float, Tensor | None, Tensor | None] | None = None

    @leave_inference_mode()
    def __init__(
        self,
        edge_index: Tensor,
        edge_type: Tensor,
        sheaf: RelationSheaf,
        num_nodes: int,
        *,
        edge_weight: Tensor | None = None,
        boundary_mask: Tensor | None = None,
        normalization: Normalization = "block",
        dtype: torch.dtype | None = None,
    ):
        check_normalization(normalization)
        graph = GraphInput(edge_index, edge_type, sheaf, edge_weight, boundary_mask)
        check_graph(graph, num_nodes)
        check_device(edge_index.device)
        edge_index, edge_type = outside_inference(edge_index), outside_inference(edge_type)
        edge_weight = None if edge_weight is None else outside_inference(edge_weight)
        sheaf = sheaf.map_tensors(outside_inference)
        device = edge_index.device
        #: The sheaf as it was given; the operators use it in the number type of the features.
        self.sheaf = sheaf
        self.num_nodes, self.normalization = num_nodes, normalization
        boundary_mask = (
            torch.zeros(num_nodes, dtype=torch.bool, device=device)
            if boundary_mask is None
            else boundary_mask.clone()
        )
        #: Known vertices, bool ``[N]``.
        self.boundary_mask = boundary_mask
        #: The triples and weights as they were given.
        graph = GraphInput(edge_index, edge_type, sheaf, edge_weight, boundary_mask)
        self.inputs = PlanInputs(graph)
        #: Ids of the free vertices, ascending, ``[n]``.
        self.free_index = (~boundary_mask).nonzero().flatten()
        self.num_free = self.free_index.numel()

        dtype = working_dtype(dtype or sheaf.dtype or torch.get_default_dtype(), sheaf)
        #: Number type of the features.
        self.dtype = dtype
        sheaf = sheaf.promote(dtype)
        self._source_index = self.free_index[:0]
        self._boundary_coupling: Coupling | None = None
        self._preconditioner: VertexBlocks | None = None
        if can_count_rows(graph := graph._replace(sheaf=sheaf)):
            labels = needs_labels(sheaf, normalization)
            rows, self._source_index = count_rows(graph, labels=labels, dtype=dtype.to_real())
            self._take_rows(rows, sheaf)
        else:
            self._sort_ends(sheaf)

    @classmethod
    @leave_inference_mode()
    def from_rows(
        cls,
        rows: FactCSR,
        sheaf: RelationSheaf,
        *,
        columns: slice = slice(None),
        normalization: Normalization = "block",
        dtype: torch.dtype | None = None,
    ) -> "PropagationPlan":
        """Builds a plan from messages in CSR form, for example from memory-mapped files.

        Free vertices are numbered first. The plan contains no triples, so layers cannot check that
        it belongs to their graph; use it with :meth:`~sheafprop.nn.SheafPropagation.run_columns`.

        Args:
            rows (FactCSR): The messages.
            sheaf (RelationSheaf): Maps that act on each column independently.
            columns (slice): The columns of the features. (default: all)
            normalization, dtype: As above.
        """
        check_normalization(normalization)
        check_takes_rows(sheaf)
        plan = object.__new__(cls)
        dtype = working_dtype(dtype or sheaf.dtype or torch.get_default_dtype(), sheaf)
        plan.dtype, plan.normalization = dtype, normalization
        plan.sheaf = sheaf = sheaf.promote(dtype)
        plan.num_free, plan.num_nodes = rows.num_free, rows.num_free + rows.num_known
        plan.free_index = torch.arange(rows.num_free)
        plan._source_index = torch.arange(rows.num_free, plan.num_nodes)
        plan.boundary_mask = torch.arange(plan.num_nodes) >= rows.num_free
        plan._boundary_coupling = plan._preconditioner = None
        plan._take_rows(rows, sheaf, columns)
        return plan

    def _take_rows(self, rows: FactCSR, sheaf: Any, columns: slice = slice(None)) -> None:
        """Sets the operators of some columns from messages in rows."""
        # Labels of ends are read here alone.
        self._rows: FactCSR | None = replace(rows, ends=None)
        ends = rows.incidence(), rows.loop_incidence()
        # A sheaf that overrides these need not know of columns where all are meant.
        part = () if columns == slice(None) else (columns,)
        self.blocks: VertexBlocks = sheaf.vertex_blocks(*ends, *part)
        if self.normalization == "block":
            self._preconditioner = self.blocks
            self.blocks.prepare()
        elif self.normalization == "degree":
            # Of all columns, whichever these are.
            norms = sheaf.end_norms().to(self.dtype.to_real()).unsqueeze(1)
            self._preconditioner = DiagonalBlocks(rows.sum_all_ends(norms))
        if rows.num_known:
            self._boundary_coupling = sheaf.coupling(rows.messages("known"), *part)
        self._free_coupling: Coupling = sheaf.coupling(rows.messages("free"), *part)
        table = sheaf.end_translations()
        self._translation = None
        if table is not None:
            # Tables are sliced, not made of sliced maps, whose last digits may differ.
            self._translation = rows.sum_all_ends(table[:, columns]).unsqueeze(1)

    def _sort_ends(self, sheaf: RelationSheaf) -> None:
        """Sets the operators from the triples, for all maps, devices and gradients."""
        num_nodes, boundary_mask = self.num_nodes, self.boundary_mask
        device = boundary_mask.device
        head, tail, edge_type, weight = self.edges
        if self.num_free < num_nodes:
            # Numbers for the free vertices, then for those of the boundary that a free one meets.
            met = torch.zeros_like(boundary_mask)
            met[head] = True
            met[tail] = True
            self._source_index = (met & boundary_mask).nonzero().flatten()
            index = torch.cat([self.free_index, self._source_index])
            number = torch.empty(num_nodes, dtype=torch.long, device=device)
            number[index] = torch.arange(index.numel(), device=device)
            head, tail = number[head], number[tail]
        self._take_ends(sheaf, head, tail, edge_type, weight, self._source_index.numel())

    def _take_ends(
        self,
        sheaf: RelationSheaf,
        head: Tensor,
        tail: Tensor,
        edge_type: Tensor,
        weight: Tensor,
        num_known: int,
        num_halo: int = 0,
    ) -> None:
        """Sets the operators from triples whose ends are numbered: free vertices, the halo of free
        ones that are elsewhere, then known ones."""
        self._rows = None
        # A triple sends a message into its tail and one into its head.
        src = torch.cat([head, tail])
        all_ends = RelationIncidence.of_triples(
            head, tail, edge_type, weight, self.num_free, sheaf.num_relations
        )
        if num_known or num_halo:
            into_free = all_ends.vertex < self.num_free
            src, all_ends = src[into_free], all_ends.where(into_free)
        loop = all_ends.vertex == src
        ends, loops = all_ends, all_ends.where(loop)
        if not loops.empty:
            loops = loops.where(loops.label < sheaf.num_relations)
            src, ends = src[~loop], all_ends.where(~loop)
        #: The block diagonal :math:`D_U`.
        self.blocks = sheaf.vertex_blocks(ends, loops)
        if self.normalization == "block":
            self._preconditioner = self.blocks
            self.blocks.prepare()
        elif self.normalization == "degree":
            norms = sheaf.end_norms().to(weight.dtype)
            self._preconditioner = DiagonalBlocks(all_ends.sum(norms.unsqueeze(1)))

        if num_known:
            known = src >= self.num_free + num_halo
            sent, sources = ends.where(known), src[known] - self.num_free - num_halo
            self._boundary_coupling = sheaf.coupling(sent.messages(sources, num_known))
            src, ends = src[~known], ends.where(~known)
        self._free_coupling = sheaf.coupling(
            ends.messages(src, self.num_free + num_halo, symmetric=not num_halo)
        )
        table = sheaf.end_translations()
        self._translation = None if table is None else all_ends.sum(table).unsqueeze(1)

    def constant(self, x: Tensor) -> Tensor:
        r"""Computes the constant part of a step, :math:`A_{UB} x_B + c_U`.

        Args:
            x (Tensor): Features of all vertices ``[N, s, d]``; only boundary rows are read.

        Returns:
            Tensor: ``[n, s, d]``.
        """
        out = x.new_zeros(self.num_free, *x.shape[1:])
        if self._boundary_coupling is not None:
            out = out + self._boundary_coupling(take_rows(x, 0, self._source_index))
        if self._translation is not None:
            out = out + self._translation
        return out

    def take_constant(self, known: Tensor | None) -> Tensor | None:
        """Computes the same from the known neighbors of free vertices, without a tensor of zeros.

        The plan does not store it, so this method can be called once.

        Args:
            known (Tensor, optional): Their features ``[m, s, d]``; None if there are none.

        Returns:
            Tensor: ``[n, s, d]`` or ``[n, 1, d]``; None for zero.
        """
        own, self._translation = self._translation, None
        if self._boundary_coupling is None or known is None:
            return own
        out = self._boundary_coupling(known)
        return out if own is None else out.add_(own)

    def couple(self, x_free: Tensor) -> Tensor:
        r"""Computes the messages among free vertices, :math:`A_{UU} x_U`, for ``x_free``
        ``[n, s, d]``."""
        return self._free_coupling(x_free)

    def laplacian(self, x_free: Tensor) -> Tensor:
        r"""Applies the free block of the Laplacian, :math:`L_{UU} x_U`, to ``x_free``
        ``[n, s, d]``."""
        if isinstance(self.blocks, DiagonalBlocks):
            return self._free_coupling.combine(x_free, Terms((0, 1, -1), self.blocks.entries))
        return self.blocks.apply(x_free) - self.couple(x_free)

    def gradient(self, x_free: Tensor, constant: Tensor | None) -> Tensor:
        r"""Computes half the gradient of the energy at the free vertices,
        :math:`g_U = L_{UU} x_U - C`.

        Args:
            x_free (Tensor): Features of the free vertices ``[n, s, d]``.
            constant (Tensor, optional): :math:`C`, from :meth:`constant`; None for zero.
        """
        if isinstance(self.blocks, DiagonalBlocks):
            terms = Terms((0, 1, -1), self.blocks.entries, constant=constant)
            return self._free_coupling.combine(x_free, terms)
        image = self.laplacian(x_free)
        return image if constant is None else image - constant

    def precondition(self, g: Tensor) -> Tensor:
        r"""Applies :math:`M^+` to ``g``, ``[n, s, d]``."""
        return g if self._preconditioner is None else self._preconditioner.apply_pinv(g)

    def apply_metric(self, x_free: Tensor) -> Tensor:
        r"""Applies :math:`M` to ``x_free``, ``[n, s, d]``."""
        return x_free if self._preconditioner is None else self._preconditioner.apply(x_free)

    def project(self, g: Tensor) -> Tensor:
        r"""Projects ``g``, ``[n, s, d]``, onto the range of :math:`M`."""
        return g if self._preconditioner is None else self._preconditioner.project(g)

    def precondition_sqrt(self, g: Tensor) -> Tensor:
        r"""Applies :math:`(M^+)^{1/2}` to ``g``, ``[n, s, d]``."""
        return g if self._preconditioner is None else self._preconditioner.apply_pinv_sqrt(g)

    def step(
        self, x_free: Tensor, constant: Tensor | None, step_size: float, out: Tensor | None = None
    ) -> Tensor:
        r"""Takes one explicit Euler step, :math:`x_U - h M^+ g_U`.

        Args:
            x_free (Tensor): Features of the free vertices ``[n, s, d]``.
            constant (Tensor, optional): From :meth:`constant`; None for zero.
            step_size (float): :math:`h`.
            out (Tensor, optional): A tensor like ``x_free`` (not itself) for the result if no
                gradients are needed.
        """
        h = step_size
        if self._relaxation is not None:
            own, gain = self._relaxation
            terms = Terms((1, -h, h), own, gain, constant, out)
            if needs_gradient(x_free, *terms[1:4]):
                terms = self._share_factors(terms)
            return self._free_coupling.combine(x_free, terms)
        if self.normalization != "block":
            return x_free - h * self.precondition(self.gradient(x_free, constant))
        # D^+ D is the projection on the range of D: one product less.
        received = self.couple(x_free)
        received = self.blocks.apply_pinv(received if constant is None else received + constant)
        if needs_gradient(received, x_free):
            return x_free + h * (received - self.blocks.project(x_free))
        return received.sub_(self.blocks.project(x_free)).mul_(h).add_(x_free)

    def _share_factors(self, terms: Terms) -> Terms:
        """The same terms with factors multiplied once for all steps, and not again by autograd."""
        (keep, decay, h), own, gain, constant, _ = terms
        if self._factors is None or self._factors[0] != h:
            shared = None if own is None else keep + decay * own
            self._factors = h, shared, None if gain is None else h * gain
        _, own, gain = self._factors
        factors = (keep, decay) if own is None else (0.0, 1.0)
        return Terms((*factors, h if gain is None else 1.0), own, gain, constant)

    def keep_isolated(self, x_free: Tensor, first: Tensor) -> Tensor:
        """Sets isolated vertices, which no step changes, to exactly their values in ``first``.

        Both ``x_free`` and ``first`` are ``[n, s, d]``.
        """
        index = self._isolated_index
        if index.numel() == 0:
            return x_free
        return x_free.index_copy(0, index, take_rows(first, 0, index))

    @cached_property
    @leave_inference_mode()
    def edges(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Heads, tails, relations and weights of the triples with a free vertex, ``[m]``.

        A plan from rows has every pair of vertices in both directions, with relation 0.
        """
        if not hasattr(self, "inputs"):
            assert self._rows is not None
            row, source, weight = self._rows.pairs()
            return source, row, torch.zeros_like(row), weight
        inputs, real = self.inputs, self.dtype.to_real()
        head, tail = inputs.edge_index.long()
        edge_type = inputs.edge_type.long()
        weight = (
            torch.ones(head.numel(), dtype=real, device=head.device)
            if inputs.edge_weight is None
            else inputs.edge_weight.to(real)
        )
        if self.num_free < self.num_nodes:
            known = self.boundary_mask
            touched = (~(known[head] & known[tail])).nonzero().flatten()
            head, tail = head[touched], tail[touched]
            edge_type, weight = edge_type[touched], weight[touched]
        return head, tail, edge_type, weight

    @cached_property
    @leave_inference_mode()
    def isolated(self) -> Tensor:
        """Bool ``[n]``: free vertices without an edge of positive weight."""
        if self._rows is not None:
            return ~self._rows.touched
        head, tail, _, weight = self.edges
        touched = torch.zeros_like(self.boundary_mask)
        for end in (head, tail):
            touched[end[weight > 0]] = True
        return ~touched[self.free_index]

    @cached_property
    @leave_inference_mode()
    def _isolated_index(self) -> Tensor:
        return self.isolated.nonzero().flatten()

    @cached_property
    @leave_inference_mode()
    def _relaxation(self) -> tuple[Tensor | None, Tensor | None] | None:
        r"""The diagonals of :math:`M^+ D` and :math:`M^+`, if both are (None for ones)."""
        metric = self._preconditioner
        if not isinstance(self.blocks, DiagonalBlocks):
            return None
        if metric is self.blocks:
            return self.blocks.indicator, self.blocks.inverse
        if metric is None:
            return self.blocks.entries, None
        assert isinstance(metric, DiagonalBlocks)
        return self.blocks.entries * metric.inverse, metric.inverse

    @cached_property
    def components_without_boundary(self) -> int:
        """Number of connected components with a free vertex and no known one."""
        head, tail, _, weight = self.edges
        keep = weight > 0
        label = connected_components(torch.stack([head[keep], tail[keep]]), self.num_nodes)
        anchored = torch.unique(label[self.boundary_mask.cpu()])
        return torch.unique(label).numel() - anchored.numel()

    def total(self, values: Tensor) -> Tensor:
        """Adds up ``values``, sums over free vertices, over the processes that share these; here,
        returns them as given."""
        return values

    def largest(self, value: float) -> float:
        """Returns the maximum of ``value`` over these processes; here, the value as given."""
        return value

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({type(self.sheaf).__name__}, num_nodes={self.num_nodes}, "
            f"num_free={self.num_free}, normalization={self.normalization!r})"
        )


def check_normalization(normalization: str | None) -> None:
    """Raises :class:`ValueError` for an unknown normalization."""
    if normalization not in ("block", "degree", None):
        raise ValueError(
            f"'normalization' must be 'block', 'degree' or None (got {normalization!r})"
        )


def working_dtype(dtype: torch.dtype, sheaf: RelationSheaf) -> torch.dtype:
    """What features of a type and the sheaf promote to, in single precision at least."""
    dtype = torch.promote_types(dtype, torch.float32)
    return dtype if sheaf.dtype is None else torch.promote_types(dtype, sheaf.dtype)
