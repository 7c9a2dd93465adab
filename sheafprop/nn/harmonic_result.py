from dataclasses import dataclass

from sheafprop.sheaf.spectrum import SpectralBounds


@dataclass(frozen=True)
class HarmonicResult:
    r"""What :class:`~sheafprop.nn.HarmonicExtension` found out about a limit.

    Args:
        solver (str): The solver that ran.
        iterations (int): Applications of the operator.
        relative_residual (float): :math:`\|M^{-1/2} g\| / \|M^{-1/2} g_0\|`; 0 if the start is the
            limit already.
        converged (bool): Whether the tolerance was met.
        energy_before (float): :math:`E` at the start, plus :math:`a \|x - x_0\|_M^2` with
            teleport, added up over sections.
        energy_after (float): The same at the limit.
        spectrum (SpectralBounds): Smallest nonzero and largest eigenvalue of
            :math:`M^{-1/2} L_{UU} M^{-1/2}`, or Ritz values inside these.
        components_without_boundary (int): Connected components without a known vertex.
        isolated (int): Free vertices without edges; they keep their start.
        singular (bool): Whether :math:`L_{UU}` is singular on the range of :math:`M`, so that the
            limit depends on start and normalization.
        frozen (int): Coordinates of the other free vertices that no map of their triples sees, so
            that they keep their start: dimensions of the kernels of the diagonal blocks, and
            directions whose share of a block's largest eigenvalue is below 1e-10 or the precision
            of the features.
        collapsed (bool): Whether all free vertices went to zero, as they must without boundary and
            translations where :math:`L_{UU}` is nonsingular.
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
