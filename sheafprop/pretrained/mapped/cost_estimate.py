"""What a propagation from files will take: memory, disk and time, before anything large starts."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

from sheafprop.errors import DataError
from sheafprop.pretrained.mapped.column_table import Block, split_columns

#: Measured constants, as ``scripts/bench_scale_propagation.py --only costs`` prints them: seconds a
#: triple to read and to bring into rows, seconds a number to draw and to copy, and nanoseconds an
#: entry ``(a, b)`` of ``a + b w`` for ``w`` real columns at 300 thousand and at 3 million entities.
READ, BUILD, DRAW, COPY = 4.0e-7, 2.0e-7, 3.0e-8, 3.0e-9
ENTRY = {
    "identity": ((2.9, 0.43), (9.1, 0.54)),
    "real": ((6.0, 0.55), (14.0, 0.65)),
    "complex": ((11.0, 0.57), (30.0, 0.60)),
}
_SIZES = (3e5, 3e6)
# What a further thread adds to the speed of a step.
_THREAD = 0.75
# Bytes that pieces of rows, of facts and of text take at a time, and for each entity beside its
# vectors: numbers, masks, and the block diagonal of maps that keep lengths.
_PIECES = 96 * 2**20
_ENTITY = 40


@dataclass(frozen=True)
class Problem:
    """The sizes that the costs of a propagation depend on.

    Args:
        facts, num_free, num_known (int): Facts, new entities, and known ones that they meet.
        num_sections, width (int): Sections, and columns of a vector.
        itemsize (int): Bytes of a number.
        kind (str): ``"identity"``, ``"real"`` or ``"complex"`` maps.
        iterations (int): Steps.
        entry_bytes (int): Bytes of an entry of the operator on the disk.
        has_constant, keeps_start, leaps, has_diagonal (bool): Whether there are translations or
            known entities, a teleport, so many steps that an expansion replaces them, and block
            diagonals of their own for every column.
        unit (int): Neighbouring columns that belong together.
    """

    facts: int
    num_free: int
    num_known: int
    num_sections: int
    width: int
    itemsize: int
    kind: str
    iterations: int
    entry_bytes: int
    has_constant: bool
    keeps_start: bool = False
    leaps: bool = False
    has_diagonal: bool = False
    unit: int = 1

    def block_memory(self, columns: int) -> int:
        """Bytes that a block of so many columns takes."""
        column = self.itemsize * columns
        buffers = 2 + self.has_constant + 2 * self.keeps_start + 4 * self.leaps
        buffers += 2 * self.has_diagonal
        running = buffers * self.num_free * column
        # Start, translations, and what known entities send, beside these.
        before = ((2 + self.has_constant) * self.num_free + self.num_known) * column
        return max(running, before) + _ENTITY * (self.num_free + self.num_known)

    def step_seconds(self, blocks: list[Block], threads: int) -> float:
        """Seconds of one step of all blocks."""
        share = math.log(max(self.num_free, 1) / _SIZES[0]) / math.log(_SIZES[1] / _SIZES[0])
        share = min(max(share, 0.0), 1.5)
        small, large = ENTRY[self.kind]
        a, b = (s + share * (t - s) for s, t in zip(small, large, strict=True))
        pair = 2 if self.kind == "complex" else 1
        widths = (math.prod(block.shape) * pair for block in blocks)
        nanoseconds = 2 * self.facts * sum(a + b * w for w in widths)
        return nanoseconds * 1e-9 / (1 + _THREAD * (threads - 1))


@dataclass(frozen=True)
class CostEstimate:
    """What a propagation will take.

    Args:
        problem (Problem): The sizes.
        blocks (list of Block): How the columns are split.
        memory (int): Peak of anonymous memory in bytes, of the whole process.
        disk (int): Bytes on the disk at the most, results included.
        seconds (float): Time of everything but reading the facts.
    """

    problem: Problem
    blocks: list[Block]
    memory: int
    disk: int
    seconds: float

    @classmethod
    def of(cls, problem: Problem, memory: int, threads: int, ranks: int = 1) -> "CostEstimate":
        """The estimate with the widest blocks that fit into some memory, one for each rank at
        least.

        Raises:
            DataError: If not even one column does.
        """
        base = held_memory() + _PIECES
        every = problem.num_sections * problem.width
        most = max(problem.unit, -(-every // ranks))
        while most > problem.unit and base + problem.block_memory(most) > memory:
            most = max(problem.unit, most - max(1, most // 16))
        blocks = split_columns(problem.num_sections, problem.width, most, problem.unit)
        widest = max(math.prod(block.shape) for block in blocks)
        peak = base + problem.block_memory(widest)
        if peak > memory:
            raise DataError(
                f"the memory does not do: one column at a time takes about "
                f"{show_bytes(peak)} (got --memory {show_bytes(memory)})"
            )
        return cls(problem, blocks, peak, *_disk_and_time(problem, blocks, threads, ranks))

    @classmethod
    def of_blocks(cls, problem: Problem, blocks: list[Block], threads: int) -> "CostEstimate":
        """The estimate of blocks that are chosen already."""
        widest = max(math.prod(block.shape) for block in blocks)
        peak = held_memory() + _PIECES + problem.block_memory(widest)
        return cls(problem, blocks, peak, *_disk_and_time(problem, blocks, threads))

    def summary(self) -> str:
        """The estimate in words."""
        p = self.problem
        return (
            f"{p.facts:,} facts, {p.num_free:,} new and {p.num_known:,} known entities, "
            f"{p.num_sections} x {p.width} {p.kind} columns in {len(self.blocks)} "
            f"block{'s' if len(self.blocks) > 1 else ''}\n"
            f"estimated: memory {show_bytes(self.memory)}, disk {show_bytes(self.disk)}, time "
            f"{show_seconds(self.seconds)} ({p.iterations} steps)"
        )


def _disk_and_time(
    problem: Problem, blocks: list[Block], threads: int, ranks: int = 1
) -> tuple[int, float]:
    numbers = problem.num_sections * problem.width
    table = problem.num_free * numbers * problem.itemsize
    known = problem.num_known * numbers * problem.itemsize
    entries = 2 * problem.facts * (problem.entry_bytes + 2) + 40 * problem.num_free
    real = numbers * problem.itemsize // 4
    seconds = (
        BUILD * problem.facts
        + DRAW * problem.num_free * real
        + COPY * (3 * problem.num_free + problem.num_known) * real
        + problem.iterations * problem.step_seconds(blocks, threads) / min(ranks, len(blocks))
    )
    # The start, the result in columns and in rows.
    return 3 * table + known + entries + 12 * problem.facts, seconds


def held_memory() -> int:
    """Anonymous memory of this process now; half a gigabyte where the system does not say."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    return 2**29


def physical_memory() -> int:
    """Memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


_UNITS = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "b": 1, "": 1}


def parse_bytes(text: str) -> int:
    """A number of bytes such as ``16GB`` or ``512MiB``.

    Raises:
        ValueError: If it is none.
    """
    digits = text.strip().lower().rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text.strip().lower()[len(digits) :].strip()
    try:
        value = float(digits) * _UNITS[unit]
    except (ValueError, KeyError):
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError(f"'memory' must be a size such as 16GB or 512MiB (got {text!r})")
    return int(value)


def show_bytes(count: int) -> str:
    """A size in the unit that fits."""
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} bytes"


def show_seconds(seconds: float) -> str:
    """A duration in the unit that fits."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
