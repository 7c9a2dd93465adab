import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from sheafprop.checks import check_integer
from sheafprop.errors import DivergenceError
from sheafprop.kernels.backend import all_finite
from sheafprop.kernels.fact_csr import FactCSR
from sheafprop.kernels.rows import take_rows
from sheafprop.nn.graph_input import from_sections, round_result, to_sections, with_free
from sheafprop.nn.sheaf_conv import SheafConv
from sheafprop.nn.sheaf_diffusion import affine_chebyshev, expansion_error, power_weights
from sheafprop.nn.solvers import inner, norm_of
from sheafprop.nn.traced import TracedPropagation
from sheafprop.sheaf.graph_checks import check_finite_features
from sheafprop.sheaf.plan import Normalization, PropagationPlan
from sheafprop.sheaf.relation_sheaf import RelationSheaf
from sheafprop.sheaf.spectrum import largest_eigenvalue, reaches_two, upper_bound

#: From so many steps on their result is computed by a Chebyshev expansion.
LEAP = 128
# Steps between two looks at the energy where no bound keeps it from rising.
_WATCH = 32

# Arguments of version 0.1.0, and what does their work.
_REMOVED = {
    "start": "give the layer what sheafprop.nn.start_sections or draw_sections returns",
    "num_sections": "give the layer features [B, N, F], such as draw_sections(...).transpose(0, 1)",
    "normalize_output": "call sheafprop.nn.rescale_sections on the result",
    "seed": "it is an argument of sheafprop.nn.draw_sections",
    "accelerate": "layer.trajectory(plan, sections, range(k + 1)) takes the steps one by one",
}


