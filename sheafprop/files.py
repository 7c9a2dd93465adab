"""Writing files so that a crash leaves either the old content or the new, never a part of it."""

import errno
import hashlib
import json
import os
import secrets
import shutil
import stat
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, Literal

from sheafprop.errors import SheafpropError

_ADVICE = {
    errno.ENOSPC: "the disk is full. Free some space or choose a folder on another disk",
    errno.EDQUOT: "the disk quota is used up. Free some space or choose a folder on another disk",
    errno.EACCES: "permission denied. Change its permissions or choose another folder",
    errno.EPERM: "permission denied. Change its permissions or choose another folder",
    errno.EROFS: "the file system is read-only. Choose another folder",
    errno.EEXIST: "a file is where a folder is needed. Choose another place",
    errno.ENOTEMPTY: "another process has written there meanwhile. Choose another place",
    errno.ENOTDIR: "a file is where a folder is needed. Choose another place",
    errno.EISDIR: "it is a folder. Name a file",
    errno.ENAMETOOLONG: "the name is too long. Choose a shorter one",
}


class StorageError(SheafpropError, OSError):
    """A file or folder that cannot be read or written; names it and says what to do."""


@contextmanager
def storage_errors(path: str | PathLike[str], action: Literal["read", "written"]) -> Iterator[None]:
    """Turns every :class:`OSError` of the block into a :class:`StorageError` about ``path``.

    Nested blocks name the outermost path, which is the one that the user gave.
    """
    try:
        yield
    except BrokenPipeError:
        raise  # whoever reads has seen enough
    except OSError as error:
        reason = _ADVICE.get(error.errno or 0, error.strerror or str(error))
        raised = StorageError(f"'{path}' cannot be {action}: {reason}")
        raised.errno = error.errno
        raise raised from error


_PREFIX = ".sheafprop-"


_Content = bytes | Iterable[bytes | memoryview] | Callable[[BinaryIO], object]


def write_bytes(path: str | PathLike[str], content: _Content) -> None:
    """Writes a file through a temporary one in the same folder, which is made if it is missing.

    Targets that are not files, such as ``/dev/stdout``, ``/dev/null`` or a named pipe, are opened
    and written into.

    Args:
        path: The file.
        content: What it is to hold, parts of it, or what writes it into an open file.

    Raises:
        StorageError: If the file cannot be written. The old one is still there then.
    """
    with written_after(path, content):
        pass


@contextmanager
def written_after(path: str | PathLike[str], content: _Content) -> Iterator[None]:
    """Writes a file at the end of a block, if that ends well; see :func:`write_bytes`.

    What may be refused (its folder, its permissions, a full disk) is refused before the block, so
    that of two files or folders that belong together both are written or none.

    Args:
        path, content: See :func:`write_bytes`.

    Raises:
        StorageError: If the file cannot be written. The old one is still there then.
    """

    def write(file: BinaryIO) -> None:
        if callable(content):
            content(file)
        else:
            file.writelines([content] if isinstance(content, bytes) else content)

    # Through a link to the file it points to, so that the link stays one.
    target = Path(os.path.realpath(path))
    with ExitStack() as stack:
        with storage_errors(path, "written"):
            if target.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if (stream := _stream(path)) is not None:
                stack.enter_context(stream)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                temporary = stack.enter_context(temporary_sibling(target))
                with open(temporary, "xb") as file:
                    write(file)
                    file.flush()
                    os.fsync(file.fileno())
        yield
        with storage_errors(path, "written"):
            if stream is not None:
                write(stream)
                stream.flush()
                return
            os.replace(temporary, target)
            sync_folder(target.parent)


def write_stream(path: str | PathLike[str], parts: Iterable[bytes | memoryview]) -> tuple[int, str]:
    """Writes a new file part by part, and returns its size and SHA-256.

    It is written where it stands, so it belongs into a folder of :func:`new_folder`.

    Raises:
        StorageError: If the file exists or cannot be written.
    """
    digest, size = hashlib.sha256(), 0
    with storage_errors(path, "written"), open(path, "xb") as file:
        for part in parts:
            file.write(part)
            digest.update(part)
            size += len(part)
        file.flush()
        os.fsync(file.fileno())
    return size, digest.hexdigest()


def label_file(path: str | PathLike[str]) -> Path:
    """Where the labels of the rows of a file of vectors, relations or features are."""
    return Path(f"{os.fspath(path)}.labels.json")


def write_text(path: str | PathLike[str], text: str) -> None:
    """Writes ``text`` to ``path`` as UTF-8, see :func:`write_bytes`."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: str | PathLike[str], value: Any) -> None:
    """Writes a plain ``value`` to ``path`` as indented JSON, see :func:`write_bytes`.

    Raises:
        ValueError: If a value is not plain; names where it is.
        StorageError: If the file cannot be written.
    """
    write_bytes(path, as_json(value))


def as_json(value: Any) -> bytes:
    """A plain ``value`` as indented JSON.

    Raises:
        ValueError: If a value is not plain; names where it is.
    """
    check_plain(value)
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    # Python's own reader of JSON takes lone surrogates, which may stand in labels.
    return text.encode("utf-8", "surrogatepass")


def json_lines(rows: Iterable[dict[str, str]]) -> bytes:
    """Plain values as JSON, one a line."""
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return "".join(lines).encode("utf-8", "surrogatepass")


def check_plain(value: Any, where: str = "the value") -> None:
    """Raises a :class:`ValueError` if ``value`` holds anything that JSON would not give back."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"the keys of {where} must be strings (got {key!r})")
            check_plain(item, f"{where}[{key!r}]")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            check_plain(item, f"{where}[{number}]")
    elif not (value is None or isinstance(value, bool | int | float | str)):
        raise ValueError(
            f"{where} must be a plain value: None, bool, int, float, str, list or dict "
            f"(got {type(value).__name__})"
        )


