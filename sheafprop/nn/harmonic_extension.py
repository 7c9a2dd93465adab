import warnings
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch_geometric.typing import Adj

from sheafprop.checks import check_integer
from sheafprop.nn.graph_input import (
    as_edges,
    check_result,
    from_sections,
    prepare_features,
    round_result,
    to_sections,
    with_free,
)
from sheafprop.nn.sheaf_conv import SheafConv
from sheafprop.nn.solvers import SOLVERS, LinearSystem, Solution, is_cheap, norm_of
from sheafprop.nn.solvers.implicit import implicit_limit
from sheafprop.nn.solvers.iterative import solve_cg
from sheafprop.sheaf.coboundary import edge_energy
from sheafprop.sheaf.graph_checks import GraphInput, check_finite_features
from sheafprop.sheaf.plan import Normalization, PropagationPlan
from sheafprop.sheaf.relation_sheaf import RelationSheaf
from sheafprop.sheaf.spectrum import SpectralBounds, normalized_matrix, spectral_bounds
from sheafprop.sheaf.vertex_blocks import relative_tolerance

# Up to this many coordinates the rank is read off the eigenvalues.
_DENSE_SIZE = 256
_PROBE_ITERATIONS = 2000
# Enough for the second projection, above the rounding that the first one leaves.
_SECOND_TOL = 1e-4


def known_regular(plan: PropagationPlan) -> bool:
    r"""Whether :math:`L_{UU}` is nonsingular on the range of :math:`M` by its structure alone.

    That is known for identity maps: a kernel vector is constant on a component without boundary.
    """
    if not plan.sheaf.is_constant or not plan.is_whole:
        return False
    ones = torch.ones(plan.num_free, 1, 1, dtype=plan.dtype, device=plan.free_index.device)
    outside = int((plan.apply_metric(ones) == 0).sum())
    return plan.components_without_boundary == outside


def is_singular(plan: PropagationPlan, width: int, *, seed: int = 0) -> bool:
    r"""Whether :math:`L_{UU}` has a kernel within the range of :math:`M`.

    Structure decides for identity maps, the eigenvalues for small problems. Otherwise a random
    vector is projected on the kernel, by solving with :math:`L_{UU}` from it, and the projection
    is projected again: what is in the kernel stays, what is the solver's error does not.
    """
    with torch.no_grad():
        if plan.sheaf.is_constant:
            return not known_regular(plan)
        size, device = plan.num_free * width, plan.free_index.device
        if size == 0:
            return False
        if size <= _DENSE_SIZE:
            basis = torch.eye(size, dtype=plan.dtype, device=device)
            basis = basis.view(size, plan.num_free, width).transpose(0, 1)
            ranks = plan.project(basis).transpose(0, 1).reshape(size, size).diagonal().real.sum()
            values = torch.linalg.eigvalsh(normalized_matrix(plan, width))
            cut = relative_tolerance(values.dtype, size) * values[-1]
            return int((values > cut).sum()) < round(float(ranks))
        generator = torch.Generator().manual_seed(seed)
        probe = torch.randn(plan.num_free, 1, width, generator=generator, dtype=plan.dtype)
        probe = plan.project(probe.to(device))
        tol = max(1e-10, 10 * torch.finfo(plan.dtype).eps)
        system = LinearSystem(plan)
        sizes = [system.norm_of(plan.apply_metric(probe), probe)]
        for target in (tol, max(tol, _SECOND_TOL)):
            image = system.apply(probe)
            if system.norm(image) <= tol * sizes[-1]:
                return sizes[-1] > 0
            solution = solve_cg(system, image, tol=target, max_iterations=_PROBE_ITERATIONS)
            probe = probe - solution.correction
            sizes.append(system.norm_of(plan.apply_metric(probe), probe))
        return sizes[2] > 0.5 * sizes[1]


