"""Over how many threads work is shared, and how.

Where another program keeps a core busy, a thread may rest for some milliseconds at any moment. A
parallel operation of torch or MKL ends when the last of its threads does, and every one of them has
a fixed share: many small operations then take a hundred times as long. Hence the rules of this
module: a thread for each half a million multiplications at most, pieces that threads take one after
another, and no waiting for a thread that has not begun when all pieces are taken. Small operations
of torch run on one thread.
"""

import functools
import itertools
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Fewer multiplications than this are done before a second thread has started.
_SERIAL_WORK = 2**19
# Torch's operations on fewer numbers than this, a few milliseconds, gain less from a second thread
# than they lose where it has to wait for its turn.
_SERIAL_NUMBERS = 2**22
# Shares of a sum over many items, and numbers in the sums of all shares together (512 MiB of
# float32).
_SHARES = 16
_SHARED_NUMBERS = 2**27
# Pieces of rows for each thread: enough to even out what hubs and other processes take.
_PIECES = 8

#: Threads that may share work, where torch's own operations have been limited to one.
_AVAILABLE: ContextVar[int | None] = ContextVar("sheafprop_threads", default=None)


def num_threads(work: int | None = None) -> int:
    """The threads that should share some work: as many as torch may use, capped by the work.

    Args:
        work (int, optional): About how many multiplications there are to do. (default: many)
    """
    available = _AVAILABLE.get()
    available = torch.get_num_threads() if available is None else available
    return available if work is None else max(1, min(available, -(-work // _SERIAL_WORK)))


@contextmanager
def small_operations(numbers: int) -> Iterator[None]:
    """Runs torch's own operations inside on one thread if each works on few numbers.

    :func:`run_rows` and :func:`run_chunks` share their work between as many threads as before.

    Args:
        numbers (int): About how many numbers the larger of the operations read or write.
    """
    threads = torch.get_num_threads()
    if threads == 1 or numbers >= _SERIAL_NUMBERS:
        yield
        return
    with _one_torch_thread(num_threads()):
        yield


def run_rows(
    loop: Callable[..., None],
    arguments: tuple,
    start: np.ndarray,
    width: int,
    rows: tuple[int, int] | None = None,
) -> None:
    """Calls ``loop(*arguments, lo, hi)`` for pieces of the rows, on several threads for much work.

    Args:
        loop: A function that releases the GIL.
        start: First entry of each row, and the number of entries; the pieces share entries evenly.
        width: Multiplications for each entry.
        rows: First of the rows and the one behind their last. (default: all)
    """
    first, last = (0, start.size - 1) if rows is None else rows
    start = start[first : last + 1]
    num_rows, num_entries = start.size - 1, int(start[-1] - start[0])
    threads = num_threads((num_entries + num_rows) * width)
    if threads == 1:
        loop(*arguments, first, last)
        return
    # A row costs its entries and one pass of its own.
    cost = start + np.arange(num_rows + 1)
    bounds = np.searchsorted(cost, np.linspace(cost[0], cost[-1], _PIECES * threads + 1))
    bounds[0], bounds[-1] = 0, num_rows
    ends = (first + bounds).tolist()
    pool = _pool(os.getpid(), num_threads())
    _share(pool, threads, lambda i: loop(*arguments, ends[i], ends[i + 1]), len(ends) - 1)


def run_chunks(work: Callable[[Any], None], chunks: Sequence[Any], cost: int | None = None) -> None:
    """Calls ``work`` on every chunk, each on one thread; without gradients or autocast.

    Libraries that share a small matrix between threads wait for each other most of the time.

    Args:
        work: Torch operations that fill tensors made before.
        chunks: What to call it with; more chunks than threads even out what each takes.
        cost: About how many multiplications all chunks need together; 0 on other devices than the
            CPU, whose streams belong to a thread. (default: many)
    """
    threads = min(num_threads(cost), len(chunks))
    mode: Callable[[], AbstractContextManager] = (
        torch.inference_mode if torch.is_inference_mode_enabled() else torch.no_grad
    )

    def alone(i: int) -> None:
        with mode(), torch.autocast("cpu", enabled=False):
            work(chunks[i])

    if threads > 1:
        pool = _pool(os.getpid(), num_threads())
        with _one_torch_thread(1):
            _share(pool, threads, alone, len(chunks))
        return
    for i in range(len(chunks)):
        alone(i)


def run_shares(
    work: Callable[..., None], size: int, totals: Sequence[Tensor], cost: int | None = None
) -> None:
    """Calls ``work(first, last, *sums)`` on consecutive shares of ``size`` items, each on one
    thread, and adds up what each adds to its own ``sums``.

    How many shares there are, and in which order their sums are added, depends on sizes alone: two
    threads or more give the same result. On one thread, on other devices than the CPU and where the
    sums are large there is one share, whose operations torch shares between threads.

    Args:
        work: Torch operations that add to ``sums``, and write what belongs to an item elsewhere.
        size: The number of items.
        totals: What the sums, which are of the same shapes, are added to.
        cost: About how many multiplications all items need together. (default: many)
    """
    numbers = sum(total.numel() for total in totals)
    count = min(_SHARES, size, _SHARED_NUMBERS // max(1, numbers))
    if count < 2 or num_threads(cost) == 1 or totals[0].device.type != "cpu":
        work(0, size, *totals)
        return
    sums: list[Sequence[Tensor]] = [totals] * count

    def add(share: int) -> None:
        if share:
            sums[share] = [torch.zeros_like(total) for total in totals]
        work(share * size // count, (share + 1) * size // count, *sums[share])

    run_chunks(add, range(count), cost)
    for share in sums[1:]:
        for total, part in zip(totals, share, strict=True):
            total += part


class SpareMemory:
    """Tensors that one chunk leaves to the next: fresh memory takes long to get, on every thread.

    Args:
        numel (int): The size of each.
        like (Tensor): Their type and device.
    """

    def __init__(self, numel: int, like: Tensor):
        self._numel, self._like = numel, like
        self._free: list[Tensor] = []

    @contextmanager
    def take(self, *shape: int) -> Iterator[Tensor]:
        """A tensor of a shape, for the time of a chunk."""
        try:
            flat = self._free.pop()
        except IndexError:
            flat = self._like.new_empty(self._numel)
        yield flat[: math.prod(shape)].view(shape)
        self._free.append(flat)


def _share(pool: ThreadPoolExecutor, threads: int, work: Callable[[int], None], count: int) -> None:
    """Calls ``work`` with the numbers below ``count``; every thread takes the next that is left."""
    numbers = itertools.count()

    def take() -> None:
        while (i := next(numbers)) < count:
            work(i)

    helpers = [pool.submit(take) for _ in range(threads - 1)]
    try:
        take()
    finally:
        for helper in helpers:
            # All pieces are taken: a thread that has not begun yet would find nothing to do.
            if not helper.cancel():
                helper.result()


@contextmanager
def _one_torch_thread(available: int) -> Iterator[None]:
    before = torch.get_num_threads()
    token = _AVAILABLE.set(available)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _AVAILABLE.reset(token)


@functools.lru_cache(maxsize=2)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    # Threads do not survive a fork, hence one pool for each process.
    pool = ThreadPoolExecutor(threads - 1, thread_name_prefix="sheafprop")
    ready = threading.Barrier(threads)

    def begin() -> None:
        # The setting belongs to the thread, once it has been read there.
        torch.get_num_threads()
        torch.set_num_threads(1)
        ready.wait()

    before = torch.get_num_threads()
    try:
        for _ in range(threads - 1):
            pool.submit(begin)
    except RuntimeError:
        # The system has no more threads: those that wait here must end.
        ready.abort()
        raise
    ready.wait()
    # New threads start with what was set last.
    torch.set_num_threads(before)
    return pool
