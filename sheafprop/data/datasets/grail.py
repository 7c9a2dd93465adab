"""The inductive benchmark of GraIL, from a folder, an archive or a download."""

import hashlib
import json
import os
import tarfile
import tempfile
import zlib
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sheafprop.checks import check_choice
from sheafprop.data.datasets.inductive_dataset import InductiveDataset
from sheafprop.data.file_kinds import read_file
from sheafprop.data.label_checks import MODES, Mode
from sheafprop.data.triples import parse_triples
from sheafprop.errors import DataError

if TYPE_CHECKING:
    from sheafprop.data.inductive_data import InductiveData

FAMILIES = ("fb237", "WN18RR", "nell")
NAMES = tuple(f"{family}_v{version}" for family in FAMILIES for version in range(1, 5))
ENVIRONMENT = "SHEAFPROP_DATA"
URL = "https://raw.githubusercontent.com/kkteru/grail/2a3dffa719518e7e6250e355a2fb37cd932de91e/data"


class GraILDataset(InductiveDataset):
    r"""The inductive splits of FB15k-237, WN18RR and NELL-995 from `"Inductive Relation Prediction
    by Subgraph Reasoning" <https://arxiv.org/abs/1911.06962>`_ (Teru et al., 2020).

    Training uses ``<name>/train.txt``, transductive validation ``<name>/valid.txt``. The observed
    inference graph is ``<name>_ind/train.txt``, and ``valid.txt`` and ``test.txt`` of that folder
    are predicted. ``<name>/test.txt`` is not used. The size and the SHA-256 of every file are
    checked.

    The folder ``root`` and its subfolder ``grail/`` are searched for folders ``<name>/`` and
    ``<name>_ind/``, then for an archive ``<family>.tar.gz`` of these folders. They are never
    written to.

    Args:
        root: The folder of the files. (default: the environment variable ``SHEAFPROP_DATA``; if it
            is not set or the files are not there, they are downloaded to ``~/.cache/sheafprop``)
        name: ``"fb237_v1"`` to ``"fb237_v4"``, ``"WN18RR_v1"`` to ``"WN18RR_v4"``, or ``"nell_v1"``
            to ``"nell_v4"``.
        mode: ``"fully-inductive"``, as in the benchmark, or ``"semi-inductive"``. The two graphs of
            WN18RR_v3, nell_v3 and nell_v4 share 8, 3 and 1 labels, which the fully inductive mode
            treats as different entities.

    Raises:
        ValueError: If the name or the mode is unknown.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        name: str = "fb237_v1",
        *,
        mode: Mode = "fully-inductive",
    ) -> None:
        if name not in NAMES:
            raise ValueError(f"'name' must be one of {', '.join(NAMES)} (got {name!r})")
        check_choice("mode", mode, MODES)
        super().__init__(name)
        self.root = None if root is None else Path(root).expanduser().absolute()
        self.mode: Mode = mode

    def load(self) -> "InductiveData":
        # Imported here, so that files can be checked without importing torch.
        from sheafprop.data.assembly import assemble

        return assemble(self.name, self.mode, **self._parts())

    def check(self) -> None:
        self._parts()

    def _parts(self) -> dict[str, Any]:
        files = {
            "train": f"{self.name}/train.txt",
            "train_valid": f"{self.name}/valid.txt",
            "observed": f"{self.name}_ind/train.txt",
            "valid": f"{self.name}_ind/valid.txt",
            "test": f"{self.name}_ind/test.txt",
        }
        contents = self.read_files(list(files.values()))
        return {
            key: parse_triples(contents[member], member, columns=(0, 1, 2), header=False)
            for key, member in files.items()
        }

    def read_files(self, members: list[str]) -> dict[str, bytes]:
        """Returns the contents of files of the benchmark by name.

        Args:
            members: The names, such as ``fb237_v1/train.txt``.

        Raises:
            DataError: If a file is missing or differs from the released one.
        """
        archive = f"{self.name.rpartition('_')[0]}.tar.gz"
        searched = []
        for place in self._places():
            for folder in (place, place / "grail"):
                if any((folder / member).parent.is_dir() for member in members):
                    return {member: _read_file(folder, member) for member in members}
                if (folder / archive).is_file():
                    return _read_archive(folder / archive, members)
                searched.append(str(folder))
        if self.root is not None:
            raise DataError(
                f"{self.name}: neither the folders {self.name}/ and {self.name}_ind/ nor {archive} "
                f"found in {' or '.join(searched)}. Without --data.root (in Python, 'root'), the "
                "files are downloaded"
            )
        cache = Path("~/.cache/sheafprop/grail").expanduser()
        return {member: _read_cached(cache, member, searched) for member in members}

    def _places(self) -> list[Path]:
        if self.root is not None:
            return [self.root]
        place = os.environ.get(ENVIRONMENT)
        return [Path(place).expanduser().absolute()] if place else []


def _check_released(content: bytes, member: str, source: object) -> bytes:
    """Checks the size and the SHA-256 of a file and returns its content."""
    table = json.loads(resources.files(__package__).joinpath("grail_files.json").read_text())
    size, digest = table[member]
    actual = hashlib.sha256(content).hexdigest()
    if len(content) != size:
        state = "truncated" if len(content) < size else "altered"
        problem = f"is {state}: expected {size} bytes (got {len(content)})"
    elif actual != digest:
        problem = f"is altered: {size} bytes as expected, but SHA-256 {actual} instead of {digest}"
    else:
        return content
    raise DataError(
        f"{source}: {member} {problem}. Download the file again, or use FolderDataset for other "
        "data"
    )


def _read_file(folder: Path, member: str) -> bytes:
    return _check_released(read_file(folder / member), member, folder)


def _read_archive(path: Path, members: list[str]) -> dict[str, bytes]:
    contents = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in members:
                stream = archive.extractfile(member)  # by exact name, never written anywhere
                if stream is None:
                    raise DataError(f"{path}: {member} is not a regular file")
                contents[member] = _check_released(stream.read(), member, path)
    except KeyError as error:
        raise DataError(
            f"{path}: the archive is damaged or incomplete ({error.args[0]})"
        ) from error
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path}: the archive is damaged or cannot be read ({error})") from error
    return contents


def download_url(url: str, folder: str, *, filename: str) -> str:
    """Downloads a file by PyG, which is imported here because it imports torch."""
    from torch_geometric import data

    return data.download_url(url, folder, filename=filename)


def _read_cached(cache: Path, member: str, searched: list[str]) -> bytes:
    """Reads a file from the cache, or downloads and checks it first."""
    target = cache / member
    if target.is_file():
        return _read_file(cache, member)
    url = f"{URL}/{member}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            path = Path(download_url(url, folder, filename=target.name))
            content = _check_released(path.read_bytes(), member, url)
            os.replace(path, target)
    except OSError as error:
        places = f" and nothing was found in {' or '.join(searched)}" if searched else ""
        raise DataError(
            f"{member}: the download from {url} failed ({error}){places}. Give 'root', or let "
            f"{ENVIRONMENT} name a folder that holds grail/{member} or the archive of its family"
        ) from error
    return content
