from typing import Any, Optional

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch_geometric.nn import MessagePassing
from torch_geometric.typing import Adj

from sheafprop.nn.graph_input import as_edges
from sheafprop.nn.traced import TracedPropagation, is_traceable
from sheafprop.sheaf.graph_checks import check_features, check_graph_shapes
from sheafprop.sheaf.plan import Normalization, PropagationPlan, versions
from sheafprop.sheaf.relation_sheaf import RelationSheaf


class SheafConv(MessagePassing):
    r"""One step of normalized sheaf diffusion with relation-typed restriction maps, from "Feature
    Propagation on Knowledge Graphs Using Cellular Sheaves" (Cobb and Gebhart).

    .. math::
        x_U \leftarrow x_U - h \, M^+ \left( L x - \delta^* W b \right)_U ,
        \qquad L = \delta^* W \delta, \qquad (\delta x)_e = R_t x_t - R_h x_h ,

    an explicit Euler step down the energy
    :math:`E(x) = \sum_e w_e \| R_t x_t - R_h x_h - b_r \|^2` over the triples
    :math:`e = (h, r, t)`, with the vertices of the boundary :math:`B` held fixed. Both ends of a
    triple receive a message, the head through the adjoint of its map, so inverse triples must not
    be added. Vertices without edges, and directions no map sees, keep their value.

    The layer has no parameters and holds no graph. :meth:`forward` runs the fused step of a
    :class:`~sheafprop.sheaf.PropagationPlan`; :meth:`propagate` alone, with edge messages, gives
    the same step and is taken when PyG's explainers or message hooks are at work. Under
    ``torch.compile`` and ``torch.export`` the step is straight-line tensor code, and the values of
    ids and weights are not checked.

    Args:
        step_size (float): :math:`h > 0`. With ``"block"`` or ``"degree"`` the energy never rises
            for :math:`h \le 1`; at :math:`h = 1` an eigenvalue 2 of the normalized Laplacian makes
            the diffusion oscillate for ever, hence the default below 1. (default: ``0.9``)
        normalization (str, optional): ``"block"``: :math:`M` is the block diagonal :math:`D` of
            :math:`L`. ``"degree"``: :math:`M_v = \sum w_e \|R\|_2^2` over the triple ends at
            :math:`v`, for maps too large to factor. ``None``: plain gradient flow, stable for
            :math:`h < 2 / \lambda_{\max}(L_{UU})`. (default: ``"block"``)
        cached (bool): Keep the plan of the first call for all further ones: same graph, weights,
            boundary and sheaf, other features. :meth:`reset_parameters` drops it, and so do copies
            of the layer. (default: ``False``)
        **kwargs: Further arguments of :class:`torch_geometric.nn.conv.MessagePassing`; the flow and
            the aggregation are fixed by the mathematics.

    Shapes:
        - **x:** :math:`(N, F)`, or :math:`(B, N, F)` for :math:`B` sections that share all maps;
          :math:`F` is the stalk dimension; real or complex, as the maps are
        - **edge_index:** :math:`(2, E)` heads and tails, or a ``SparseTensor`` ``adj_t``
        - **edge_type:** :math:`(E)` relation ids
        - **output:** as **x**

    Raises:
        ValueError: If the graph, the features and the sheaf do not fit each other.
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
        if not step_size > 0 or step_size == float("inf"):
            raise ValueError(f"'step_size' must be positive and finite (got {step_size})")
        super().__init__(**kwargs)
        self.step_size = step_size
        self.normalization: Normalization = normalization
        self.cached = cached
        self._cache: tuple[PropagationPlan, int] | None = None

    def reset_parameters(self) -> None:
        """Drops the cached plan; there is nothing else to reset."""
        super().reset_parameters()
        self._cache = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_cache": None}

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
        r"""Takes one step.

        Args:
            x (Tensor): Vertex features.
            edge_index (Tensor or SparseTensor): Heads and tails of the triples.
            edge_type (Tensor): Relation ids; None if a ``SparseTensor`` holds them.
            sheaf (RelationSheaf): Restriction maps and translations.
            edge_weight (Tensor, optional): Weights :math:`w_e \ge 0`, ``[E]``.
            boundary_mask (Tensor, optional): Bool ``[N]``: True where the vertex is known and
                fixed. (default: None, all free)
            plan (PropagationPlan, optional): A plan built earlier for this very graph, sheaf and
                boundary; saves sorting and factoring.
        """
        edge_index, edge_type = as_edges(edge_index, edge_type)
        x = _prepare(x, sheaf)
        if plan is None and self._is_traced(sheaf):
            with torch.autocast(x.device.type, enabled=False):
                traced = self._traced(x, edge_index, edge_type, sheaf, edge_weight, boundary_mask)
                return traced.step(x, self.step_size)
        return self._forward_eager(
            x, edge_index, edge_type, sheaf, edge_weight, boundary_mask, plan
        )

    @torch.compiler.disable
    def _forward_eager(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_type: Tensor,
        sheaf: RelationSheaf,
        edge_weight: Tensor | None,
        boundary_mask: Tensor | None,
        plan: PropagationPlan | None,
    ) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            if self.explain or _has_hooks(self):
                return self.propagate(
                    edge_index,
                    x=x,
                    edge_type=edge_type,
                    sheaf=sheaf,
                    edge_weight=edge_weight,
                    boundary_mask=boundary_mask,
                )
            plan = plan or self.plan(x, edge_index, edge_type, sheaf, edge_weight, boundary_mask)
            _check_plan(plan, x, self.normalization)
            sections = to_sections(x)
            free = plan.step(sections[plan.free_index], plan.constant(sections), self.step_size)
            return from_sections(with_free(sections, plan, free), x)

    def plan(
        self,
        x: Tensor,
        edge_index: Adj,
        edge_type: Tensor | None,
        sheaf: RelationSheaf,
        edge_weight: Tensor | None = None,
        boundary_mask: Tensor | None = None,
    ) -> PropagationPlan:
        """The reusable part of a step for this graph, sheaf and boundary; see :meth:`forward`.

        Raises:
            ValueError: If the inputs do not fit each other, or not the cached plan.
        """
        edge_index, edge_type = as_edges(edge_index, edge_type)
        if self._cache is not None:
            plan, num_edges = self._cache
            _check_cache(plan, num_edges, x, edge_type, sheaf)
            return plan
        # Also for callers under autocast: D must not be summed in half precision.
        with torch.autocast(x.device.type, enabled=False):
            plan = PropagationPlan(
                edge_index,
                edge_type,
                sheaf,
                x.shape[-2],
                edge_weight=edge_weight,
                boundary_mask=boundary_mask,
                normalization=self.normalization,
                dtype=x.dtype,
            )
        if self.cached:
            self._cache = plan, edge_type.numel()
        return plan

    def _is_traced(self, sheaf: RelationSheaf) -> bool:
        return (
            torch.compiler.is_compiling()
            and is_traceable(sheaf)
            and not (self.explain or _has_hooks(self))
        )

    def _traced(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_type: Tensor,
        sheaf: RelationSheaf,
        edge_weight: Tensor | None,
        boundary_mask: Tensor | None,
    ) -> TracedPropagation:
        check_graph_shapes(edge_index, edge_type, x.shape[-2], edge_weight, boundary_mask)
        return TracedPropagation(
            edge_index,
            edge_type,
            sheaf,
            x.shape[-2],
            edge_weight=edge_weight,
            boundary_mask=boundary_mask,
            normalization=self.normalization,
            dtype=x.dtype,
        )

    def message(
        self,
        x_i: Tensor,
        x_j: Tensor,
        edge_type: Tensor,
        edge_weight: Optional[Tensor],  # noqa: UP045 (PyG's inspector reads it)
        sheaf: RelationSheaf,
    ) -> Tensor:
        r"""What every triple adds to half the gradient of the energy, at its tail and at its head.

        Returns:
            Tensor: ``[2, ..., E, F]``, :math:`w_e R_t^* \rho_e` and :math:`-w_e R_h^* \rho_e` for
            the residual :math:`\rho_e = R_t x_t - R_h x_h - b_r`.
        """
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
        """Adds both messages of every triple: the first at its tail, the second at its head."""
        head, tail = edge_index
        return (
            torch.zeros_like(x)
            .index_add(self.node_dim, tail, inputs[0])
            .index_add(self.node_dim, head, inputs[1])
        )

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
        """The Euler step from the gradient: free vertices move, the boundary stays."""
        plan = self.plan(x, edge_index, edge_type, sheaf, edge_weight, boundary_mask)
        sections = to_sections(x)
        gradient = plan.precondition(to_sections(inputs)[plan.free_index])
        free = sections[plan.free_index] - self.step_size * gradient
        return from_sections(with_free(sections, plan, free), x)

    def __repr__(self) -> str:
        cached = ", cached=True" if self.cached else ""
        return (
            f"{type(self).__name__}(step_size={self.step_size}, "
            f"normalization={self.normalization!r}{cached})"
        )


def to_sections(x: Tensor) -> Tensor:
    """``[N, F]`` or ``[B, N, F]`` to the operators' ``[N, s, F]``."""
    return x.unsqueeze(1) if x.dim() == 2 else x.transpose(0, 1)


