"""Progress on standard error: a bar on a terminal, a line now and then in a file."""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from tqdm import tqdm

#: Seconds between two lines.
INTERVAL = 30.0


class ProgressLines:
    """Counts as a bar of tqdm does, and writes a line to standard error every so many seconds.

    What ends within the first interval writes none.

    Args:
        total (int): The count at the end.
        desc (str): What is counted, at the front of each line.
        unit (str): The name of one.
        initial (int): The count at the beginning.
        interval (float, optional): Seconds between two lines. (default: :data:`INTERVAL`)
    """

    def __init__(
        self,
        total: int,
        *,
        desc: str,
        unit: str = "it",
        initial: int = 0,
        interval: float | None = None,
    ):
        self.total, self.desc, self.unit, self.n = total, desc, unit, initial
        self.interval = INTERVAL if interval is None else interval
        self._initial, self._postfix = initial, ""
        self._begin = self._last = time.monotonic()

    def update(self, count: int = 1) -> None:
        """Adds to the count."""
        self.n += count
        now = time.monotonic()
        if now - self._last < self.interval:
            return
        self._last = now
        seconds, done = now - self._begin, self.n - self._initial
        line = f"{self.desc}: {self.n:,} of {self.total:,} ({self.unit}), {seconds:.0f} s"
        if done > 0 and self.n < self.total:
            line += f", about {seconds * (self.total - self.n) / done:.0f} s left"
        print(line + self._postfix, file=sys.stderr, flush=True)

    def set_postfix_str(self, text: str) -> None:
        """Sets what stands at the end of the lines."""
        self._postfix = f", {text}" if text else ""

    def close(self) -> None:
        """Nothing is left to close; as of a bar."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def progress_bar(
    total: int, *, desc: str, shown: bool = True, unit: str = "it", initial: int = 0
) -> "tqdm[Any] | ProgressLines":
    """A bar on standard error if that is a terminal (or in a notebook), else lines.

    Args:
        total (int): The count at the end.
        desc (str): What is counted.
        shown (bool): Whether to show anything.
        unit (str): The name of one.
        initial (int): The count at the beginning.
    """
    if shown and not sys.stderr.isatty() and "ipykernel" not in sys.modules:
        return ProgressLines(total, desc=desc, unit=unit, initial=initial)
    from tqdm.auto import tqdm

    return tqdm(
        total=total, desc=desc, unit=unit, initial=initial, disable=not shown, leave=False, delay=1
    )
