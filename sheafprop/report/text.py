from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

NOTHING = "\N{EN DASH}"


def escape(text: object) -> str:
    """Text that Markdown shows as it is, also inside a table cell."""
    return re.sub(r"([\\|*`<\[\]])", r"\\\1", " ".join(str(text).split()))


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> str:
    """A Markdown table of cells that are escaped already; :obj:`align` holds l or r a column."""
    rule = ["---:" if side == "r" else ":---" for side in align]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [header, rule, *rows])


def plain_table(
    header: Sequence[str], groups: Sequence[Sequence[Sequence[str]]], align: str
) -> str:
    """Aligned columns for a terminal, with a rule under the header and between groups."""
    rows = [header, *(row for group in groups for row in group)]
    widths = [max(_width(cell) for cell in column) for column in zip(*rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = []
        for cell, width, side in zip(cells, widths, align, strict=True):
            space = " " * (width - _width(cell))
            padded.append(space + cell if side == "r" else cell + space)
        return "  ".join(padded).rstrip()

    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    lines = [line(header)]
    for group in groups:
        lines += [rule, *map(line, group)]
    return "\n".join(lines)


def _width(text: str) -> int:
    """The columns a terminal needs: wide letters take two, combining marks none."""
    return sum(
        0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF")
        for char in text
    )


def duration(seconds: float | None) -> str:
    """Seconds as people read them."""
    if seconds is None:
        return NOTHING
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def size(num_bytes: float | None) -> str:
    """Bytes as people read them."""
    if num_bytes is None:
        return NOTHING
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1023.5:
            return f"{num_bytes:.0f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.2f} GiB"