def from_sections(sections: Tensor, like: Tensor) -> Tensor:
    """Back to the shape that :func:`to_sections` was given."""
    return sections.squeeze(1) if like.dim() == 2 else sections.transpose(0, 1)


def with_free(sections: Tensor, plan: PropagationPlan, free: Tensor) -> Tensor:
    """All vertices, with new values at the free ones and the boundary untouched."""
    if plan.num_free == plan.num_nodes:
        return free
    return sections.index_copy(0, plan.free_index, free)


def _prepare(x: Tensor, sheaf: RelationSheaf) -> Tensor:
    check_features(x, sheaf)
    dtype = x.dtype if sheaf.dtype is None else torch.promote_types(x.dtype, sheaf.dtype)
    # Half precision loses the boundary values after a few steps.
    return x.to(torch.promote_types(dtype, torch.float32))


def _check_plan(plan: PropagationPlan, x: Tensor, normalization: Normalization) -> None:
    if plan.dtype != x.dtype and plan.sheaf.dtype is not None:
        raise ValueError(f"the plan was built for {plan.dtype} features (got {x.dtype})")
    if plan.num_nodes != x.shape[-2]:
        raise ValueError(
            f"the plan was built for {plan.num_nodes} nodes ('x' has {x.shape[-2]} rows)"
        )
    if plan.normalization != normalization:
        raise ValueError(
            f"the plan was built with normalization={plan.normalization!r} (the layer has "
            f"{normalization!r})"
        )


