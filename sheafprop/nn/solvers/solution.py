from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Solution:
    r"""What a solver found for :math:`A z = f`.

    Args:
        correction (Tensor): :math:`z = A^\# f`, ``[n, s, d]``.
        iterations (int): Applications of the operator.
        relative_residual (float): :math:`\|M^{-1/2} (f - A z)\| / \|M^{-1/2} f\|`, from the
            returned :math:`z`; 0 for :math:`f = 0`.
        converged (bool): Whether the tolerance was met, or the residual is no larger than the
            rounding in :math:`f`.
        note (str): What else keeps the result from being exact; empty if nothing does.
    """

    correction: Tensor
    iterations: int
    relative_residual: float
    converged: bool
    note: str = ""