@dataclass(frozen=True)
class HarmonicResult:
    r"""Diagnostics of :class:`~sheafprop.nn.HarmonicExtension`.

    Args:
        solver (str): The solver that ran.
        iterations (int): Applications of the operator.
        relative_residual (float): :math:`\|M^{-1/2} g\| / \|M^{-1/2} g_0\|`; 0 if the start is the
            limit.
        converged (bool): Whether the tolerance was met.
        energy_before (float): :math:`E` at the start, plus :math:`a \|x - x_0\|_M^2` with teleport,
            summed over sections.
        energy_after (float): The same at the limit.
        spectrum (SpectralBounds): Smallest nonzero and largest eigenvalue of
            :math:`M^{-1/2} L_{UU} M^{-1/2}`, or Ritz values inside these.
        components_without_boundary (int): Connected components without a known vertex.
        isolated (int): Free vertices without edges; they keep their start.
        singular (bool): Whether :math:`L_{UU}` is singular on the range of :math:`M`, so that the
            limit depends on start and normalization.
        frozen (int): Number of coordinates of the other free vertices that keep their start because
            they are in the kernel of all maps of their triples: dimensions of the kernels of the
            diagonal blocks, including directions whose eigenvalue relative to the largest of the
            block is below 1e-10 or the precision of the features.
        collapsed (bool): Whether the free vertices are shorter than 1e-4 times their start without
            boundary and translations, where the limit is zero if :math:`L_{UU}` is nonsingular.
    """

    solver: str
    iterations: int
    relative_residual: float
    converged: bool
    energy_before: float
    energy_after: float
    spectrum: SpectralBounds
    components_without_boundary: int
    isolated: int
    singular: bool
    frozen: int
    collapsed: bool


Solver = Literal["auto", "cg", "chebyshev", "direct", "euler"]

# Triples whose energy is added up at once.
_BLOCK = 2**18
# A limit this much shorter than its start counts as collapsed where zero attracts it.
_COLLAPSED = 1e-4


