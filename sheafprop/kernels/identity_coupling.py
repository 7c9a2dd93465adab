from torch import Tensor

from sheafprop.kernels.backend import backend_of
from sheafprop.kernels.coupling import Coupling, CouplingEntries, needs_gradient
from sheafprop.kernels.csr_product import CSRProduct


class IdentityCoupling(Coupling):
    """Messages of identity maps: one sparse product, parallel triples merged into one entry."""

    def __init__(self, entries: CouplingEntries):
        self._product = CSRProduct(
            entries.dst,
            entries.src,
            entries.weight,
            entries.num_dst,
            entries.num_src,
            symmetric=entries.symmetric,
        )

    def __call__(self, x: Tensor) -> Tensor:
        return self._product(x)

    def combine(
        self,
        x: Tensor,
        factors: tuple[float, float, float],
        own: Tensor | None = None,
        gain: Tensor | None = None,
        constant: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        if backend_of(x) == "torch" or needs_gradient(x, own, gain, constant):
            return super().combine(x, factors, own, gain, constant)
        return self._product.combine(x, factors, own, gain, constant, out)
