"""Processes of one thread for a benchmark: a process group, or such as share nothing."""

import multiprocessing
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from sheafprop.distributed import process_group


class Together(Protocol):
    """Processes that begin something together."""

    rank: int
    size: int

    @property
    def is_first(self) -> bool: ...

    def barrier(self) -> None: ...

    def all_reduce(self, tensor: Tensor, operation: str) -> Tensor: ...


class Plain:
    """Processes that share nothing: what two cores of this machine can do at best."""

    def __init__(self, rank: int, size: int, barrier: Any, slots: Any):
        self.rank, self.size, self._barrier, self._slots = rank, size, barrier, slots

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def barrier(self) -> None:
        self._barrier.wait()

    def all_reduce(self, tensor: Tensor, operation: str) -> Tensor:
        """The largest numbers of all, the one operation that is needed here."""
        assert operation == "max"
        slots = np.frombuffer(self._slots).reshape(self.size, -1)[:, : tensor.numel()]
        slots[self.rank] = tensor.numpy()
        self.barrier()
        found = torch.from_numpy(slots.max(0)).to(tensor.dtype)
        self.barrier()
        return found


def run_ranks(size: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """What ``function(ranks, *arguments)`` returns on rank 0 of new processes of one thread."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return _run(size, _rank, port, function, arguments)


def run_plain(size: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """The same with processes that are no process group."""
    context = multiprocessing.get_context("spawn")
    shared = context.Barrier(size), context.RawArray("d", 8 * size)
    return _run(size, _plain, *shared, function, arguments)


def _run(size: int, target: Callable[..., None], *given: Any) -> Any:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    started = [
        context.Process(target=target, args=(rank, size, there, *given)) for rank in range(size)
    ]
    for process in started:
        process.start()
    there.close()
    try:
        return here.recv()
    except EOFError:
        raise RuntimeError("a process ended without a result") from None
    finally:
        for process in started:
            process.join()


def _rank(
    rank: int, size: int, pipe: Any, port: int, function: Callable[..., Any], arguments: Any
) -> None:
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    os.environ |= {name: str(value) for name, value in numbers.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    with process_group(timeout=3600) as ranks, torch.no_grad():
        found = function(ranks, *arguments)
        if rank == 0:
            pipe.send(found)


def _plain(
    rank: int,
    size: int,
    pipe: Any,
    barrier: Any,
    slots: Any,
    function: Callable[..., Any],
    arguments: Any,
) -> None:
    torch.set_num_threads(1)
    with torch.no_grad():
        found = function(Plain(rank, size, barrier, slots), *arguments)
        if rank == 0:
            pipe.send(found)


class Clock:
    """Wall and processor seconds of a block that all ranks begin together, the largest of them."""

    def __init__(self, ranks: Together):
        self._ranks = ranks

    @contextmanager
    def measure(self, steps: int = 1) -> Iterator[list[float]]:
        """Puts both, for each of some steps, into the list that it yields."""
        found: list[float] = []
        self._ranks.barrier()
        begin, cpu = time.perf_counter(), time.process_time()
        yield found
        spent = torch.tensor([time.perf_counter() - begin, time.process_time() - cpu])
        found += (self._ranks.all_reduce(spent, "max") / steps).tolist()
