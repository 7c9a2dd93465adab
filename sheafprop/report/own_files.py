"""Recognizes files written by sheafprop, so that files of users are never replaced."""

import hashlib
import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path

from sheafprop.errors import DataError

_MARK = "<!-- written by sheafprop, sha256 of the text above: "
_SIGNATURE = re.compile(rf"\n{_MARK}\w{{64}} -->\n\Z")
#: Sections of every report; those of version 0.1.0 have no signature.
_SECTIONS = ("\n## Selection\n", "\n## Runs\n", "\n## Time and memory\n")


def own_path(folder: Path, name: str) -> Path:
    """Returns the path of a record, report or figure: ``name``, or ``STEM.sheafprop.SUFFIX``.

    The latter is used, with a warning, if ``name`` was not written by sheafprop or was changed.

    Raises:
        DataError: If both paths are taken.
    """
    path, place = folder / name, _find_place(folder, name)
    if place != path:
        warnings.warn(
            f"{path} was not written by sheafprop and is kept: see {place.name}", stacklevel=2
        )
    return place


def check_places(folder: Path) -> None:
    """Checks that records, reports and figures can be written to a folder.

    Raises:
        DataError: If both possible paths of one of them hold files of the user.
    """
    for name in ("metrics.json", "report.md", "hits_by_iteration.png"):
        _find_place(folder, name)


def _find_place(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.exists() or is_own(path):
        return path
    beside = path.with_name(f"{path.stem}.sheafprop{path.suffix}")
    if beside.exists() and not is_own(beside):
        raise DataError(f"sheafprop wrote neither {path} nor {beside}: move one of them")
    return beside


def is_own(path: Path) -> bool:
    """Whether a record, report or figure was written by sheafprop and not changed since."""
    return path.is_file() and _CHECKS[path.suffix](path)


def sign(text: str) -> str:
    """Appends a signature to the text of a report."""
    digest = hashlib.sha256(text.encode("utf-8")).hexdigest()
    return f"{text}\n{_MARK}{digest} -->\n"


def _is_record(path: Path) -> bool:
    try:
        content = json.loads(path.read_text(encoding="utf-8", errors="surrogatepass"))
    except ValueError:
        return False
    records = content if isinstance(content, list) and content else [content]
    return all(
        isinstance(record, dict)
        and isinstance(record.get("format"), int)
        and isinstance(record.get("run"), dict)
        for record in records
    )


def _is_report(path: Path) -> bool:
    text = path.read_text(encoding="utf-8", errors="replace")
    if _MARK in text:
        signature = _SIGNATURE.search(text)
        return signature is not None and sign(text[: signature.start()]) == text
    return text.startswith("# ") and all(section in text for section in _SECTIONS)


def _is_figure(path: Path) -> bool:
    head = path.read_bytes()[:2048]
    # Version 0.1.0 drew with matplotlib's own signature, beside a report.
    return b"sheafprop" in head or (
        b"Matplotlib version" in head and is_own(path.with_name("report.md"))
    )


_CHECKS: dict[str, Callable[[Path], bool]] = {
    ".json": _is_record,
    ".md": _is_report,
    ".png": _is_figure,
}
