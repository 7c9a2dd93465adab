import torch
from torch import Tensor

from sheafprop.kernels.coupling import CouplingEntries

# Bytes of gathered messages held at once; the sum over edges runs in blocks of this size.
_BLOCK_BYTES = 64 * 2**20


class DiagonalCoupling:
    r"""Messages of diagonal maps: :math:`y_v = \sum_e w_e \, c_{r_e} \odot x_{u_e}`.

    ``coefficients`` holds :math:`c_r = \overline{R_t} \odot R_h` for the message into the tail;
    the message into the head uses its conjugate.
    """

    def __init__(self, entries: CouplingEntries, coefficients: Tensor):
        order = torch.argsort(entries.dst, stable=True)
        self._dst, self._src = entries.dst[order], entries.src[order]
        self._row = entries.relation[order] + entries.backward[order] * coefficients.shape[0]
        self._weight = entries.weight[order]
        self._unweighted = bool((entries.weight == 1).all())
        self._num_dst = entries.num_dst
        self._table = torch.cat([coefficients, coefficients.conj().resolve_conj()])

    def __call__(self, x: Tensor) -> Tensor:
        out = x.new_zeros(self._num_dst, *x.shape[1:])
        row_bytes = max(1, x[:1].numel() * x.element_size())
        block = max(1, _BLOCK_BYTES // row_bytes)
        for start in range(0, self._dst.numel(), block):
            part = slice(start, start + block)
            message = x[self._src[part]] * self._table[self._row[part]].unsqueeze(1)
            if not self._unweighted:
                message = message * self._weight[part].view(-1, 1, 1).to(message.real.dtype)
            out = out.index_add(0, self._dst[part], message)
        return out
