"""Where a run keeps its files."""

import shutil
from pathlib import Path


def new_run_folder(group: str, name: str) -> Path:
    """Creates ``group/name``, or ``group/name-2`` and so on beside it; nothing is overwritten."""
    parent = Path(group).expanduser().absolute()
    number = 1
    while True:
        folder = parent / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1


def discard_if_empty(folder: Path) -> None:
    """Removes the folder of a run that failed before it wrote a file."""
    if not any(path.is_file() for path in folder.rglob("*")):
        shutil.rmtree(folder)
