"""Extreme eigenvalues of the normalized Laplacian on the free vertices."""

import math

import torch
from torch import Tensor

from sheafprop.sheaf.plan import PropagationPlan


def largest_eigenvalue(
    plan: PropagationPlan, width: int, *, num_iterations: int = 60, seed: int = 0
) -> float:
    r"""Largest Ritz value of :math:`M^{-1/2} L_{UU} M^{-1/2}` by the Lanczos process.

    A Ritz value never exceeds the true eigenvalue and reaches it fast at the upper end. Basis
    vectors are kept and reorthogonalised, since a lost basis shows spurious copies. Golub and Van
    Loan, "Matrix Computations", section 10.1.

    Args:
        plan (PropagationPlan): The operator.
        width (int): Stalk dimension :math:`d`.
        num_iterations (int): At most so many operator applications.
        seed (int): Seed of the start vector.

    Returns:
        float: 0 for an empty operator.
    """
    shape = (plan.num_free, 1, width)
    size = plan.num_free * width
    if size == 0:
        return 0.0
    dtype = plan.dtype
    generator = torch.Generator().manual_seed(seed)
    vector = torch.randn(shape, generator=generator, dtype=dtype).to(plan.free_index.device)
    basis: list[Tensor] = [vector / torch.linalg.vector_norm(vector)]
    diagonal: list[float] = []
    off_diagonal: list[float] = []
    for _ in range(min(num_iterations, size)):
        image = plan.precondition_sqrt(plan.laplacian(plan.precondition_sqrt(basis[-1])))
        diagonal.append(float(torch.sum(basis[-1].conj() * image).real))
        for _ in range(2):
            for q in basis:
                image = image - q * torch.sum(q.conj() * image)
        norm = float(torch.linalg.vector_norm(image))
        if norm <= 1e-7 * max(1.0, max(diagonal)):
            break
        off_diagonal.append(norm)
        basis.append(image / norm)
    k = len(diagonal)
    ritz = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    for i, value in enumerate(off_diagonal[: k - 1]):
        ritz[i, i + 1] = ritz[i + 1, i] = value
    top = float(torch.linalg.eigvalsh(ritz)[-1])
    return 0.0 if math.isclose(top, 0.0, abs_tol=1e-12) else top
