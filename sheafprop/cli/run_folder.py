"""Where a run keeps its files."""

import os
import shutil
import warnings
from pathlib import Path

from sheafprop.errors import DataError

#: Tells the processes that a run starts on its own machine where the first of them writes.
_SHARED = "SHEAFPROP_RUN_FOLDER"


class RunFolder:
    """The folder of a run: one that is there, or one that is made once the run can start.

    Args:
        path: The folder.
        new: Whether it is to be made, as ``path``, or ``path-2`` and so on beside it where that
            exists; nothing is overwritten.
    """

    def __init__(self, path: str | os.PathLike[str], *, new: bool = False):
        self.path = Path(path).expanduser().absolute()
        self._new = new
        self._made: list[Path] = []
        self._lock: int | None = None

    def make(self) -> bool:
        """Makes a new folder, and the folders above it, and returns whether it did."""
        if not self._new:
            return False
        if int(os.environ.get("LOCAL_RANK", "0")) > 0:
            if _SHARED not in os.environ:
                raise DataError(
                    "a run starts its further processes itself: start one process and give "
                    "--trainer.devices N --trainer.strategy ddp"
                )
            self.path = Path(os.environ[_SHARED])
            return False
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
            DataError: If another process does so already.
        """
        try:
            import fcntl
        except ImportError:  # not on Windows
            return
        if int(os.environ.get("LOCAL_RANK", "0")) > 0:
            return  # the first process of the run has it
        self._lock = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.release()
            raise DataError(
                f"another process is at work in {self.path}: wait for it, or stop it"
            ) from error
        except OSError as error:
            # As on some network file systems.
            warnings.warn(
                f"{self.path} cannot be locked ({error}): see that no other process works there",
                stacklevel=2,
            )

    def release(self) -> None:
        """Lets go of what :meth:`lock` took."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

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
