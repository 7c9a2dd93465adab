from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Lets :obj:`write` fill a temporary file of the same folder, then puts it in place."""
    # Two runs of a group may report at once, so the name is that of the process.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes UTF-8 text atomically."""
    write_atomically(path, lambda file: file.write_text(text, encoding="utf-8", newline="\n"))