class HarmonicExtension(SheafConv):
    r"""The harmonic extension from "Feature Propagation on Knowledge Graphs Using Cellular Sheaves"
    (Cobb and Gebhart, Theorem 1): the limit of sheaf propagation, computed by a linear solver.

    .. math::
        x_U^* = x_U^{(0)} - M^{-1/2} \left( M^{-1/2} L_{UU} M^{-1/2} \right)^+ M^{-1/2} g_0 ,
        \qquad g_0 = \left( L x^{(0)} - \delta^* W b \right)_U ,

    minimizes the energy :math:`E(x) = \sum_e w_e \| R_t x_t - R_h x_h - b_r \|^2` over the free
    vertices :math:`U`, with those of the boundary held fixed. If :math:`L_{UU}` is nonsingular, it
    is the unique minimizer. If it is singular (a component without known vertices, maps with a
    kernel), it is the minimizer closest to the start in the :math:`M`-norm, to which
    :class:`SheafPropagation` converges. With teleport :math:`a > 0` it solves :math:`(L_{UU} + a M)
    x_U = (\delta^* W b)_U - L_{UB} x_B + a M x_U^{(0)}`.

    Gradients with respect to features, maps and translations are computed by implicit
    differentiation, with one additional solve (two if :math:`L_{UU}` may be singular, three if it
    is). Memory does not depend on the number of iterations.

    The layer has no parameters; its :meth:`propagate` is one Euler step. Message hooks and PyG's
    explainers raise :class:`ValueError`, because a solver sends no messages. ``torch.compile``
    breaks the graph around the layer, because the number of iterations depends on the data.

    Args:
        solver (str): ``"cg"``: conjugate gradients preconditioned by :math:`M`. ``"chebyshev"``:
            semi-iteration with Lanczos bounds. ``"direct"``: a factorization, sparse for identity
            and diagonal maps. ``"euler"``: the scheme of the paper. ``"auto"``: direct for identity
            maps on small or tree-like graphs, else CG. (default: ``"auto"``)
        tol (float): Relative residual :math:`\|M^{-1/2} g\| / \|M^{-1/2} g_0\|` to reach.
            (default: ``1e-6``)
        max_iterations (int): Maximum number of operator applications; a warning is raised if it is
            reached. (default: ``10000``)
        normalization (str, optional): :math:`M`: ``"block"``, ``"degree"`` or None, as in
            :class:`SheafConv`. (default: ``"block"``)
        teleport (float): :math:`a \ge 0`. (default: ``0.0``)
        **kwargs: ``cached``, and further arguments of
            :class:`torch_geometric.nn.conv.MessagePassing`.

    Shapes:
        - **x:** :math:`(N, F)`, or :math:`(B, N, F)` for :math:`B` sections that share all maps
        - **edge_index:** :math:`(2, E)` heads and tails, or a ``SparseTensor`` ``adj_t``
        - **edge_type:** :math:`(E)` relation ids
        - **output:** as **x**; number type as in :class:`SheafConv`

    Raises:
        ValueError: If the inputs do not match or are not finite, if ``"direct"`` would need factors
            that are too large, or if message hooks or an explainer are active.
        DivergenceError: If values become too large for their number type.

    Example:
        >>> from sheafprop import IdentitySheaf
        >>> x, known = torch.tensor([[1.0], [0.0], [5.0]]), torch.tensor([True, False, True])
        >>> edge_index, edge_type = torch.tensor([[0, 1], [1, 2]]), torch.tensor([0, 0])
        >>> sheaf = IdentitySheaf(torch.tensor([[1.0]]))
        >>> layer = HarmonicExtension(solver="cg")
        >>> out, result = layer(
        ...     x, edge_index, edge_type, sheaf, boundary_mask=known, return_result=True
        ... )
        >>> out.flatten().tolist()
        [1.0, 3.0, 5.0]
        >>> result.converged, result.singular
        (True, False)
    """

    _settings: ClassVar[dict[str, Any]] = {
        "solver": ...,
        "tol": ...,
        "max_iterations": 10_000,
        "normalization": ...,
        "teleport": 0.0,
        "step_size": 0.9,
        "cached": False,
    }

    def __init__(
        self,
        solver: Solver = "auto",
        *,
        tol: float = 1e-6,
        max_iterations: int = 10_000,
        normalization: Normalization = "block",
        teleport: float = 0.0,
        **kwargs: Any,
    ):
        super().__init__(normalization=normalization, **kwargs)
        if solver != "auto" and solver not in SOLVERS:
            raise ValueError(
                f"'solver' must be 'auto' or one of {sorted(SOLVERS)} (got {solver!r})"
            )
        if not 0 < tol < 1:
            raise ValueError(f"'tol' must lie between 0 and 1 (got {tol})")
        check_integer("max_iterations", max_iterations, 1)
        if not 0 <= teleport < float("inf"):
            raise ValueError(f"'teleport' must be finite and not negative (got {teleport})")
        self.solver: Solver = solver
        self.tol = tol
        self.max_iterations = max_iterations
        self.teleport = teleport

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        edge_index: Adj,
        edge_type: Tensor | None,
        sheaf: RelationSheaf,
        *,
        edge_weight: Tensor | None = None,
        boundary_mask: Tensor | None = None,
        plan: PropagationPlan | None = None,
        return_result: bool = False,
    ) -> Tensor | tuple[Tensor, HarmonicResult]:
        r"""Solves for the limit.

        Args:
            x (Tensor): Vertex features; the rows of free vertices are the start.
            edge_index, edge_type, sheaf, edge_weight, boundary_mask, plan: As in
                :meth:`SheafConv.forward`.
            return_result (bool): Also return a :class:`HarmonicResult`. Its ``spectrum`` and
                ``singular`` require further operator applications. (default: ``False``)
        """
        graph = GraphInput(*as_edges(edge_index, edge_type, x), sheaf, edge_weight, boundary_mask)
        out, result = self._solve(prepare_features(x, sheaf), graph, plan, return_result)
        out = round_result(out, x)
        return out if result is None else (out, result)

    @torch.compiler.disable
    def _solve(
        self, x: Tensor, graph: GraphInput, plan: PropagationPlan | None, return_result: bool
    ) -> tuple[Tensor, HarmonicResult | None]:
        if self._sends_messages:
            raise ValueError(
                "HarmonicExtension solves for the limit and sends no messages that hooks or "
                "explainers could see: remove them, or take SheafPropagation, whose many steps "
                "tend to the same limit"
            )
        check_finite_features(x)
        with torch.autocast(x.device.type, enabled=False):
            plan = self._plan_for(plan, x, graph)
            sections = to_sections(x)
            name = self.solver
            if name == "auto":
                name = "direct" if plan.is_whole and is_cheap(plan) else "cg"
            if not plan.is_whole and (name == "direct" or return_result):
                raise ValueError(
                    "processes that share a graph have no factors and no energies of the whole: "
                    "take solver='cg' and no 'return_result'"
                )
            settings: Any = dict(tol=self.tol, max_iterations=self.max_iterations)

            def solve(system: LinearSystem, rhs: Tensor) -> Solution:
                nonlocal name
                solution = SOLVERS[name](system, rhs, **settings)
                if not solution.converged and self.solver == "auto" and name == "direct":
                    # Eigenvalues too small for the factorization: CG does not mind them.
                    name = "cg"
                    solution = SOLVERS[name](system, rhs, **settings)
                if not solution.converged:
                    shortfall = self._shortfall(name, solution, plan.dtype)
                    warnings.warn(f"solver={name!r} {shortfall}")
                return solution

            free, solution = implicit_limit(
                LinearSystem(plan, self.teleport),
                sections,
                solve,
                regular=self.teleport > 0 or known_regular(plan),
            )
            done = with_free(sections, plan, free)
            out = from_sections(done, x)
            check_result(out, x)
            collapsed = self._has_collapsed(plan, sections, free)
            if not return_result:
                return out, None
            with torch.no_grad():
                graph = graph._replace(edge_weight=plan.inputs.edge_weight)
                result = HarmonicResult(
                    solver=name,
                    iterations=solution.iterations,
                    relative_residual=solution.relative_residual,
                    converged=solution.converged,
                    energy_before=_energy(sections, graph),
                    energy_after=_energy(done, graph) + self._pull(plan, sections, free),
                    spectrum=spectral_bounds(plan, x.shape[-1]),
                    components_without_boundary=plan.components_without_boundary,
                    isolated=int(plan.isolated.sum()),
                    singular=is_singular(plan, x.shape[-1]),
                    frozen=int(plan.blocks.num_frozen(x.shape[-1])[~plan.isolated].sum()),
                    collapsed=collapsed,
                )
            return out, result

    def _shortfall(self, name: str, solution: Solution, dtype: torch.dtype) -> str:
        advice = [] if name == "cg" else ["take solver='cg'"]
        why = ""
        # A solver whose steps gain nothing more stops before the bound.
        if solution.iterations >= self.max_iterations - 2:
            advice.append("raise max_iterations")
        else:
            why = f", where steps gain nothing more in {dtype}"
        return solution.note or (
            f"stopped after {solution.iterations} operator applications at a relative residual of "
            f"{solution.relative_residual:.2g} (tol={self.tol}){why}: "
            f"{', '.join([*advice, 'take a larger tol or double precision'])}"
        )

    def _pull(self, plan: PropagationPlan, sections: Tensor, free: Tensor) -> float:
        moved = free - sections[plan.free_index]
        return self.teleport * norm_of(plan.apply_metric(moved), moved, plan) ** 2

    def _has_collapsed(self, plan: PropagationPlan, sections: Tensor, free: Tensor) -> bool:
        if self.teleport or (plan.is_whole and plan.num_free == 0):
            return False
        with torch.no_grad():
            parts = [plan.project(x).abs().double() for x in (sections[plan.free_index], free)]
            sizes = torch.stack([part.square().sum() for part in parts])
            before, after = plan.total(sizes).sqrt().tolist()
            if not after < _COLLAPSED * before:
                return False
            if plan.largest(float((plan.constant(sections) != 0).any())):
                return False
        warnings.warn(
            "without known vertices and translations the limit is zero wherever the Laplacian is "
            "nonsingular: stop at finite time (SheafPropagation), or set teleport"
        )
        return True


def _energy(sections: Tensor, graph: GraphInput) -> float:
    edge_index, edge_type, sheaf, edge_weight, _ = graph
    total = 0.0
    for start in range(0, edge_type.numel(), _BLOCK):
        part = slice(start, start + _BLOCK)
        weight = None if edge_weight is None else edge_weight[part]
        for section in sections.unbind(1):
            energy = edge_energy(section, edge_index[:, part], edge_type[part], sheaf, weight)
            total += float(energy.sum(dtype=torch.float64))
    return total
