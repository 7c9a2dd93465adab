"""What a job that may be killed at any moment writes down of its inputs and of what is done, and
how its processes wait for each other by files."""

import hashlib
import json
import shutil
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar
from uuid import uuid4

from sheafprop.distributed import RankError, Ranks
from sheafprop.errors import DataError
from sheafprop.files import lock_folder, remove_temporaries, storage_errors, write_json

_NAME = "job.json"
_PIECE = 2**22


class JobRecord:
    """What is written down in the folder of a job.

    Args:
        folder (Path): The folder.
        content (dict): ``given``, what was asked for; ``inputs``, the files that it is read from;
            ``blocks``, once what is large has begun; ``done``, by stage.
        is_new (bool): Whether there is nothing to go on with.
    """

    def __init__(self, folder: Path, content: dict[str, Any], is_new: bool):
        self.folder, self.content, self.is_new = folder, content, is_new

    @classmethod
    def take_up(cls, folder: Path, wanted: dict[str, Any], inputs: Sequence[Path]) -> Self:
        """The record of an earlier process if it is of the same work, or a new one.

        Raises:
            DataError: If it is of other work, or an input was changed since.
        """
        found = read_record(folder / _NAME)
        if found is not None and "blocks" not in found:
            # Only facts were read: other settings may follow, and other facts take their place.
            same = {**wanted, "settings": None} == {**found["given"], "settings": None}
            found = {**found, "given": wanted} if same else None
        if found is None:
            described = {str(path): describe_input(path) for path in inputs}
            return cls(folder, {"given": wanted, "inputs": described, "done": {}}, True)
        changed = [name for name in wanted if found["given"].get(name) != wanted[name]]
        if changed:
            raise DataError(
                f"'{folder}' holds work with another {changed[0]!r}: give what it was begun with, "
                "or --restart to drop it"
            )
        record = cls(folder, found, False)
        record.check_inputs()
        return record

    def check_inputs(self) -> None:
        """Raises :class:`~sheafprop.errors.DataError` for an input that was changed since."""
        for name, recorded in self.content["inputs"].items():
            if not is_unchanged(Path(name), recorded):
                raise DataError(
                    f"{name}: it was changed since the work in '{self.folder}' began, so nothing "
                    "of that is used: give --restart to begin again"
                )

    def save(self) -> None:
        """Writes the record as a whole."""
        write_json(self.folder / _NAME, self.content)


@contextmanager
def work_folder(folder: Path, ranks: Ranks, *, restart: bool) -> Iterator[None]:
    """Makes the folder of a job, which no other job uses until the end of the block.

    What a killed process was about to write is removed, and with ``restart`` all that is there.

    Raises:
        StorageError: On all ranks, if another process is at work there or the disk refuses.
    """

    def take(stack: ExitStack) -> None:
        if not ranks.is_first:
            return
        with storage_errors(folder, "written"):
            folder.mkdir(parents=True, exist_ok=True)
        stack.callback(lock_folder(folder))
        remove_temporaries(folder)
        if restart:
            clear_work(folder)

    with ExitStack() as stack:
        ranks.run_together(lambda: take(stack))
        yield


def clear_work(folder: Path) -> None:
    """Empties a folder of work, of its records first: without them, what is left of a process that
    is killed here is ignored."""
    with storage_errors(folder, "written"):
        for record in (*folder.glob(_NAME), *folder.glob(f"*/{_NAME}")):
            record.unlink()
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def read_record(path: Path) -> dict[str, Any] | None:
    """The content of a JSON file that was written as a whole; None if it is not there."""
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def describe_input(path: Path) -> dict[str, Any]:
    """Size, time of change and SHA-256 of an input file.

    Raises:
        DataError: If it cannot be read.
    """
    try:
        status = path.stat()
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    return {"size": status.st_size, "mtime": status.st_mtime_ns, "sha256": digest}


def is_unchanged(path: Path, recorded: dict[str, Any]) -> bool:
    """Whether an input file holds what it did; it is read only where its time differs."""
    try:
        status = path.stat()
    except OSError:
        return False
    if status.st_size != recorded["size"]:
        return False
    return status.st_mtime_ns == recorded["mtime"] or (
        describe_input(path)["sha256"] == recorded["sha256"]
    )


def checksum(path: Path) -> int:
    """CRC-32 of a file."""
    value = 0
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            value = zlib.crc32(piece, value)
    return value


T = TypeVar("T")
# Seconds between two looks at whether the others are done.
_PATIENCE = 0.05


def run_unhurried(ranks: Ranks, folder: Path, work: Callable[[], T] | None) -> list[T | None]:
    """Runs what may take longer than the timeout on some ranks, while the others wait.

    They look for files and not for messages, which would have to come in time. Where a rank is
    killed, torchrun ends the others.

    Args:
        ranks (Ranks): The processes.
        folder (Path): A folder that all of them see.
        work (callable, optional): What this rank does, without collectives; None for nothing.

    Returns:
        list: What the work returned, by rank; None without work.

    Raises:
        Exception: What the work raises here.
        RankError: If it raises on another rank.
    """
    token = ranks.gather(uuid4().hex)[0]
    marks = [folder / f"done-{token}-{rank}.json" for rank in range(ranks.size)]
    error, result = None, None
    if work is not None:
        try:
            result = work()
        except RankError:
            raise  # a rank is lost, and its mark will never come
        except Exception as found:
            error = found
    if ranks.size > 1:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(marks[ranks.rank], {})
        while not all(mark.exists() for mark in marks):
            time.sleep(_PATIENCE)

    def answer() -> T | None:
        if error is not None:
            raise error
        return result

    results = ranks.gather(ranks.run_together(answer))
    # All have seen them; the first rank may remove the folder next.
    if ranks.is_first and ranks.size > 1:
        for mark in marks:
            mark.unlink()
    return results
