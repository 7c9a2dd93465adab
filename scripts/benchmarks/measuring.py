"""Times and memory of functions that take turns, and several runs of a case as one record."""

import argparse
import contextlib
import ctypes
import gc
import multiprocessing
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.command_line import integer
from sheafprop.hardware import describe_hardware

# Seconds that a turn of a short function lasts at least, about.
_TURN = 0.005


def interleave(
    functions: dict[str, Callable[[], Any]],
    rounds: int = 6,
    *,
    slow: tuple[str, ...] = (),
    device: str = "cpu",
    warm: bool = False,
    clock: Callable[[], float] | None = None,
) -> dict[str, float]:
    """Median time of each function in seconds, called in turn in one process.

    Every function is called once before, and short ones several times at a turn; those named in
    ``slow`` have two turns only. With ``warm``, nothing is called before, nor several times.
    ``clock`` is that of :func:`clock_of`.
    """
    clock = clock or time.perf_counter
    found: dict[str, list[float]] = {name: [] for name in functions}
    calls: dict[str, int] = {}
    for i in range(int(warm), rounds + 1):
        for name, function in functions.items():
            if name in slow and i > 2:
                continue
            synchronize(device)
            start = clock()
            for _ in range(calls.get(name, 1)):
                function()
            synchronize(device)
            seconds = (clock() - start) / calls.get(name, 1)
            if i == 0:
                calls[name] = max(1, min(100, int(_TURN / seconds)))
            else:
                found[name].append(seconds)
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def summarize(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Several runs of one case as one record: medians, and the range of what differs.

    Args:
        found: What each run measured, under the same keys.

    Returns:
        The first run's record with the median of every number that differs between the runs,
        ``"runs"``, their number, and ``"ranges"``, the least and the largest value by key.

    Raises:
        ValueError: If the runs differ in something that is not measured, such as their threads.
    """
    record, ranges = dict(found[0]), {}
    for key, value in found[0].items():
        values = [run[key] for run in found]
        if all(other == value for other in values):
            continue
        if key == "threads" or not all(type(other) in (int, float) for other in values):
            raise ValueError(f"runs of one case must have the same {key!r} (got {values})")
        # One that was measured: bytes stay whole.
        whole = type(value) is int
        record[key] = statistics.median_low(values) if whole else float(statistics.median(values))
        ranges[key] = [min(values), max(values)]
    return record | {"runs": len(found), "ranges": ranges}


def add_runs(parser: argparse.ArgumentParser) -> None:
    """Adds the option of every benchmark that says how often its cases are measured."""
    parser.add_argument(
        "--runs",
        type=integer(1),
        default=5,
        help="runs of everything, one after the other; their median and range are stored (5)",
    )


def current_commit() -> str | None:
    """The short hash of the commit that is checked out, or None outside a repository."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.check_output(
            command, cwd=Path(__file__).parent, text=True, stderr=subprocess.DEVNULL
        ).strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def measured_here() -> dict[str, Any]:
    """Where and with what a benchmark is measured: hardware, torch and commit."""
    hardware, version = describe_hardware(), torch.__version__
    return {"hardware": hardware, "torch": version, "commit": current_commit()}


def time_call(
    function: Callable[[], Any], device: str = "cpu", clock: Callable[[], float] | None = None
) -> tuple[Any, float]:
    """The result of one call and its time in seconds, by the clock of :func:`clock_of`."""
    clock = clock or time.perf_counter
    synchronize(device)
    start = clock()
    result = function()
    synchronize(device)
    return result, clock() - start


def clock_of(cpu_time: bool) -> Callable[[], float]:
    """Wall time, or the time of the processor, which other programs on the machine do not change.

    Raises:
        SystemExit: If more than one thread takes time of the processor.
    """
    if cpu_time and torch.get_num_threads() > 1:
        raise SystemExit("--cpu-time needs one thread: set OMP_NUM_THREADS=1")
    return time.process_time if cpu_time else time.perf_counter


def with_peak(function: Callable[[], Any], device: str = "cpu") -> tuple[Any, int | None]:
    """The result of one call and the memory it needed beyond what was held before.

    On CPU only where Linux lets a process reset its high-water mark; None elsewhere.
    """
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = function()
        torch.cuda.synchronize()
        return result, torch.cuda.max_memory_allocated() - before
    try:
        _release_memory()
        Path("/proc/self/clear_refs").write_text("5")
        held = _status("VmRSS")
    except OSError:
        return function(), None
    result = function()
    return result, max(0, _status("VmHWM") - held)


@contextlib.contextmanager
def anonymous_peak(interval: float = 0.02) -> Iterator[Callable[[], int]]:
    """Watches the anonymous memory of this process: what is mapped from files is left out.

    Yields a function for the most bytes so far, as another thread has seen them.

    Raises:
        OSError: Where there is no ``/proc``.
    """
    most, done = [0], threading.Event()

    def look() -> int:
        most[0] = max(most[0], _status("RssAnon"))
        return most[0]

    def watch() -> None:
        while not done.wait(interval):
            look()

    look()
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield look
    finally:
        done.set()
        thread.join()


def in_own_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of a module returns in a new process, where nothing was freed before."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_with_threads, (torch.get_num_threads(), function, arguments))


def _with_threads(threads: int, function: Callable[..., Any], arguments: tuple) -> Any:
    torch.set_num_threads(threads)
    return function(*arguments)


def synchronize(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def copy_bandwidth(device: str = "cpu", num_bytes: int = 2**28) -> tuple[Callable[[], Any], int]:
    """A copy between two buffers, and the bytes it reads and writes."""
    source = torch.zeros(num_bytes // 4, device=device)
    target = torch.ones_like(source)
    return lambda: target.copy_(source), 2 * num_bytes


def matrix_product(device: str = "cpu", size: int = 2048) -> tuple[Callable[[], Any], int]:
    """A product of two square matrices, and its floating point operations."""
    a = torch.randn(size, size, device=device)
    out = torch.empty_like(a)
    return lambda: torch.mm(a, a, out=out), 2 * size**3


def memory_held() -> int:
    """Memory of this process, now."""
    _release_memory()
    return _status("VmRSS")


def most_memory_held() -> int:
    """Most memory of this process so far, or since the last :func:`with_peak`."""
    return _status("VmHWM")


def _release_memory() -> None:
    # What the allocator keeps for later would hide how much a function needs.
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return 1024 * int(line.split()[1])
    raise OSError(f"no {key} in /proc/self/status")
