"""Reads pickles of plain containers, and nothing that could run code."""

import collections
import io
import os
import pickle
from pathlib import Path
from typing import Any, NoReturn

from sheafprop.errors import DataError

_ADMITTED = {
    **{("builtins", kind.__name__): kind for kind in (set, frozenset, list, dict, tuple, int, str)},
    ("collections", "defaultdict"): collections.defaultdict,
}


class BuiltinUnpickler(pickle.Unpickler):
    r"""An unpickler that admits builtin containers, integers, strings and ``defaultdict`` only.

    A pickle is a program: whoever writes one may name any function of any module to be called when
    it is read. Here every other name is refused before it is looked up, and so are persistent ids,
    extension codes and whatever is no such value.

    Args:
        content: The bytes of the pickle.
        source: The file, for error messages.
    """

    def __init__(self, content: bytes, source: str) -> None:
        super().__init__(io.BytesIO(content))
        self.source = source

    def find_class(self, module: str, name: str) -> Any:
        # Python 2 and protocols up to 2 call the builtins by another name.
        home = "builtins" if module == "__builtin__" else module
        if (home, name) not in _ADMITTED:
            raise DataError(
                f"{self.source}: refused to load {module}.{name}. Files of queries may hold "
                "builtin containers, integers, strings and defaultdict only; this one could run "
                "code"
            )
        return _ADMITTED[home, name]

    def persistent_load(self, pid: Any) -> NoReturn:
        raise DataError(f"{self.source}: refused to load an object from outside (id {pid!r})")


def load_builtins(path: str | os.PathLike[str]) -> Any:
    """Reads a pickle of builtin containers, integers and strings.

    Raises:
        DataError: If the file cannot be read, is no pickle, or names anything else.
    """
    source = os.fspath(path)
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{source}: cannot be read ({error.strerror or error})") from error
    try:
        value = BuiltinUnpickler(content, source).load()
    except DataError:
        raise
    except Exception as error:
        # A damaged pickle may fail anywhere in the machine that reads it.
        raise DataError(
            f"{source}: not a complete pickle of plain values ({type(error).__name__}: {error})"
        ) from error
    return value
