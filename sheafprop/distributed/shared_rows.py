"""Rows that ranks of one host hand each other through memory that both have mapped."""

import logging
import mmap
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sheafprop.distributed.ranks import Ranks

_LOGGER = logging.getLogger("sheafprop")
#: Bytes that a rank hands over at once.
PIECE_BYTES = 2**25
# Rows of one piece are written into one area while others still read those of the last piece in
# the other one: before a rank writes into an area again, the answers to the piece between have
# told it that these are read.
_AREAS = 2


@dataclass(frozen=True)
class _Offer:
    """Memory of a rank: where others find it, and the rows that it has for each of them."""

    process: int
    file: int
    name: str
    rows: list[int]
    refusal: str = ""


class SharedRows:
    """Hands rows to ranks of this host by memory that they have mapped.

    Sockets copy rows through the kernel, which takes a core several times as long. The memory has
    no name in a file system: nothing can be left behind, and no other user can open it. Ranks tell
    each other by a message of a byte that rows are there, so that a lost rank is found as in any
    other collective. Ranks that cannot map each other's memory are left out, which the first rank
    reports.

    Args:
        ranks (Ranks): The processes, all of which make this together.
        sent (sequence of Tensor): For each rank, which own rows it needs, int64.
        received (sequence of int): How many rows come from each rank.
        most (int): The largest count between any two ranks, the same on all of them.
        like (Tensor): A tensor of such rows, ``[n, ...]``.
        piece_bytes (int): Bytes that a rank hands over at once.
    """

    def __init__(
        self,
        ranks: Ranks,
        sent: Sequence[Tensor],
        received: Sequence[int],
        most: int,
        like: Tensor,
        piece_bytes: int = PIECE_BYTES,
    ):
        self._ranks, self._shape, self._dtype = ranks, like.shape[1:], like.dtype
        self._row_bytes = like.element_size() * self._shape.numel()
        self._step = max(1, piece_bytes // max(1, self._row_bytes * (ranks.size - 1)))
        near = [host == ranks.host and rank != ranks.rank for rank, host in enumerate(ranks.hosts)]
        rows = [min(len(s), self._step) * int(n) for s, n in zip(sent, near, strict=True)]
        memories, self._offers = self._map(near, rows)
        found = ranks.gather([memory is not None for memory in memories])
        #: The ranks that get rows this way, and those that rows come from.
        self.targets = [
            rank for rank in range(ranks.size) if len(sent[rank]) and found[rank][ranks.rank]
        ]
        self.sources = [
            rank for rank in range(ranks.size) if received[rank] and memories[rank] is not None
        ]
        self._sent, self._received = list(sent), list(received)
        self._memories: list[Any] = memories
        linked = {*self.targets, *self.sources}
        self._links = [int(rank in linked) for rank in range(ranks.size)]
        self._notes = torch.zeros(2, sum(self._links), dtype=torch.uint8)
        self._most, self._pieces = most, 0

    def _map(
        self, near: list[bool], rows: list[int]
    ) -> tuple[list[np.ndarray | None], list[_Offer]]:
        """Memories by rank, None where there is none, and what their ranks said of them."""
        ranks, size = self._ranks, _AREAS * sum(rows) * self._row_bytes
        file, refusal, name = -1, "", f"sheafprop-{secrets.token_hex(16)}"
        memories: list[np.ndarray | None] = [None] * ranks.size
        try:
            if any(rows):
                file = os.memfd_create(name)
                # Reserved here: memory that is missing later would end the process.
                os.posix_fallocate(file, 0, size)
                memories[ranks.rank] = np.frombuffer(mmap.mmap(file, size), np.uint8)
        except (OSError, AttributeError) as error:
            refusal = f"{type(error).__name__}: {error}"
        try:
            offers = ranks.gather(_Offer(os.getpid(), file, name, rows, refusal))
            for rank, offer in enumerate(offers):
                if near[rank] and any(offer.rows) and not offer.refusal:
                    try:
                        memories[rank] = _map_other(offer, self._row_bytes)
                    except OSError as error:
                        refusal = f"that of {ranks.name(rank)}: {error}"
            # Files are closed once all have mapped them.
            refusals = [text for text in ranks.gather(refusal) if text]
        finally:
            if file >= 0:
                os.close(file)
        if refusals:
            # Said once: rows of other kinds are sent at once.
            ranks.shares_memory = False
        if refusals and ranks.is_first:
            _LOGGER.warning(
                "ranks of one host exchange rows by its network interface, which takes longer, "
                "since memory cannot be shared: %s",
                refusals[0],
            )
        return memories, offers

    def start(self, own: Tensor, halo: Tensor) -> Callable[[], None]:
        """Hands over own rows, and returns what brings those of others into places of the halo."""
        begun = self._hand_over(own, 0)

        def receive() -> None:
            into = halo.flatten().view(torch.uint8).numpy()
            for first in range(0, self._most, self._step):
                wait = self._hand_over(own, first) if first else begun
                wait()
                self._take(into, first)
                self._pieces += 1

        return receive

    def _area(self, offer: _Offer) -> int:
        """The first byte of the area of this piece."""
        return self._pieces % _AREAS * sum(offer.rows) * self._row_bytes

    def _hand_over(self, own: Tensor, first: int) -> Callable[[], None]:
        mine = self._offers[self._ranks.rank]
        for rank in self.targets:
            index = self._sent[rank][first : first + self._step]
            if len(index):
                place = self._area(mine) + sum(mine.rows[:rank]) * self._row_bytes
                target = torch.frombuffer(
                    self._memories[self._ranks.rank],
                    dtype=self._dtype,
                    count=len(index) * self._shape.numel(),
                    offset=place,
                )
                torch.index_select(own, 0, index, out=target.view(len(index), *self._shape))
        note, answer = self._notes
        return self._ranks.start_all_to_all(answer, note, self._links, self._links)

    def _take(self, halo: np.ndarray, first: int) -> None:
        size, me = self._row_bytes, self._ranks.rank
        for rank in self.sources:
            count = min(self._step, self._received[rank] - first)
            if count > 0:
                offer, memory = self._offers[rank], self._memories[rank]
                begin = self._area(offer) + sum(offer.rows[:me]) * size
                into = (sum(self._received[:rank]) + first) * size
                halo[into : into + count * size] = memory[begin : begin + count * size]


def _map_other(offer: _Offer, row_bytes: int) -> np.ndarray:
    path = f"/proc/{offer.process}/fd/{offer.file}"
    # Processes of another container may have the same numbers.
    if offer.name not in os.readlink(path):
        raise OSError(f"{path} is another file")
    file = os.open(path, os.O_RDONLY)
    try:
        size = _AREAS * sum(offer.rows) * row_bytes
        return np.frombuffer(mmap.mmap(file, size, access=mmap.ACCESS_READ), np.uint8)
    finally:
        os.close(file)
