from torch import Tensor

from sheafprop.kernels.coupling import CouplingEntries
from sheafprop.kernels.csr_product import CSRProduct


class IdentityCoupling:
    """Messages of identity maps: one sparse product, parallel triples merged into one entry."""

    def __init__(self, entries: CouplingEntries):
        self._product = CSRProduct(
            entries.dst, entries.src, entries.weight, entries.num_dst, entries.num_src
        )

    def __call__(self, x: Tensor) -> Tensor:
        return self._product(x)
