"""Whether a limit depends on its start."""

import torch

from sheafprop.nn.solvers.cg import solve_cg
from sheafprop.nn.solvers.linear_system import LinearSystem
from sheafprop.sheaf.plan import PropagationPlan
from sheafprop.sheaf.spectrum import normalized_matrix
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
