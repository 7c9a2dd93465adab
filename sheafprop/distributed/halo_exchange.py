from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sheafprop.distributed.ranks import Ranks


class HaloExchange:
    """Brings rows of vertices that other ranks own behind those that this rank owns.

    A rank sends a row once to each rank that needs it, however many triples lead there. Messages
    are cut into pieces, and received in place where one piece does.

    Args:
        ranks (Ranks): The processes.
        sent (sequence of Tensor): For each rank, which own rows it needs, int64, in the order of
            that rank's halo.
        received (sequence of int): How many rows come from each rank.
        num_own (int): The number of own rows; the halo begins behind them.

    Raises:
        ValueError: On all ranks, if one expects other rows than are sent to it.
    """

    def __init__(self, ranks: Ranks, sent: Sequence[Tensor], received: Sequence[int], num_own: int):
        self.ranks, self.num_own = ranks, num_own
        self._index = torch.cat(list(sent)).to(ranks.device)
        self._sent, self._received = [len(rows) for rows in sent], list(received)
        self.num_sent, self.num_halo = sum(self._sent), sum(self._received)
        found, self._most = ranks.exchange_counts(self._sent)
        wrong = [rank for rank in range(ranks.size) if found[rank] != self._received[rank]]

        def refuse() -> None:
            if wrong:
                raise ValueError(
                    f"rank {wrong[0]} sends {found[wrong[0]]} rows to rank {ranks.rank}, which "
                    f"expects {self._received[wrong[0]]}: the parts are not of one graph and "
                    "one boundary"
                )

        ranks.run_together(refuse)
        #: How often rows were exchanged, and how many bytes of them this rank has sent.
        self.rounds = self.bytes_sent = 0
        self._packed: dict[tuple[Any, ...], Tensor] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no rank needs a row of another one."""
        return self._most == 0

    def start(self, buffer: Tensor) -> Callable[[], None]:
        """Begins to exchange rows of a buffer ``[num_own + num_halo, ...]``, contiguous.

        Returns:
            callable: Waits until its last rows hold those of the other ranks. Until then own rows
            must not change.
        """
        if self.is_empty:
            return lambda: None
        key = (buffer.shape[1:], buffer.dtype, buffer.device)
        if key not in self._packed:
            # One at a time: a run has rows of one kind.
            self._packed = {key: buffer.new_empty(len(self._index), *buffer.shape[1:])}
        packed = self._packed[key]
        torch.index_select(buffer[: self.num_own], 0, self._index, out=packed)
        self.rounds += 1
        self.bytes_sent += packed.numel() * packed.element_size()
        return self.ranks.start_exchange(
            buffer[self.num_own :],
            packed,
            received=self._received,
            sent=self._sent,
            most=self._most,
        )

    def run(self, buffer: Tensor) -> None:
        """Does the same as :meth:`start` and waits."""
        self.start(buffer)()
