"""Where a run keeps its files."""

import shutil
from pathlib import Path

from sheafprop.errors import DataError


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
        except OSError as error:
            raise DataError(
                f"the run folder {folder} cannot be made ({error.strerror}): choose another place "
                "with --run.group"
            ) from error


def discard_without_checkpoint(folder: Path) -> None:
    """Removes the folder of a run that failed before there was anything to keep."""
    if not any(folder.glob("checkpoints/*.ckpt")):
        shutil.rmtree(folder, ignore_errors=True)
