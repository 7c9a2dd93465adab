from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sheafprop.distributed import shared_rows
from sheafprop.distributed.ranks import PIECE_BYTES, Ranks
from sheafprop.distributed.shared_rows import SharedRows

Wait = Callable[[], None]


class HaloExchange:
    """Brings rows of vertices that other ranks own behind those that this rank owns.

    A rank sends a row once to each rank that needs it, however many triples lead there: by memory
    that both map where they are on one host, else by messages. Both are cut into pieces.

    Args:
        ranks (Ranks): The processes.
        sent (sequence of Tensor): For each rank, which own rows it needs, int64, in the order of
            that rank's halo.
        received (sequence of int): How many rows come from each rank.
        num_own (int): The number of own rows; the halo begins behind them.
        piece_bytes (int): Bytes that a rank sends at once.

    Raises:
        ValueError: On all ranks, if one expects other rows than are sent to it.
    """

    def __init__(
        self,
        ranks: Ranks,
        sent: Sequence[Tensor],
        received: Sequence[int],
        num_own: int,
        piece_bytes: int = PIECE_BYTES,
    ):
        self.ranks, self.num_own, self.piece_bytes = ranks, num_own, piece_bytes
        self._index = [rows.to(ranks.device) for rows in sent]
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
        self._routes: dict[tuple[Any, ...], list[SharedRows | _Messages]] = {}

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
        if key not in self._routes:
            # One at a time: a run has rows of one kind.
            self._routes.clear()
            self._routes[key] = self._open(buffer)
        own, halo = buffer[: self.num_own], buffer[self.num_own :]
        waits = [route.start(own, halo) for route in self._routes[key]]
        self.rounds += 1
        self.bytes_sent += self.num_sent * buffer.element_size() * buffer.shape[1:].numel()

        def wait() -> None:
            for of_route in waits:
                of_route()

        return wait

    def _open(self, like: Tensor) -> list["SharedRows | _Messages"]:
        """The ways that rows take, which all ranks open together."""
        ranks, piece = self.ranks, self.piece_bytes
        routes: list[SharedRows | _Messages] = []
        sent, received = list(self._index), list(self._received)
        if ranks.shares_memory:
            shared_piece = min(piece, shared_rows.PIECE_BYTES)
            shared = SharedRows(ranks, sent, received, self._most, like, shared_piece)
            routes.append(shared)
            for rank in shared.targets:
                sent[rank] = sent[rank][:0]
            for rank in shared.sources:
                received[rank] = 0
        _, most = ranks.exchange_counts([len(rows) for rows in sent])
        if most:
            routes.append(_Messages(ranks, sent, received, self._received, most, like, piece))
        return routes

    def run(self, buffer: Tensor) -> None:
        """Does the same as :meth:`start` and waits."""
        self.start(buffer)()


class _Messages:
    """Rows that are sent by the process group.

    Args:
        ranks (Ranks): The processes.
        sent (sequence of Tensor): For each rank, which own rows are sent to it.
        received (sequence of int): How many rows come from each rank this way.
        halo (sequence of int): How many rows come from each rank in all.
        most (int): The largest count between any two ranks.
        like (Tensor): A tensor of such rows, ``[n, ...]``.
        piece_bytes (int): Bytes that a rank sends at once.
    """

    def __init__(
        self,
        ranks: Ranks,
        sent: Sequence[Tensor],
        received: Sequence[int],
        halo: Sequence[int],
        most: int,
        like: Tensor,
        piece_bytes: int,
    ):
        self._ranks, self._index, self._halo = ranks, torch.cat(list(sent)), list(halo)
        self._packed = like.new_empty(len(self._index), *like.shape[1:])
        # Received in place where no rows come another way.
        self._spare = (
            None if list(received) == self._halo else like.new_empty(sum(received), *like.shape[1:])
        )
        self._counts: dict[str, Any] = {
            "received": list(received),
            "sent": [len(rows) for rows in sent],
            "most": most,
            "piece_bytes": piece_bytes,
        }

    def start(self, own: Tensor, halo: Tensor) -> Wait:
        torch.index_select(own, 0, self._index, out=self._packed)
        spare = self._spare
        wait = self._ranks.start_exchange(
            halo if spare is None else spare, self._packed, **self._counts
        )
        if spare is None:
            return wait

        def place() -> None:
            wait()
            counts = self._counts["received"]
            for rows, into, count in zip(
                spare.split(counts), halo.split(self._halo), counts, strict=True
            ):
                if count:
                    into.copy_(rows)

        return place
