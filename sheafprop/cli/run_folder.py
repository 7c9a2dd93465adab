"""Where a run keeps its files."""

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
