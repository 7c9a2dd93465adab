import math
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch_geometric.typing import Adj

from sheafprop.checks import check_integer
from sheafprop.errors import DivergenceError
from sheafprop.kernels.backend import all_finite
from sheafprop.kernels.rows import take_rows
from sheafprop.nn.diffusion_time import affine_chebyshev, expansion_error, power_weights
from sheafprop.nn.graph_input import as_edges
from sheafprop.nn.prototypes import RelationPrototypes
from sheafprop.nn.sheaf_conv import (
    SheafConv,
    finished,
    from_sections,
    prepared,
    to_sections,
    with_free,
)
from sheafprop.nn.solvers import inner, norm_of
from sheafprop.nn.start import Start, known_length, start_sections
from sheafprop.sheaf.graph_checks import check_finite_features
from sheafprop.sheaf.plan import Normalization, PropagationPlan
from sheafprop.sheaf.relation_sheaf import RelationSheaf
from sheafprop.sheaf.spectrum import largest_eigenvalue, reaches_two, upper_bound

# From so many steps on their result is computed by a Chebyshev expansion.
_LEAP = 128
# Steps between two looks at the energy where no bound keeps it from rising.
_WATCH = 32


class SheafPropagation(SheafConv):
    r"""Feature propagation by sheaf diffusion: many steps of :class:`SheafConv` with the known
    vectors fixed, the Euler scheme of "Feature Propagation on Knowledge Graphs Using Cellular
    Sheaves" (Cobb and Gebhart).

    .. math::
        x_U^{(k+1)} = x_U^{(k)} - \frac{h}{1 + a} \left[ M^+ \left( L x^{(k)} - \delta^* W b
        \right)_U + a \left( x_U^{(k)} - x_U^{(0)} \right) \right]

    With teleport :math:`a = 0` it runs down the energy towards the harmonic extension of the
    boundary values; stopping early is a choice that often ranks better than the limit. With
    :math:`a > 0` it is the sheaf version of APPNP, with the fixed point
    :math:`(L_{UU} + a M) x_U = (\delta^* W b)_U - L_{UB} x_B + a M x_U^{(0)}`.

    Message hooks and PyG's explainers see (and may change) the messages of every step, which then
    runs as :meth:`propagate`.

    ``torch.compile(fullgraph=True)`` and ``torch.export`` unroll the steps where ``start`` is None
    or ``"zeros"`` and ``tol`` is None; elsewhere compiling breaks the graph around the layer.

    Args:
        num_iterations (int): Number of steps :math:`k`. (default: ``64``)
        step_size (float): :math:`h`; see :class:`SheafConv`. (default: ``0.9``)
        normalization (str, optional): ``"block"``, ``"degree"`` or None. (default: ``"block"``)
        start (str, optional): Values of the free vertices at :math:`k = 0`. None: the rows of
            ``x``. ``"zeros"``. ``"random"``: normal, of the mean length of the known rows, seeded
            for each vertex by its key. ``"prototype"``: mean over the vertex's triple ends of the
            prototype of that (relation, side). ``"mixed"``: the prototype in the first section,
            random in the others. (default: None)
        num_sections (int): Independent starts propagated at once; the output then has a leading
            dimension. (default: ``1``)
        normalize_output (bool or float): Scale each free row to the mean length of the known rows
            (1 without any), or to the length given; zero rows stay. (default: ``False``)
        teleport (float): :math:`a \ge 0`. (default: ``0.0``)
        tol (float, optional): Stop once :math:`\|M^{-1/2} g_k\| \le tol \|M^{-1/2} g_0\|` for the
            gradient :math:`g`. (default: None, run all steps)
        seed (int): Seed of random starts. (default: ``0``)
        accelerate (bool): Compute the result of 128 steps or more at once, through a Chebyshev
            expansion of at most :math:`2 \sqrt{2 k \ln(2 / \epsilon)}` operator applications. Its
            distance to the steps' result in the :math:`M`-norm is at most :math:`\epsilon` = 1e-12
            (1e-6 in single precision) of the start's distance to the limit. Only without ``tol``,
            and for steps that are stable by the bound on the spectrum. (default: ``True``)
        **kwargs: Further arguments of :class:`torch_geometric.nn.conv.MessagePassing`.

    Shapes:
        - **x:** :math:`(N, F)`, or :math:`(B, N, F)` for :math:`B` sections
        - **output:** as **x**; :math:`(s, N, F)` if ``num_sections`` :math:`= s > 1`; number type
          as in :class:`SheafConv`

    Raises:
        ValueError: If the inputs do not fit each other or are not finite, or
            ``normalization=None`` and :math:`h \ge 2 / \lambda_{\max}`.
        DivergenceError: If the energy rises or the values stop being finite.

    Example:
        >>> layer = SheafPropagation(num_iterations=32)
        >>> x = layer(x, edge_index, edge_type, sheaf, boundary_mask=known)
    """

    _always_shown: ClassVar[tuple[str, ...]] = ("num_iterations", "step_size", "normalization")

    def __init__(
        self,
        num_iterations: int = 64,
        *,
        step_size: float = 0.9,
        normalization: Normalization = "block",
        start: Start | None = None,
        num_sections: int = 1,
        normalize_output: bool | float = False,
        teleport: float = 0.0,
        tol: float | None = None,
        seed: int = 0,
        accelerate: bool = True,
        **kwargs: Any,
    ):
        super().__init__(step_size=step_size, normalization=normalization, **kwargs)
        check_integer("num_iterations", num_iterations, 0)
        check_integer("num_sections", num_sections, 1)
        check_integer("seed", seed)
        if start not in (None, "zeros", "random", "prototype", "mixed"):
            raise ValueError(
                f"'start' must be None, 'zeros', 'random', 'prototype' or 'mixed' (got {start!r})"
            )
        if not teleport >= 0 or math.isinf(teleport):
            raise ValueError(f"'teleport' must be finite and not negative (got {teleport})")
        if tol is not None and not tol > 0:
            raise ValueError(f"'tol' must be positive (got {tol})")
        if not isinstance(normalize_output, bool) and not 0 < normalize_output < math.inf:
            raise ValueError(
                f"'normalize_output' must be a bool or a positive length (got {normalize_output})"
            )
        self.num_iterations = num_iterations
        self.start: Start | None = start
        self.num_sections = num_sections
        self.normalize_output = normalize_output
        self.teleport = teleport
        self.tol = tol
        self.seed = seed
        self.accelerate = accelerate

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
        node_keys: Tensor | None = None,
        prototypes: RelationPrototypes | None = None,
    ) -> Tensor:
        r"""Propagates.

        Args:
            x (Tensor): Vertex features; free rows matter only if ``start`` is None.
            edge_index, edge_type, sheaf, edge_weight, boundary_mask, plan: As in
                :meth:`SheafConv.forward`.
            node_keys (Tensor, optional): One int64 key for each vertex that seeds its random start;
                None for its number.
            prototypes (RelationPrototypes, optional): Needed by the starts ``"prototype"`` and
                ``"mixed"``.
        """
        edge_index, edge_type = as_edges(edge_index, edge_type, x)
        given, x = x, prepared(x, sheaf)
        arguments = (x, edge_index, edge_type, sheaf, edge_weight, boundary_mask)
        if plan is None and self._is_traced(sheaf):
            return finished(self._forward_traced(*arguments), given)
        return finished(self._propagate_eager(*arguments, plan, node_keys, prototypes), given)

    @torch.compiler.disable
    def _propagate_eager(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_type: Tensor,
        sheaf: RelationSheaf,
        edge_weight: Tensor | None,
        boundary_mask: Tensor | None,
        plan: PropagationPlan | None,
        node_keys: Tensor | None,
        prototypes: RelationPrototypes | None,
    ) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            plan = self._plan_for(plan, x, edge_index, edge_type, sheaf, edge_weight, boundary_mask)
            # Free rows that a start replaces may hold anything.
            check_finite_features(x, None if self.start is None else plan.boundary_mask)
            sections = start_sections(
                to_sections(x),
                plan.boundary_mask,
                edge_index,
                edge_type,
                start=self.start,
                num_sections=self.num_sections,
                node_keys=node_keys,
                prototypes=prototypes,
                edge_weight=plan.inputs.edge_weight,
                seed=self.seed,
            )
            ((_, out),) = self.trajectory(plan, sections, [self.num_iterations])
        if self.num_sections > 1:
            return out.transpose(0, 1)
        return from_sections(out, x)

    def _is_traced(self, sheaf: RelationSheaf) -> bool:
        # Random starts are drawn in numpy, prototypes and tolerances decide by values.
        plain = self.start in (None, "zeros") and self.tol is None
        return plain and super()._is_traced(sheaf)

    def _forward_traced(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_type: Tensor,
        sheaf: RelationSheaf,
        edge_weight: Tensor | None,
        boundary_mask: Tensor | None,
    ) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            traced = self._traced(x, edge_index, edge_type, sheaf, edge_weight, boundary_mask)
            # A copy, as a plan gives it, also where no step is made.
            x = traced.zero_start(x) if self.start == "zeros" else x.clone()
            first = x
            for _ in range(self.num_iterations):
                x = traced.pulled_step(x, first, self.step_size, self.teleport)
            if self.normalize_output is not False:
                length = None if self.normalize_output is True else float(self.normalize_output)
                x = traced.rescale(x, length)
            if self.num_sections == 1:
                return x
            if x.dim() == 3 and x.shape[0] != 1:
                raise ValueError(
                    f"'x' already has {x.shape[0]} sections: num_sections must be 1 (got "
                    f"{self.num_sections})"
                )
            return x.expand(self.num_sections, *x.shape[-2:])

    def trajectory(
        self, plan: PropagationPlan, sections: Tensor, iterations: Iterable[int]
    ) -> Iterator[tuple[int, Tensor]]:
        """Propagates once and yields the vectors at several iteration counts.

        Args:
            plan (PropagationPlan): From :meth:`plan`.
            sections (Tensor): Start ``[N, s, d]``, boundary rows included. The vectors have its
                number type, and at least single precision while they propagate.
            iterations (Iterable[int]): Ascending iteration counts.

        Yields:
            The count and the vectors ``[N, s, d]`` after so many steps (after fewer, if ``tol`` was
            met), with ``normalize_output`` applied.
        """
        self._check_plan(plan, sections.transpose(0, 1), None, "the plan", "build another one")
        steps = self._trajectory(plan, sections.to(plan.dtype), iterations)
        while True:
            # Around each step, not around the loop: the caller's autocast is back at every yield.
            with torch.autocast(sections.device.type, enabled=False):
                found = next(steps, None)
            if found is None:
                return
            count, vectors = found
            yield count, finished(vectors, sections)

    def _trajectory(
        self, plan: PropagationPlan, sections: Tensor, iterations: Iterable[int]
    ) -> Iterator[tuple[int, Tensor]]:
        check_finite_features(sections.transpose(0, 1))
        stable = self._check_step(plan, sections.shape[-1])
        constant = plan.constant(sections)
        free = first = take_rows(sections, 0, plan.free_index)
        length = self._target_length(sections, plan.boundary_mask)
        run = _Run(plan, sections, first, constant)
        stop_below = None if self.tol is None else self.tol * self._residual(run, free)
        done, converged = 0, stop_below == 0
        leaps = self.accelerate and stable and self.tol is None and not self._sends_messages
        # Masks on messages change the energy that is watched.
        watched = not (stable or self._sends_messages)
        energy = math.inf
        # Two tensors take the steps in turn; the start and what was yielded stay as they are.
        kept, spare = free, None
        for count in iterations:
            if count < done:
                raise ValueError(f"iteration counts must ascend (got {count} after {done})")
            if leaps and count - done >= _LEAP:
                weights = power_weights(count - done, expansion_error(free.dtype))
                free = plan.keep_isolated(
                    affine_chebyshev(lambda y: self._advance(run, y), free, weights), free
                )
                done = count
            while done < count:
                if watched and not converged and done % _WATCH == 0:
                    energy = self._watch(run, free, energy, done)
                if not converged:
                    before = free
                    free = self._advance(run, free, spare)
                    spare = None if before is kept else before
                    if stop_below is not None:
                        converged = self._residual(run, free) <= stop_below
                done += 1
            if not all_finite(free):
                raise DivergenceError(
                    f"propagation left the finite numbers within {count} steps of size "
                    f"{self.step_size}: take a smaller step_size, or scale features and maps down"
                )
            kept = free
            yield (
                count,
                with_free(sections, plan, free if length is None else _rescale(free, length)),
            )

    def _advance(self, run: "_Run", free: Tensor, out: Tensor | None = None) -> Tensor:
        if self.teleport == 0:
            return self._step_free(run.plan, run.sections, free, run.constant, self.step_size, out)
        h = self.step_size / (1 + self.teleport)
        moved = self._step_free(run.plan, run.sections, free, run.constant, h)
        return moved - h * self.teleport * (free - run.first)

    def _residual(self, run: "_Run", free: Tensor) -> float:
        plan, pull = run.plan, free - run.first if self.teleport else None
        if self._sends_messages:
            # The gradient that the messages make, masked or changed as they may be.
            moved = self._step_free(plan, run.sections, free, run.constant, self.step_size)
            preconditioned = (free - moved) / self.step_size
            gradient = plan.apply_metric(preconditioned)
        else:
            gradient = plan.gradient(free, run.constant)
            preconditioned = plan.precondition(gradient)
        if pull is not None:
            preconditioned = preconditioned + self.teleport * pull
            gradient = gradient + self.teleport * plan.apply_metric(pull)
        return norm_of(gradient, preconditioned)

    def _target_length(self, sections: Tensor, boundary_mask: Tensor) -> float | None:
        if self.normalize_output is False:
            return None
        if self.normalize_output is True:
            return known_length(sections, boundary_mask)
        return float(self.normalize_output)

    def _check_step(self, plan: PropagationPlan, width: int) -> bool:
        """Refuses or reports a step that is too large; True if a bound says that it is stable."""
        h, pull = self.step_size / (1 + self.teleport), self.teleport
        bound = h * (upper_bound(plan) + pull)
        if bound < 2:
            return True
        if bound == 2 and self.normalization is not None:
            if reaches_two(plan, width):
                warnings.warn(
                    f"step_size={self.step_size} with an eigenvalue 2 of the normalized Laplacian "
                    "oscillates and never settles: take step_size < 1",
                    stacklevel=3,
                )
            return True
        top = largest_eigenvalue(plan, width)
        most = 2 * (1 + pull) / (top + pull) if top + pull else math.inf
        if self.normalization is None and self.step_size >= most:
            raise ValueError(
                f"without normalization the step must stay below 2 / lambda_max = {most:.4g} "
                f"(got step_size={self.step_size}); take a smaller step or normalization='block'"
            )
        if self.step_size >= most * (1 - 1e-6):
            warnings.warn(
                f"step_size={self.step_size} with an eigenvalue {top:.4g} of the normalized "
                f"Laplacian diverges: take step_size < {most:.4g}",
                stacklevel=3,
            )
        return False

    def _watch(self, run: "_Run", free: Tensor, last: float, done: int) -> float:
        """The energy up to a constant; stops where it has risen since the last look."""
        with torch.no_grad():
            plan = run.plan
            drawn = inner(free, plan.laplacian(free), (0, 1, 2)).double()
            given = 2 * inner(free, run.constant, (0, 1, 2)).double()
            moved = free - run.first
            pulled = self.teleport * inner(moved, plan.apply_metric(moved), (0, 1, 2)).double()
            energy = float(drawn - given + pulled)
            rounding = 100 * torch.finfo(free.dtype).eps * float(drawn + given.abs() + pulled)
        if not energy <= last + rounding:
            raise DivergenceError(
                f"the energy rose within {done} steps of size {self.step_size} (from {last:.6g} to "
                f"{energy:.6g}, up to a constant): take a smaller step_size, or step_size <= 1 "
                "with normalization='block'"
            )
        return energy


class _Run(NamedTuple):
    """What the steps of one run share."""

    plan: PropagationPlan
    sections: Tensor
    first: Tensor
    constant: Tensor


def _rescale(x: Tensor, length: float) -> Tensor:
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.where(norm > 0, x * (length / norm.clamp_min(torch.finfo(norm.dtype).tiny)), x)
