"""The ranks of a process group and their collectives."""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from sheafprop.distributed.roll_call import RankError, RollCall, describe_error, is_loss, is_timeout

T = TypeVar("T")

#: Bytes that a rank sends at once: gloo fails at messages of some 0.9 GB.
PIECE_BYTES = 2**28

_OPERATIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


class Ranks:
    """This process among those that work together; made by :func:`process_group`.

    Collectives are called by all ranks in the same order. Where one cannot end, since a rank ended
    or stalls, they raise :class:`RankError` with that rank, the likely cause and the remedy.

    Args:
        rank (int): The number of this process.
        size (int): The number of processes.
        device (torch.device): The device that it computes on.
        hosts (sequence of str): The hosts of all ranks.
        timeout (float): Seconds after which a rank that does not answer is given up.
        roll_call (RollCall, optional): Finds a lost rank; None for one process.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        device: torch.device,
        hosts: Sequence[str],
        timeout: float,
        roll_call: RollCall | None,
    ):
        self.rank, self.size, self.device = rank, size, device
        self.hosts, self.timeout = tuple(hosts), timeout
        self._roll_call = roll_call
        #: Whether ranks of one host exchange rows by memory that both map, not by messages.
        self.shares_memory = size > 1 and device.type == "cpu"
        #: Bytes of rows that :meth:`start_exchange` has sent to other ranks so far.
        self.bytes_sent = 0

    @classmethod
    def alone(cls) -> "Ranks":
        """One process that exchanges nothing."""
        return cls(0, 1, torch.device("cpu"), ["this host"], math.inf, None)

    @property
    def host(self) -> str:
        """The host of this rank."""
        return self.hosts[self.rank]

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which prints and writes what all ranks share."""
        return self.rank == 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name(self.rank)}, {self.device})"

    def name(self, rank: int) -> str:
        """A rank with its host, as messages name it."""
        return f"rank {rank} of {self.size} ({self.hosts[rank]})"

    # Collectives ----------------------------------------------------------------------------------

    def all_reduce(self, tensor: Tensor, operation: str = "sum") -> Tensor:
        """Adds up a tensor over all ranks, in place, and returns it.

        Args:
            tensor (Tensor): The tensor, of the same shape on all ranks.
            operation (str): ``"sum"``, or ``"max"`` or ``"min"`` in its place.
        """
        if self.size > 1:
            with self.watch("all_reduce"):
                dist.all_reduce(_as_real(tensor), _OPERATIONS[operation])
        return tensor

    def broadcast(self, tensor: Tensor, source: int = 0) -> Tensor:
        """Overwrites a tensor by that of one rank, and returns it.

        Args:
            tensor (Tensor): The tensor, of the same shape on all ranks.
            source (int): The rank whose tensor all get.
        """
        if self.size > 1:
            with self.watch("broadcast"):
                dist.broadcast(_as_real(tensor), source)
        return tensor

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, in order of the ranks, on each of them.

        Args:
            value: A small value that can be pickled.
        """
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        with self.watch("gather"):
            dist.all_gather_object(found, value)
        return found

    def barrier(self) -> None:
        """Waits until all ranks are here."""
        self.all_reduce(torch.zeros(1, device=self.device))

    def exchange_counts(self, sent: Sequence[int]) -> tuple[list[int], int]:
        """The rows that each rank will send to this one.

        Args:
            sent (sequence of int): The rows that this rank will send to each rank.

        Returns:
            tuple: The counts by rank, and the largest count between any two ranks: arguments
            ``received`` and ``most`` of :meth:`start_exchange`.
        """
        matrix = torch.zeros(self.size, self.size, dtype=torch.long, device=self.device)
        matrix[self.rank] = torch.tensor(list(sent), dtype=torch.long)
        matrix = self.all_reduce(matrix).cpu()
        return matrix[:, self.rank].tolist(), int(matrix.max())

    def start_exchange(
        self,
        output: Tensor,
        rows: Tensor,
        *,
        received: Sequence[int],
        sent: Sequence[int],
        most: int,
        piece_bytes: int = PIECE_BYTES,
    ) -> Callable[[], None]:
        """Sends rows to all ranks and receives theirs, while this process goes on computing.

        Args:
            output (Tensor): Where rows are received, contiguous, ordered by rank.
            rows (Tensor): The rows to send, contiguous, ordered by rank; unchanged until the end.
            received (sequence of int): Rows from each rank; their sum is the length of ``output``.
            sent (sequence of int): Rows to each rank; their sum is the length of ``rows``.
            most (int): The largest count between any two ranks, which all ranks must agree on.
            piece_bytes (int): Bytes that a rank sends at once.

        Returns:
            callable: Waits for the end.
        """
        row_bytes = rows.element_size() * math.prod(rows.shape[1:])
        self.bytes_sent += (len(rows) - sent[self.rank]) * row_bytes
        if self.size == 1:
            output.copy_(rows)
            return lambda: None
        # The same on all ranks, so that those without rows take part in every piece as well.
        step = max(1, piece_bytes // max(1, row_bytes * self.size))
        if most > step:
            return lambda: self._exchange_pieces(output, rows, received, sent, most, step)
        return self.start_all_to_all(output, rows, received, sent)

    def start_all_to_all(
        self, output: Tensor, rows: Tensor, received: Sequence[int], sent: Sequence[int]
    ) -> Callable[[], None]:
        """Starts an exchange in one piece, whose bytes are not counted.

        Args:
            output (Tensor): Receives the rows of the other ranks.
            rows (Tensor): The rows to send.
            received, sent (sequence of int): Number of rows from and to each rank.

        Returns:
            A function that waits for the end of the exchange.
        """
        with self.watch("all_to_all"):
            work = dist.all_to_all_single(
                _as_real(output), _as_real(rows), list(received), list(sent), async_op=True
            )

        def wait() -> None:
            with self.watch("all_to_all"):
                work.wait()

        return wait

    def exchange(self, output: Tensor, rows: Tensor, **counts: Any) -> Tensor:
        """Does the same as :meth:`start_exchange` and waits; returns ``output``."""
        self.start_exchange(output, rows, **counts)()
        return output

    def _exchange_pieces(
        self,
        output: Tensor,
        rows: Tensor,
        received: Sequence[int],
        sent: Sequence[int],
        most: int,
        step: int,
    ) -> None:
        into, parts = output.split(list(received)), rows.split(list(sent))
        for first in range(0, most, step):
            piece = torch.cat([part[first : first + step] for part in parts])
            places = [part[first : first + step] for part in into]
            counts = [len(place) for place in places]
            got = output.new_empty(sum(counts), *output.shape[1:])
            with self.watch("all_to_all"):
                dist.all_to_all_single(
                    _as_real(got),
                    _as_real(piece),
                    counts,
                    [len(part[first : first + step]) for part in parts],
                )
            for place, values in zip(places, got.split(counts), strict=True):
                place.copy_(values)

    # Agreement ------------------------------------------------------------------------------------

    def run_together(self, function: Callable[[], T]) -> T:
        """Calls a function without collectives on every rank; if one refuses, all do.

        Raises:
            Exception: What the function raises here.
            RankError: If it raised on another rank, with that rank and its message.
        """
        if self.size == 1:
            return function()
        error: Exception | None = None
        try:
            result = function()
        except Exception as found:
            error = found
        messages = self.gather(None if error is None else describe_error(error))
        if not any(messages):
            return result
        first = next(rank for rank, message in enumerate(messages) if message)
        if error is not None and self.rank == first:
            raise error
        # All ranks read the same files as a rule: one of them says what is wrong with these.
        silent = error is None or messages[self.rank] == messages[first]
        raise RankError(f"{self.name(first)} refused: {messages[first]}", silent=silent) from error

    def compare(self, what: str, *values: Any) -> None:
        """Refuses inputs that differ between ranks, by a hash.

        Args:
            what (str): What they are, for the message: ``"the facts"``.
            *values: Tensors, or values whose ``repr`` tells them apart.

        Raises:
            RankError: On all ranks, if the values of a rank are not those of rank 0.
        """
        if self.size == 1:
            return
        digest = hashlib.sha256()
        for value in values:
            if isinstance(value, Tensor):
                plain = value.detach().cpu().contiguous()
                digest.update(repr((plain.shape, plain.dtype)).encode())
                digest.update(plain.flatten().view(torch.uint8).numpy().data)
            else:
                digest.update(repr(value).encode())
        slots = torch.zeros(self.size, dtype=torch.long, device=self.device)
        slots[self.rank] = int.from_bytes(digest.digest()[:8], "big", signed=True)
        slots = self.all_reduce(slots).cpu()
        others = (slots != slots[0]).nonzero().flatten().tolist()
        if others:
            raise RankError(
                f"{what} of {self.name(others[0])} are not those of {self.name(0)}: give all ranks "
                "the same files, options and versions",
                silent=not self.is_first,
            )

    # Failure --------------------------------------------------------------------------------------

    @contextmanager
    def watch(self, what: str) -> Iterator[None]:
        """Names the lost rank where what runs inside, such as a collective, cannot end.

        Raises:
            RankError: In place of torch's error.
        """
        try:
            yield
        except RuntimeError as error:
            if self._roll_call is None or isinstance(error, RankError) or not is_loss(error):
                raise
            waited = self.timeout if is_timeout(error) else None
            loss = self._roll_call.describe_loss(f"{self.name(self.rank)} was in {what}", waited)
            raise RankError(loss) from error


def _as_real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
