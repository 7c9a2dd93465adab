import errno
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from typing import Literal

from sheafprop.errors import SheafpropError

_ADVICE = {
    errno.ENOSPC: "the disk is full. Free some space or choose a folder on another disk",
    errno.EDQUOT: "the disk quota is used up. Free some space or choose a folder on another disk",
    errno.EACCES: "permission denied. Change its permissions or choose another folder",
    errno.EPERM: "permission denied. Change its permissions or choose another folder",
    errno.EROFS: "the file system is read-only. Choose another folder",
    errno.EEXIST: "a file is where a folder is needed. Choose another place",
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
