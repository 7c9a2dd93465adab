"""Where a run keeps its files."""

import os
import shutil
from collections.abc import Callable
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING

from sheafprop.errors import DataError
from sheafprop.files import lock_folder

if TYPE_CHECKING:
    from sheafprop.distributed import Ranks

#: Tells the processes that a run starts on its own machine where the first of them writes.
_SHARED = "SHEAFPROP_RUN_FOLDER"
#: Names the torchrun that has begun a run, until the run ends.
_LAUNCHER = ".torchrun"


class RunFolder:
    """The folder of a run: one that is there, or one that is made once the run can start.

    Args:
        path: The folder.
        new: Whether it is to be made, as ``path``, or ``path-2`` and so on beside it where that
            exists; nothing is overwritten.
        ranks (Ranks, optional): The processes of torchrun that share it; the first of them writes.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, new: bool = False, ranks: "Ranks | None" = None
    ):
        self.ranks = ranks
        self.path = Path(path).expanduser().absolute()
        self._new = new
        self._made: list[Path] = []
        self._unlock: Callable[[], None] | None = None

    def make(self) -> bool:
        """Makes a new folder, and the folders above it, and returns whether it did."""
        if not self._new:
            return False
        if self.ranks is not None:
            first = self.ranks.is_first
            made = self.ranks.run_together(lambda: first and self._make())
            self.path = Path(self.ranks.gather(str(self.path))[0])
            if made:
                (self.path / _LAUNCHER).write_text(_name_launcher(), encoding="utf-8")
            return made
        if int(os.environ.get("LOCAL_RANK", "0")) > 0:
            if _SHARED not in os.environ:
                raise DataError(
                    "a run starts its further processes itself: start one process and give "
                    "--trainer.devices N --trainer.strategy ddp"
                )
            self.path = Path(os.environ[_SHARED])
            return False
        return self._make()

    def _make(self) -> bool:
        wanted, number = self.path, 1
        missing = [parent for parent in wanted.parents if not parent.exists()]
        while True:
            try:
                self.path.mkdir(parents=True)
                break
            except FileExistsError:
                number += 1
                self.path = wanted.with_name(f"{wanted.name}-{number}")
            except OSError as error:
                raise DataError(
                    f"the run folder {self.path} cannot be made ({error.strerror}): choose another "
                    "place with --run.group"
                ) from error
        self._made = [self.path, *missing]
        os.environ[_SHARED] = str(self.path)
        return True

    def lock(self) -> None:
        """Keeps other processes from writing here until :meth:`release`, or this one's end.

        Raises:
            StorageError: If another process does so already.
        """
        if self.ranks is not None:
            first = self.ranks.is_first
            self._unlock = self.ranks.run_together(
                lambda: lock_folder(self.path) if first else None
            )
        elif int(os.environ.get("LOCAL_RANK", "0")) == 0:
            self._unlock = lock_folder(self.path)  # for further processes of the run as well

    def release(self) -> None:
        """Lets go of what :meth:`lock` took."""
        if self._unlock is not None:
            self._unlock()
            self._unlock = None

    def find_restarted(self) -> Path | None:
        """The folder of a run that this torchrun has begun and starts again, if it can go on.

        One without a checkpoint is removed: nothing of it is lost.
        """
        assert self.ranks is not None
        found = None
        if self.ranks.is_first and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")):
            for place in sorted(self.path.parent.glob(f"{escape(self.path.name)}*")):
                name = place / _LAUNCHER
                if not name.is_file() or name.read_text(encoding="utf-8") != _name_launcher():
                    continue
                if (place / "checkpoints" / "last.ckpt").is_file():
                    found = place
                else:
                    shutil.rmtree(place, ignore_errors=True)
        return self.ranks.gather(found)[0]

    def finish(self) -> None:
        """Marks a run that torchrun need not start again."""
        if self.ranks is not None and self.ranks.is_first:
            (self.path / _LAUNCHER).unlink(missing_ok=True)

    def discard(self) -> None:
        """Removes what :meth:`make` made, unless a checkpoint is there to go on from."""
        if not self._made or any(self.path.glob("checkpoints/*.ckpt")):
            return
        shutil.rmtree(self.path, ignore_errors=True)
        for parent in self._made[1:]:  # the nearest first
            try:
                parent.rmdir()
            except OSError:
                break


def _name_launcher() -> str:
    """This torchrun, the same after it has started its processes again."""
    return f"{os.environ.get('TORCHELASTIC_RUN_ID')} {os.getppid()}"
