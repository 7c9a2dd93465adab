from typing import Any, ClassVar, Optional

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing
from torch_geometric.typing import Adj

from sheafprop.errors import DivergenceError
from sheafprop.kernels.backend import all_finite, outside_transforms
from sheafprop.kernels.rows import add_rows, take_rows
from sheafprop.nn.graph_input import (
    as_edges,
    check_result,
    from_sections,
    prepare_features,
    round_result,
    to_sections,
    with_free,
)
from sheafprop.nn.traced import TracedPropagation
from sheafprop.sheaf.graph_checks import (
    GraphInput,
    check_finite_features,
    check_graph_shapes,
    check_places,
)
from sheafprop.sheaf.plan import Normalization, PropagationPlan, check_normalization, working_dtype
from sheafprop.sheaf.relation_sheaf import RelationSheaf
from sheafprop.sheaf.spectrum import largest_eigenvalue


class SheafConv(MessagePassing):
    r"""One step of normalized sheaf diffusion with relation-typed restriction maps, from "Feature
    Propagation on Knowledge Graphs Using Cellular Sheaves" (Cobb and Gebhart).

    .. math::
        x_U \leftarrow x_U - h \, M^+ \left( L x - \delta^* W b \right)_U ,
        \qquad L = \delta^* W \delta, \qquad (\delta x)_e = R_t x_t - R_h x_h ,

    an explicit Euler step of the gradient flow of the energy
    :math:`E(x) = \sum_e w_e \| R_t x_t - R_h x_h - b_r \|^2` over the triples
    :math:`e = (h, r, t)`, with the boundary vertices :math:`B` held fixed. Both ends of a triple
    receive a message, the head through the adjoint of its map, so inverse triples must not be
    added. Mini-batches of one-directional samplers, such as PyG's ``NeighborLoader``, give
    different vectors, which the layer cannot detect; use :func:`~sheafprop.nn.k_hop_batch`.
    Isolated vertices, and directions in the kernel of all maps, keep their value.

    The layer has no parameters and stores no graph; :class:`~sheafprop.nn.TrainableSheaf` holds the
    parameters of a trainable sheaf. :meth:`forward` runs the fused step of a
    :class:`~sheafprop.sheaf.PropagationPlan`. :meth:`propagate` computes the same step with edge
    messages and is used for PyG's explainers and message hooks. Under ``torch.compile`` and
    ``torch.export``, the values of ids and weights are not checked.

    Args:
        step_size (float): :math:`h > 0`. With ``"block"`` or ``"degree"`` the energy does not
            increase for :math:`h \le 1`; with :math:`h = 1` the diffusion oscillates if 2 is an
            eigenvalue of the normalized Laplacian, so the default is below 1. (default: ``0.9``)
        normalization (str, optional): ``"block"``: :math:`M` is the block diagonal :math:`D` of
            :math:`L`. ``"degree"``: :math:`M_v = \sum w_e \|R\|_2^2` over the triple ends at
            :math:`v`, for maps too large to factor. ``None``: plain gradient flow, stable for
            :math:`h < 2 / \lambda_{\max}(L_{UU})`. (default: ``"block"``)
        cached (bool): Cache the plan of the first call for all further calls, which must use the
            same graph, weights, boundary and sheaf. In-place writes that bypass autograd, through
            ``.data`` or a numpy view, are not detected: call :meth:`reset_parameters` after them,
            which drops the plan. Copies of the layer have no plan. (default: ``False``)
        **kwargs: Further arguments of :class:`torch_geometric.nn.conv.MessagePassing`; ``flow``,
            ``aggr`` and ``node_dim`` are fixed.

    Shapes:
        - **x:** :math:`(N, F)`, or :math:`(B, N, F)` for :math:`B` sections that share all maps;
          :math:`F` is the stalk dimension; complex where maps or translations are
        - **edge_index:** :math:`(2, E)` heads and tails, or a ``SparseTensor`` ``adj_t``
        - **edge_type:** :math:`(E)` relation ids
        - **output:** as **x**, in the number type that ``x``, the maps and the translations promote
          to, single precision at least; in half precision (float16, bfloat16) where ``x`` is. The
          layer computes in single precision at least, also under autocast

    Raises:
        ValueError: If the graph, the features and the sheaf do not match, or features, maps or
            weights are not finite.
        DivergenceError: If the result is too large for its number type.
    """

    def __init__(
        self,
        *,
        step_size: float = 0.9,
        normalization: Normalization = "block",
        cached: bool = False,
        **kwargs: Any,
    ):
        if kwargs.setdefault("aggr", "add") not in ("add", "sum"):
            raise ValueError(f"sheaf diffusion sums its messages (got aggr={kwargs['aggr']!r})")
        if kwargs.setdefault("flow", "source_to_target") != "source_to_target":
            raise ValueError(
                f"both ends receive messages: 'flow' is fixed (got {kwargs['flow']!r})"
            )
        for name, only in (("node_dim", -2), ("decomposed_layers", 1)):
            if kwargs.get(name, only) != only:
                raise ValueError(f"'{name}' is fixed at {only} (got {kwargs[name]})")
        if not step_size > 0 or step_size == float("inf"):
            raise ValueError(f"'step_size' must be positive and finite (got {step_size})")
        check_normalization(normalization)
        super().__init__(**kwargs)
        self.step_size = step_size
        self.normalization: Normalization = normalization
        self.cached = cached
        self._cache: PropagationPlan | None = None
        # The plan behind a call of propagate(), whose arguments PyG fixes.
        self._sending: PropagationPlan | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # PyG compiles a propagate() without masks for each class and keeps the original beside it;
        # a class that extends a compiled one would keep the compiled one as its original.
        if "propagate" not in cls.__dict__:
            cls.propagate = MessagePassing.propagate  # type: ignore[method-assign]

    def reset_parameters(self) -> None:
        """Drops the cached plan."""
        super().reset_parameters()
        self._cache = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_cache": None, "_sending": None}

    def forward(
        self,
        x: Tensor,
        edge_index: Adj,
        edge_type: Tensor | None,
        sheaf: RelationSheaf,
        *,
        edge_weight: Tensor | None = None,
        boundary_mask: Tensor | None = None,
        plan: PropagationPlan | None = None,
    ) -> Tensor:
        r"""Applies the layer.

        Args:
            x (Tensor): Vertex features.
            edge_index (Tensor or SparseTensor): Heads and tails of the triples. A ``SparseTensor``
                is transposed, as in PyG: its rows are the tails.
            edge_type (Tensor): Relation ids; None if they are the values of the ``SparseTensor``.
            sheaf (RelationSheaf): Restriction maps and translations.
            edge_weight (Tensor, optional): Weights :math:`w_e \ge 0`, ``[E]``, in the order of the
                entries of a ``SparseTensor``; no gradients flow to them. (default: ones)
            boundary_mask (Tensor, optional): Bool ``[N]``, True for known (fixed) vertices.
                (default: None, all vertices are free)
            plan (PropagationPlan, optional): A plan from :meth:`plan` for the same graph, sheaf,
                weights and boundary, which avoids sorting and factorization; weights and boundary
                may then be omitted. Raises :class:`ValueError` if it was built for different ones.
        """
        graph = GraphInput(*as_edges(edge_index, edge_type, x), sheaf, edge_weight, boundary_mask)
        given, x = x, prepare_features(x, sheaf)
        if plan is None and self._is_traced(sheaf):
            with torch.autocast(x.device.type, enabled=False):
                return round_result(self._apply_traced(self._trace(x, graph), x), given)
        return round_result(self._forward_eager(x, graph, plan), given)

    @torch.compiler.disable
    def _forward_eager(self, x: Tensor, graph: GraphInput, plan: PropagationPlan | None) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return self._apply_plan(self._plan_for(plan, x, graph), x)

    def _check_stable(self, plan: PropagationPlan, x: Tensor) -> None:
        """Raises :class:`DivergenceError` if the steps of a diverged result are too large."""
        top = largest_eigenvalue(plan, x.shape[-1])
        # Ritz values come that close from below.
        if self.step_size * top >= 2 * (1 - 1e-6):
            remedy = "" if self.normalization == "block" else ", or normalization='block'"
            raise DivergenceError(
                f"the values became too large for {x.dtype}: repeated steps diverge where the step "
                f"is not below 2 / lambda_max = {2 / top:.4g} (got step_size={self.step_size}); "
                f"take a smaller step{remedy}"
            )

    def _apply_traced(self, traced: TracedPropagation, x: Tensor) -> Tensor:
        """What the layer computes, in tensor code for compilers."""
        return traced.step(x, self.step_size)

    def _apply_plan(self, plan: PropagationPlan, x: Tensor) -> Tensor:
        """What the layer computes, by the fused operators."""
        if self._sends_messages:
            out = self._send(plan, x)
        else:
            sections = to_sections(x)
            constant = plan.constant(sections)
            free = plan.step(take_rows(sections, 0, plan.free_index), constant, self.step_size)
            out = from_sections(with_free(sections, plan, free), x)
        if not all_finite(out):
            check_finite_features(x)
            self._check_stable(plan, x)
            check_result(out, x)
        return out

    def plan(
        self,
        x: Tensor,
        edge_index: Adj,
        edge_type: Tensor | None,
        sheaf: RelationSheaf,
        edge_weight: Tensor | None = None,
        boundary_mask: Tensor | None = None,
    ) -> PropagationPlan:
        """Computes the reusable part of a step for this graph, sheaf and boundary; see
        :meth:`forward`.

        Raises:
            ValueError: If the inputs do not match each other or the cached plan.
        """
        graph = GraphInput(*as_edges(edge_index, edge_type, x), sheaf, edge_weight, boundary_mask)
        return self._plan_for(None, x, graph)

    def _plan_for(
        self, plan: PropagationPlan | None, x: Tensor, graph: GraphInput
    ) -> PropagationPlan:
        """The plan that was given, if it fits, else the cached one or a new one."""
        if plan is not None:
            if not isinstance(plan, PropagationPlan):
                raise TypeError(f"'plan' must be what layer.plan(...) returns (got {plan!r})")
            if graph.edge_weight is None:
                graph = graph._replace(edge_weight=plan.inputs.edge_weight)
            if graph.boundary_mask is None:
                graph = graph._replace(boundary_mask=plan.boundary_mask)
            self._check_plan(plan, x, graph, "the plan", "build another one")
            return plan
        check_places(x, graph)
        if self._cache is not None:
            remedy = "call reset_parameters() first, or leave out cached=True"
            self._check_plan(self._cache, x, graph, "the cached plan", remedy)
            return self._cache
        # Also for callers under autocast: D must not be summed in half precision.
        with (
            torch.autocast(x.device.type, enabled=False),
            outside_transforms(*graph[:2], *graph[3:], *graph.sheaf.tensors().values()),
        ):
            plan = PropagationPlan(
                *graph[:3],
                x.shape[-2],
                edge_weight=graph.edge_weight,
                boundary_mask=graph.boundary_mask,
                normalization=self.normalization,
                dtype=x.dtype,
            )
        if self.cached:
            self._cache = plan
        return plan

    def _check_plan(
        self, plan: PropagationPlan, x: Tensor, graph: GraphInput | None, what: str, remedy: str
    ) -> None:
        dtype, found = working_dtype(x.dtype, (graph or plan).sheaf), None
        if plan.num_nodes != x.shape[-2]:
            found = f"{plan.num_nodes} nodes (got {x.shape[-2]})"
        elif plan.free_index.device != x.device:
            found = f"tensors on {plan.free_index.device} (got 'x' on {x.device})"
        elif plan.dtype != dtype:
            found = f"{plan.dtype} features (got {dtype})"
        elif plan.normalization != self.normalization:
            found = f"normalization={plan.normalization!r} (the layer has {self.normalization!r})"
        elif plan.inputs.misses_gradients:
            found = "a sheaf without gradients (under torch.no_grad())"
        elif not plan.is_whole and self._sends_messages:
            found = "processes that share a graph, without messages for hooks and explainers"
        elif graph is not None:
            found = plan.inputs.difference(graph)
        if found is not None:
            raise ValueError(f"{what} was built for {found}: {remedy}")

    @property
    def _sends_messages(self) -> bool:
        """Whether a hook or ``explain`` needs the messages."""
        return bool(self.explain) or any(
            (
                self._propagate_forward_pre_hooks,
                self._propagate_forward_hooks,
                self._message_forward_pre_hooks,
                self._message_forward_hooks,
                self._aggregate_forward_pre_hooks,
                self._aggregate_forward_hooks,
            )
        )

    def _send(self, plan: PropagationPlan, x: Tensor) -> Tensor:
        """One step of size ``step_size`` by :meth:`propagate`."""
        inputs = plan.inputs
        self._sending = plan
        try:
            return self.propagate(
                inputs.edge_index.long(),
                x=x,
                edge_type=inputs.edge_type.long(),
                sheaf=plan.sheaf,
                edge_weight=inputs.edge_weight,
                boundary_mask=plan.boundary_mask,
            )
        finally:
            self._sending = None

    def _step_free(
        self,
        plan: PropagationPlan,
        sections: Tensor,
        free: Tensor,
        constant: Tensor | None,
        step_size: float,
        out: Tensor | None = None,
    ) -> Tensor:
        """A step of another size from given free rows, message by message where asked for."""
        if not self._sends_messages:
            return plan.step(free, constant, step_size, out)
        x = with_free(sections, plan, free).transpose(0, 1)
        moved = self._send(plan, x.squeeze(0) if x.shape[0] == 1 else x)
        moved = take_rows(moved.view_as(x).transpose(0, 1), 0, plan.free_index)
        return free + step_size / self.step_size * (moved - free)

    def _is_traced(self, sheaf: RelationSheaf) -> bool:
        return torch.compiler.is_compiling() and sheaf.is_traceable and not self._sends_messages

    def _trace(self, x: Tensor, graph: GraphInput) -> TracedPropagation:
        check_places(x, graph)
        edge_index, edge_type, _, edge_weight, boundary_mask = graph
        check_graph_shapes(edge_index, edge_type, x.shape[-2], edge_weight, boundary_mask)
        return TracedPropagation(
            graph, x.shape[-2], normalization=self.normalization, dtype=x.dtype
        )

    def message(
        self,
        x_i: Tensor,
        x_j: Tensor,
        edge_type: Tensor,
        edge_weight: Optional[Tensor],  # noqa: UP045 (PyG's inspector reads it)
        sheaf: RelationSheaf,
    ) -> Tensor:
        r"""Computes the terms of half the gradient of the energy, at the tail and the head of every
        triple.

        Returns:
            Tensor: ``[2, ..., E, F]``, :math:`w_e R_t^* \rho_e` and :math:`-w_e R_h^* \rho_e` for
            the residual :math:`\rho_e = R_t x_t - R_h x_h - b_r`.
        """
        dtype = working_dtype(x_i.dtype, sheaf)
        x_i, x_j, sheaf = x_i.to(dtype), x_j.to(dtype), sheaf.promote(dtype)
        residual = sheaf.restrict(x_i, edge_type, "tail") - sheaf.restrict(x_j, edge_type, "head")
        translation = sheaf.translation_of(edge_type)
        if translation is not None:
            residual = residual - translation
        if edge_weight is not None:
            residual = residual * edge_weight.to(residual.real.dtype).unsqueeze(-1)
        return torch.stack(
            [
                sheaf.restrict_adjoint(residual, edge_type, "tail"),
                -sheaf.restrict_adjoint(residual, edge_type, "head"),
            ]
        )

    def aggregate(  # type: ignore[override]
        self, inputs: Tensor, edge_index: Tensor, x: Tensor
    ) -> Tensor:
        """Sums the messages of all triples, the first at the tail, the second at the head."""
        head, tail = edge_index
        received = add_rows(inputs.new_zeros(x.shape), self.node_dim, tail, inputs[0])
        return add_rows(received, self.node_dim, head, inputs[1])

    def update(  # type: ignore[override]
        self,
        inputs: Tensor,
        x: Tensor,
        edge_index: Tensor,
        edge_type: Tensor,
        sheaf: RelationSheaf,
        edge_weight: Optional[Tensor],  # noqa: UP045 (PyG's inspector reads it)
        boundary_mask: Optional[Tensor],  # noqa: UP045
    ) -> Tensor:
        """Takes the Euler step for the free vertices; boundary vertices do not change."""
        given, x = x, prepare_features(x, sheaf)
        plan = self._sending
        # Its own mask says that the call is that of the plan, on whatever thread.
        if plan is None or plan.boundary_mask is not boundary_mask:
            plan = self.plan(x, edge_index, edge_type, sheaf, edge_weight, boundary_mask)
        sections = to_sections(x)
        gradient = plan.precondition(take_rows(to_sections(inputs), 0, plan.free_index))
        free = take_rows(sections, 0, plan.free_index) - self.step_size * gradient
        return round_result(from_sections(with_free(sections, plan, free), x), given)

    #: What ``repr`` shows: ``...`` for always, else the default that is left out.
    _settings: ClassVar[dict[str, Any]] = {"step_size": ..., "normalization": ..., "cached": False}

    def __repr__(self) -> str:
        shown = [
            f"{name}={value!r}"
            for name, default in self._settings.items()
            if (value := getattr(self, name)) != default
        ]
        return f"{type(self).__name__}({', '.join(shown)})"