def _check_cache(
    plan: PropagationPlan, num_edges: int, x: Tensor, edge_type: Tensor, sheaf: RelationSheaf
) -> None:
    remedy = "call reset_parameters() first, or leave out cached=True"
    for what, expected, got in (
        ("nodes", plan.num_nodes, x.shape[-2]),
        ("edges", num_edges, edge_type.numel()),
        ("features", plan.dtype, x.dtype),
    ):
        if expected != got:
            raise ValueError(
                f"the cached plan was built for {expected} {what} (got {got}): {remedy}"
            )
    old, new = (tree_leaves(s) for s in (plan.sheaf, sheaf))
    if type(plan.sheaf) is not type(sheaf) or any(
        a is not b for a, b in zip(old, new, strict=True)
    ):
        raise ValueError(f"the cached plan was built for another sheaf: {remedy}")
    if plan.sheaf_versions != versions(sheaf):
        raise ValueError(f"the sheaf was changed in place since the plan was cached: {remedy}")


def _has_hooks(layer: MessagePassing) -> bool:
    return any(
        (
            layer._propagate_forward_pre_hooks,
            layer._propagate_forward_hooks,
            layer._message_forward_pre_hooks,
            layer._message_forward_hooks,
            layer._aggregate_forward_pre_hooks,
            layer._aggregate_forward_hooks,
        )
    )