def _stream(path: str | PathLike[str]) -> BinaryIO | None:
    """Our own output, a device or a pipe, opened to write; None for files and what is not there."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    for number in (1, 2):
        with suppress(OSError):
            if os.path.samestat(status, os.fstat(number)):
                # The same open file: what was written before and comes later keeps its place.
                return open(os.dup(number), "wb")
    is_other = not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode))
    return open(path, "wb") if is_other else None


@contextmanager
def temporary_sibling(target: Path) -> Iterator[Path]:
    """A free name beside ``target``; whatever file is left under it at the end is removed."""
    temporary = target.with_name(f"{_PREFIX}{secrets.token_hex(8)}.tmp")
    try:
        yield temporary
    finally:
        with suppress(OSError):
            temporary.unlink()


def remove_temporaries(folder: str | PathLike[str]) -> None:
    """Removes what a process that was killed while it wrote left in a folder."""
    for path in Path(folder).glob(f"{_PREFIX}*.tmp"):
        with suppress(OSError):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextmanager
def new_folder(target: Path, *, replace: bool, work: Path | None = None) -> Iterator[Path]:
    """Yields a temporary folder beside ``target``, or in a folder ``work`` of the same disk, which
    takes its place at the end of the block.

    Where the block raises, ``target`` stays as it was. While an old folder is replaced it carries
    the name :func:`previous_folder` for the moment between two renames. Without ``replace``, one
    that another process has made meanwhile stays, and is an error.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = (work or target.parent) / f"{_PREFIX}{secrets.token_hex(8)}.tmp"
    try:
        temporary.mkdir()
        yield temporary
        _move_into_place(temporary, target, replace)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sync_folder(target.parent)


def lock_folder(folder: str | PathLike[str]) -> Callable[[], None]:
    """Keeps other processes from working in a folder, as long as this one lives.

    Where there are no locks, as on Windows and some network file systems, there is a warning or
    nothing.

    Returns:
        callable: Lets go of the lock.

    Raises:
        StorageError: If another process works there.
    """
    try:
        import fcntl
    except ImportError:
        return lambda: None
    with storage_errors(folder, "written"):
        handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise StorageError(
            f"another process is at work in {folder}: wait for it, or stop it"
        ) from error
    except OSError as error:
        warnings.warn(
            f"'{folder}' cannot be locked ({error}): see that no other process works there",
            stacklevel=2,
        )
    return lambda: os.close(handle)


def previous_folder(target: Path) -> Path:
    """Where the old folder is while :func:`new_folder` replaces it: ``.NAME.previous``."""
    return target.with_name(f".{target.name}.previous")


def check_folder_target(
    folder: str | PathLike[str],
    overwrite: bool,
    *,
    names: Collection[str],
    record: str,
    what: str,
    is_part: Callable[[str], bool] = lambda name: False,
) -> None:
    """Refuses a place where no folder can be written, before there is anything to write.

    Args:
        folder: The folder that is to be made.
        overwrite: Whether a folder of the same kind that is there may be replaced.
        names: The files that such a folder may hold.
        record: The JSON file in it that says which library wrote it.
        what: The kind of folder, such as ``"a model"``.
        is_part: Whether it may also hold a file, named by its path in the folder.

    Raises:
        ValueError: If something is there that must stay.
        StorageError: If there is no such place.
    """
    target = Path(os.path.realpath(Path(folder).expanduser()))
    with storage_errors(folder, "written"):
        if not target.exists() or _is_empty_folder(target):
            return
    if not overwrite:
        raise ValueError(
            f"'{target}' exists: choose another folder, or pass overwrite=True (--overwrite)"
        )
    foreign = "it is a file"
    if target.is_dir():
        others = _foreign_files(target, {*names, record}, is_part)
        if not others and _is_own_record(target / record):
            return
        foreign = f"it is not {what} that sheafprop wrote"
        if others:
            foreign = f"it holds '{others[0]}', which is not a file of {what}"
    raise ValueError(f"'{target}' is not overwritten, since {foreign}: choose another folder")


def _foreign_files(
    folder: Path, names: Collection[str], is_part: Callable[[str], bool]
) -> list[str]:
    """Files and folders, by their paths in a folder, that are neither named nor parts."""
    others = []
    for entry in sorted(folder.iterdir()):
        inner = [f"{entry.name}/{path.name}" for path in entry.iterdir()] if entry.is_dir() else []
        found = inner or [entry.name]
        others += [name for name in found if name not in names and not is_part(name)]
    return others


def _is_own_record(path: Path) -> bool:
    """Whether a file is a record of ours: the names of files alone say little."""
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(record, dict) and str(record.get("library")).startswith("sheafprop ")


def _move_into_place(temporary: Path, target: Path, replace: bool) -> None:
    if not replace or not target.exists() or _is_empty_folder(target):
        os.replace(temporary, target)
        return
    previous = previous_folder(target)
    shutil.rmtree(previous, ignore_errors=True)
    os.replace(target, previous)
    try:
        os.replace(temporary, target)
    except BaseException:
        os.replace(previous, target)
        raise
    shutil.rmtree(previous, ignore_errors=True)


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and next(path.iterdir(), None) is None


def sync_folder(folder: Path) -> None:
    """Makes a rename in ``folder`` durable, where the system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
