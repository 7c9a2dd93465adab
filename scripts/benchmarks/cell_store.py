"""The file of results of a long experiment, which grows cell by cell."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock

from sheafprop.errors import FormatError
from sheafprop.files import storage_errors, write_json

Record = dict[str, Any]


class CellStore:
    """Records of finished cells in one JSON file, so that an interrupted experiment goes on.

    The file is replaced as a whole when a cell is finished, under a lock, so that several
    processes may add to it.

    Args:
        path (Path): The JSON file, a list of records; it need not exist.
        keys (sequence of str): The fields of a record that tell which cell it belongs to.
        fields (sequence of str): Further fields that every record has.
    """

    def __init__(self, path: Path, keys: Sequence[str], fields: Sequence[str] = ()) -> None:
        self.path, self.keys, self.fields = path, tuple(keys), tuple(fields)

    def records(self) -> list[Record]:
        """All records.

        Raises:
            FormatError: If the file is not a list of records of this experiment.
            StorageError: If it cannot be read.
        """
        try:
            with storage_errors(self.path, "read"):
                records = json.loads(self.path.read_text("utf-8")) if self.path.exists() else []
        except ValueError as error:
            raise FormatError(f"{self.path} is not JSON ({error}); move it away") from error
        if not isinstance(records, list) or not all(isinstance(r, dict) for r in records):
            raise FormatError(f"{self.path} is not a list of records; move it away")
        for number, record in enumerate(records):
            missing = [name for name in self.keys + self.fields if name not in record]
            if missing:
                raise FormatError(
                    f"{self.path} holds results of another experiment: record {number} has no "
                    f"{', '.join(map(repr, missing))}; name another file"
                )
        return records

    def check(self) -> None:
        """Reads the file and takes its lock once, so that no work is done for a file in vain.

        Raises:
            FormatError: If the file is not a list of records of this experiment.
            StorageError: If it cannot be read, or nothing can be written beside it.
        """
        with self._locked():
            self.records()

    def holds(self, cell: Record) -> bool:
        """Whether there are records of a cell."""
        return any(self._same(record, cell) for record in self.records())

    def put(self, cell: Record, found: list[Record]) -> None:
        """Stores the records of a finished cell; earlier ones of the same cell are replaced."""
        with self._locked():
            others = [record for record in self.records() if not self._same(record, cell)]
            write_json(self.path, others + [cell | record for record in found])

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with storage_errors(self.path, "written"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(self.path.with_suffix(".lock")):
                yield

    def _same(self, record: Record, cell: Record) -> bool:
        return all(record.get(key) == cell[key] for key in self.keys)
