from typing import Any

from torch import Tensor

from sheafprop.distributed.halo_exchange import HaloExchange
from sheafprop.kernels.coupling import Coupling, needs_gradient
from sheafprop.kernels.csr_product import Terms
from sheafprop.kernels.memory import empty

_BUFFER = "_sheafprop_halo_buffer"


class HaloCoupling(Coupling):
    r"""Messages into the rows of this rank, from its own rows and from those of other ranks.

    Rows that no other rank sends to are computed while the others are under way, where compiled
    loops take some rows alone.

    Args:
        inner (Coupling): Messages from own rows and the halo behind them, ``[n, n + h]``.
        exchange (HaloExchange): Fetches the halo.
        num_interior (int): How many of the first rows receive nothing from the halo.
    """

    def __init__(self, inner: Coupling, exchange: HaloExchange, num_interior: int):
        self._inner, self._exchange, self._num_interior = inner, exchange, num_interior
        self._spare: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        buffer = self._buffer_of(x)
        self._exchange.run(buffer)
        return self._inner(buffer)

    def combine(self, x: Tensor, terms: Terms) -> Tensor:
        buffer, size = self._buffer_of(x), self._exchange.num_own
        wait = self._exchange.start(buffer)
        target = self._target(x, terms.out)
        given = terms._replace(out=target)
        begun = self._inner.combine_rows((0, self._num_interior), buffer, given)
        wait()
        if begun:
            self._inner.combine_rows((self._num_interior, size), buffer, given)
            return target
        return _Received(self._inner(buffer)).combine(x, terms)

    def _buffer_of(self, x: Tensor) -> Tensor:
        """A buffer that begins with the rows of ``x``: its own one, or a copy."""
        if needs_gradient(x):
            raise ValueError(
                "no gradients lead through processes that share a graph: propagate under "
                "torch.no_grad(), or in one process"
            )
        buffer = getattr(x, _BUFFER, None)
        if buffer is None or len(buffer) != self._exchange.num_own + self._exchange.num_halo:
            spare, self._spare = self._spare, None
            if spare is None or spare.shape != x.shape or spare.dtype != x.dtype:
                spare = self._make(x)
            # It serves as the first result that has no place of its own.
            self._spare = spare
            buffer = getattr(spare, _BUFFER)
            buffer[: len(x)] = x
        return buffer

    def _target(self, x: Tensor, out: Tensor | None) -> Tensor:
        """A tensor like ``x`` with room for the halo behind it."""
        if out is not None and hasattr(out, _BUFFER):
            return out
        spare = self._spare
        if spare is None or spare.shape != x.shape or spare.dtype != x.dtype:
            return self._make(x)
        if getattr(x, _BUFFER, None) is None:
            # These are the rows that are read.
            return self._make(x)
        self._spare = None
        return spare

    def _make(self, like: Tensor) -> Tensor:
        exchange = self._exchange
        buffer = empty((exchange.num_own + exchange.num_halo, *like.shape[1:]), like)
        # Known by an attribute of the tensor object: a view or a copy of it has no room.
        rows: Any = buffer[: exchange.num_own]
        setattr(rows, _BUFFER, buffer)
        return rows


class KnownCoupling(Coupling):
    """Messages from known vertices, of which other ranks own some, into the rows of this rank.

    Args:
        inner (Coupling): Messages from all known vertices that own rows meet.
        exchange (HaloExchange): Fetches those of other ranks.
        place (Tensor): Where each source of ``inner`` lies among own known vertices and those of
            other ranks behind them, int64.
    """

    def __init__(self, inner: Coupling | None, exchange: HaloExchange, place: Tensor, size: int):
        self._inner, self._exchange, self._place, self._size = inner, exchange, place, size

    def __call__(self, x: Tensor) -> Tensor:
        exchange = self._exchange
        if not exchange.is_empty:
            buffer = x.new_empty(exchange.num_own + exchange.num_halo, *x.shape[1:])
            buffer[: exchange.num_own] = x
            exchange.run(buffer)
            x = buffer
        if self._inner is None:
            return x.new_zeros(self._size, *x.shape[1:])
        return self._inner(x.index_select(0, self._place))


class _Received(Coupling):
    """Messages that are there already."""

    def __init__(self, received: Tensor):
        self._received = received

    def __call__(self, x: Tensor) -> Tensor:
        return self._received