class SheafPropagation(SheafConv):
    r"""Feature propagation by sheaf diffusion, the Euler scheme from "Feature Propagation on
    Knowledge Graphs Using Cellular Sheaves" (Cobb and Gebhart): several steps of :class:`SheafConv`
    with the known vectors fixed.

    .. math::
        x_U^{(k+1)} = x_U^{(k)} - \frac{h}{1 + a} \left[ M^+ \left( L x^{(k)} - \delta^* W b
        \right)_U + a \left( x_U^{(k)} - x_U^{(0)} \right) \right]

    With teleport :math:`a = 0`, the vectors converge to the harmonic extension of the boundary
    values; a few steps often rank better than this limit. :math:`a > 0` gives the sheaf version of
    APPNP, with the fixed point :math:`(L_{UU} + a M) x_U = (\delta^* W b)_U - L_{UB} x_B + a M
    x_U^{(0)}`.

    With message hooks or PyG's explainers, every step runs as :meth:`propagate`, so that they can
    read and change its messages.

    Runs of 128 steps or more are computed by a Chebyshev expansion of at most
    :math:`2 \sqrt{2 k \ln(2 / \epsilon)}` operator applications, if ``tol`` is None and the bound
    on the spectrum guarantees stable steps. Its error in the :math:`M`-norm is at most
    :math:`\epsilon` = 1e-12 (1e-6 in single precision) times the distance of the start to the
    limit.

    ``torch.compile(fullgraph=True)`` and ``torch.export`` unroll the steps if ``tol`` is None;
    otherwise, compiling breaks the graph around the layer.

    The rows of free vertices are the start. :func:`~sheafprop.nn.draw_sections` and
    :func:`~sheafprop.nn.start_sections` compute other starts, and
    :func:`~sheafprop.nn.rescale_sections` scales the result.

    Args:
        num_iterations (int): Number of steps :math:`k`. (default: ``64``)
        step_size (float): :math:`h`; see :class:`SheafConv`. (default: ``0.9``)
        normalization (str, optional): ``"block"``, ``"degree"`` or None. (default: ``"block"``)
        teleport (float): :math:`a \ge 0`. (default: ``0.0``)
        tol (float, optional): Stop once :math:`\|M^{-1/2} g_k\| \le tol \|M^{-1/2} g_0\|` for the
            gradient :math:`g`. (default: None, run all steps)
        **kwargs: ``cached``, and further arguments of
            :class:`torch_geometric.nn.conv.MessagePassing`.

    Shapes:
        - **x:** :math:`(N, F)`, or :math:`(B, N, F)` for :math:`B` sections
        - **output:** as **x**; number type as in :class:`SheafConv`

    Raises:
        ValueError: If the inputs do not match or are not finite, or if ``normalization=None`` and
            :math:`h \ge 2 / \lambda_{\max}`.
        DivergenceError: If the energy increases or a value is not finite.
        TypeError: If an argument of version 0.1.0 is given; the message names its replacement.

    Example:
        >>> from sheafprop import IdentitySheaf
        >>> x, known = torch.tensor([[1.0], [0.0]]), torch.tensor([True, False])
        >>> edge_index, edge_type = torch.tensor([[0], [1]]), torch.tensor([0])
        >>> sheaf = IdentitySheaf(torch.tensor([[2.0]]))
        >>> layer = SheafPropagation(num_iterations=2, step_size=0.5)
        >>> layer(x, edge_index, edge_type, sheaf, boundary_mask=known).flatten().tolist()
        [1.0, 2.25]
    """

    _settings: ClassVar[dict[str, Any]] = {
        "num_iterations": ...,
        "step_size": ...,
        "normalization": ...,
        "teleport": 0.0,
        "tol": None,
        "cached": False,
    }

    def __init__(
        self,
        num_iterations: int = 64,
        *,
        step_size: float = 0.9,
        normalization: Normalization = "block",
        teleport: float = 0.0,
        tol: float | None = None,
        **kwargs: Any,
    ):
        for name in sorted(kwargs.keys() & _REMOVED.keys()):
            raise TypeError(f"SheafPropagation takes no '{name}' any more: {_REMOVED[name]}")
        super().__init__(step_size=step_size, normalization=normalization, **kwargs)
        check_integer("num_iterations", num_iterations, 0)
        if not teleport >= 0 or math.isinf(teleport):
            raise ValueError(f"'teleport' must be finite and not negative (got {teleport})")
        if tol is not None and not tol > 0:
            raise ValueError(f"'tol' must be positive (got {tol})")
        self.num_iterations = num_iterations
        self.teleport = teleport
        self.tol = tol

    def _is_traced(self, sheaf: RelationSheaf) -> bool:
        # A tolerance decides by values.
        return self.tol is None and super()._is_traced(sheaf)

    def _apply_traced(self, traced: TracedPropagation, x: Tensor) -> Tensor:
        # A copy, as a plan gives it, also where no step is made.
        first = x = x.clone()
        for _ in range(self.num_iterations):
            x = traced.step_with_teleport(x, first, self.step_size, self.teleport)
        return x

    def _apply_plan(self, plan: PropagationPlan, x: Tensor) -> Tensor:
        ((_, out),) = self.trajectory(plan, to_sections(x), [self.num_iterations])
        return from_sections(out, x)

    def trajectory(
        self, plan: PropagationPlan, sections: Tensor, iterations: Iterable[int]
    ) -> Iterator[tuple[int, Tensor]]:
        """Propagates once and yields the vectors at several iteration counts.

        Args:
            plan (PropagationPlan): From :meth:`plan`.
            sections (Tensor): Start ``[N, s, d]``, including boundary rows. The vectors have its
                dtype; computation is at least in single precision.
            iterations (Iterable[int]): Ascending iteration counts.

        Yields:
            The count and the vectors ``[N, s, d]`` after that many steps (fewer if ``tol`` was
            met).
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
            yield count, round_result(vectors, sections)

    def _trajectory(
        self, plan: PropagationPlan, sections: Tensor, iterations: Iterable[int]
    ) -> Iterator[tuple[int, Tensor]]:
        check_finite_features(sections.transpose(0, 1))
        stable = self._check_step(plan, sections.shape[-1])
        constant = plan.constant(sections)
        free = take_rows(sections, 0, plan.free_index)
        # The start stays as it is: a teleport pulls to it, and it may be what was given.
        run = _Run(plan, sections, free, constant)
        for count, moved in self._take_steps(run, free, iterations, stable):
            yield count, with_free(sections, plan, moved)

    def run_columns(
        self,
        rows: FactCSR,
        sheaf: RelationSheaf,
        free: Tensor,
        *,
        columns: slice = slice(None),
        known: Callable[[], Tensor] | None = None,
        on_step: Callable[[int], None] | None = None,
    ) -> Tensor:
        r"""Propagates some columns of the features of a graph whose messages are given in CSR form.

        Identity and diagonal maps act on each column independently, so features larger than memory
        can be propagated in blocks of columns, with the same result. A block requires two tensors
        like ``free`` (three with teleport), and one more for translations or known vertices.

        Args:
            rows (FactCSR): The messages, in memory or mapped.
            sheaf (RelationSheaf): The maps of all columns.
            free (Tensor): Start of the free vertices, ``[n, s, b]``; modified in place.
            columns (slice): The columns of the vertex stalks. (default: all)
            known (callable, optional): Returns these columns of the known vertices, ``[m, s, b]``;
                called once, before the first step.
            on_step (callable, optional): Called after each step with the number of steps.

        Returns:
            Tensor: Vectors of the free vertices, ``[n, s, b]``.

        Raises:
            ValueError: If the maps mix columns, the layer has a ``tol`` (which depends on all
                columns) or hooks, the shapes do not match, or the features are not finite.
            DivergenceError: As the layer itself.
        """
        plan = PropagationPlan.from_rows(
            rows, sheaf, columns=columns, normalization=self.normalization, dtype=free.dtype
        )
        return self.run_free(plan, free, columns=columns, known=known, on_step=on_step)

    def run_free(
        self,
        plan: PropagationPlan,
        free: Tensor,
        *,
        columns: slice = slice(None),
        known: Callable[[], Tensor] | None = None,
        on_step: Callable[[int], None] | None = None,
    ) -> Tensor:
        """Propagates free vertices with a plan of some columns, as :meth:`run_columns` does.

        Args:
            plan (PropagationPlan): A plan, which cannot be used again.
            free, columns, known, on_step: Those of :meth:`run_columns`.
        """
        if self.tol is not None or self._sends_messages:
            raise ValueError("columns are not run one by one with a 'tol' or hooks on messages")
        size = plan.sheaf.stalk_dim
        width = free.shape[-1] if size is None else len(range(size)[columns])
        num_known = plan.num_nodes - plan.num_free
        self._check_columns("free", free, plan.num_free, width, plan.dtype)
        with torch.no_grad(), torch.autocast(free.device.type, enabled=False):
            stable = self._check_step(plan, width)
            vectors = None
            # Other ranks may ask for known vertices that this one does not meet.
            if num_known or (known is not None and not plan.is_whole):
                if known is None:
                    raise ValueError(f"'known' must give {num_known} known vertices")
                vectors = known()
                self._check_columns("known", vectors, num_known, width, plan.dtype)
            constant = plan.take_constant(vectors)
            del vectors
            run = _Run(plan, free, free, constant, on_step, self.teleport == 0)
            ((_, out),) = self._take_steps(run, free, [self.num_iterations], stable)
        return out

    @staticmethod
    def _check_columns(name: str, x: Tensor, size: int, width: int, dtype: torch.dtype) -> None:
        if x.dim() != 3 or (len(x), x.shape[2], x.dtype) != (size, width, dtype):
            raise ValueError(
                f"'{name}' must be [{size}, s, {width}] in {dtype} (got {list(x.shape)} in "
                f"{x.dtype})"
            )
        check_finite_features(x.transpose(0, 1))

    def _take_steps(
        self, run: "_Run", free: Tensor, iterations: Iterable[int], stable: bool
    ) -> Iterator[tuple[int, Tensor]]:
        """The free vertices after each count of steps."""
        plan = run.plan
        stop_below = None if self.tol is None else self.tol * self._residual(run, free)
        done, converged = 0, stop_below == 0
        leaps = stable and self.tol is None and not self._sends_messages
        # Masks on messages change the energy that is watched.
        watched = not (stable or self._sends_messages)
        energy = math.inf
        # Two tensors take the steps in turn; the start, unless it is given away, and what was
        # yielded stay as they are.
        kept, spare = None if run.takes_start else free, None
        for count in iterations:
            if count < done:
                raise ValueError(f"iteration counts must ascend (got {count} after {done})")
            if leaps and count - done >= LEAP:
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
                if run.on_step is not None:
                    run.on_step(done)
            if not all_finite(free):
                raise DivergenceError(
                    f"propagation left the finite numbers within {count} steps of size "
                    f"{self.step_size}: take a smaller step_size, or scale features and maps down"
                )
            kept = free
            yield count, free

    def _advance(self, run: "_Run", free: Tensor, out: Tensor | None = None) -> Tensor:
        if self.teleport == 0:
            return self._step_free(run.plan, run.sections, free, run.constant, self.step_size, out)
        h = self.step_size / (1 + self.teleport)
        moved = self._step_free(run.plan, run.sections, free, run.constant, h)
        return torch.sub(moved, free - run.first, alpha=h * self.teleport)

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
        return norm_of(gradient, preconditioned, plan)

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
            products = [inner(free, plan.laplacian(free), (0, 1, 2)).double()]
            products += [torch.zeros_like(products[0])] * 2
            if run.constant is not None:
                products[1] = 2 * inner(free, run.constant, (0, 1, 2)).double()
            moved = free - run.first
            products[2] = self.teleport * inner(moved, plan.apply_metric(moved), (0, 1, 2)).double()
            drawn, given, pulled = plan.total(torch.stack(products)).unbind()
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
    """What the steps of one run share; ``takes_start`` where the start may be written to."""

    plan: PropagationPlan
    sections: Tensor
    first: Tensor
    constant: Tensor | None
    on_step: Callable[[int], None] | None = None
    takes_start: bool = False
