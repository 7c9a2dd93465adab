"""Another program on the machine: processes that keep cores busy while something is measured."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

# Ends by itself when its time is over or the program that started it is gone.
_LOOP = """
import os, sys, time
parent, end = os.getppid(), time.monotonic() + float(sys.argv[1])
while time.monotonic() < end and os.getppid() == parent:
    sum(range(10**5))
"""


@contextmanager
def busy_processes(count: int, *, most_seconds: float = 3600.0) -> Iterator[None]:
    """Runs ``count`` processes that each keep a core busy, and ends them in any case.

    Args:
        count (int): How many.
        most_seconds (float): When they end by themselves.

    Raises:
        RuntimeError: If one of them ended before what was inside: the machine was not kept busy.
    """
    with ExitStack() as stack:
        processes = []
        for _ in range(count):
            command = [sys.executable, "-I", "-S", "-c", _LOOP, str(most_seconds)]
            # Left in the opposite order: killed first, then waited for.
            process = stack.enter_context(subprocess.Popen(command))
            stack.callback(process.kill)
            processes.append(process)
        yield
        ended = sum(process.poll() is not None for process in processes)
        if ended:
            raise RuntimeError(
                f"{ended} of {count} busy processes ended before the measurement did, after at "
                f"most {most_seconds:g} s: measure fewer cases at once"
            )
