"""Resumable cells: the parts of a long experiment, run in processes and stored as they finish.

A results file holds one record a line (JSON). An interrupted command goes on with the cells that
the file lacks; a cell goes on by itself from what it left in its working folder.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from tqdm.auto import tqdm

from benchmarks.command_line import end_silently, integer
from benchmarks.measuring import current_commit
from sheafprop.errors import FormatError, SheafpropError
from sheafprop.files import check_plain, storage_errors, write_text

Record = dict[str, Any]

#: The stored results of this clone, whatever the folder a script is called from.
RESULTS = Path(__file__).parents[1] / "results"


def read_records(path: Path) -> list[Record]:
    """The records of a results file, none if it is not there.

    Raises:
        FormatError: If a line is not a record.
        StorageError: If the file cannot be read.
    """
    records = []
    with storage_errors(path, "read"):
        text = path.read_text("utf-8") if path.exists() else ""
    # At line feeds alone: JSON keeps the other characters that Python ends lines at.
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else [], 1):
        try:
            records.append(json.loads(line))
        except ValueError as error:
            raise FormatError(f"{path}:{number} is not JSON ({error}); move it away") from error
        if not isinstance(records[-1], dict):
            raise FormatError(f"{path}:{number} is not a record (an object); move it away")
    return records


def write_records(path: Path, records: Sequence[Record]) -> None:
    """Replaces a results file as a whole.

    Raises:
        ValueError: If a value is not plain.
        StorageError: If the file cannot be written; the old one is still there then.
    """
    check_plain(list(records))
    write_text(path, "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records))


def check_hardware(path: Path | None, hardware: str) -> None:
    """Refuses a file of results of other hardware, before minutes of measuring."""
    stored = [] if path is None else read_records(path)
    for other in {case["hardware"] for case in stored} - {hardware}:
        raise SystemExit(
            f"--json names a file of results of other hardware ({other}): give another file"
        )


def merge_cases(path: Path, new: Sequence[Record]) -> None:
    """Writes measured cases in the places of those of a file that they measure again, the others
    behind."""
    old = read_records(path)
    again = {case["name"]: case for case in new}
    write_records(path, [*(again.pop(case["name"], case) for case in old), *again.values()])


class CellStore:
    """Records of finished cells in one results file, to which several processes may add.

    Args:
        path (Path): The results file; it need not exist.
        keys (sequence of str): The fields of a record that tell which cell it belongs to.
        fields (sequence of str): Further fields that every record has.
    """

    def __init__(self, path: Path, keys: Sequence[str], fields: Sequence[str] = ()) -> None:
        self.path, self.keys, self.fields = path, tuple(keys), tuple(fields)

    def records(self) -> list[Record]:
        """All records.

        Raises:
            FormatError: If a line is not a record of this experiment.
            StorageError: If the file cannot be read.
        """
        records = read_records(self.path)
        for number, record in enumerate(records, 1):
            missing = [name for name in self.keys + self.fields if name not in record]
            if missing:
                raise FormatError(
                    f"{self.path} holds results of another experiment: line {number} has no "
                    f"{', '.join(map(repr, missing))}; name another file"
                )
        return records

    def check(self) -> None:
        """Reads the file and takes its lock once, so that no work is done for a file in vain.

        Raises:
            FormatError: If a line is not a record of this experiment.
            StorageError: If the file cannot be read, or nothing can be written beside it.
        """
        with self._lock():
            self.records()

    def holds(self, key: Record) -> bool:
        """Whether there are records of a cell."""
        return any(self._same(record, key) for record in self.records())

    def put(self, key: Record, found: Sequence[Record]) -> None:
        """Stores the records of a finished cell; earlier ones of the same cell are replaced."""
        with self._lock():
            others = [record for record in self.records() if not self._same(record, key)]
            write_records(self.path, others + [key | record for record in found])

    def folder(self, key: Record) -> Path:
        """Where a cell keeps what it needs to go on until it is finished.

        What another commit has left is not gone on with.
        """
        text = json.dumps([key, current_commit()], sort_keys=True)
        name = hashlib.sha256(text.encode()).hexdigest()[:16]
        return self.path.with_suffix(".unfinished") / name

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with storage_errors(self.path, "written"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(self.path.with_suffix(".lock")):
                yield

    def _same(self, record: Record, key: Record) -> bool:
        return all(record.get(name) == key[name] for name in self.keys if name in key)


@dataclass(frozen=True)
class Cell:
    """One part of an experiment.

    Args:
        key (dict): The fields that tell it from others. What one of the store's keys lacks here is
            in the records themselves.
        function: Gives its records; called with ``arguments`` and ``folder``, a working folder that
            stays until the cell is finished.
        arguments (tuple): What the function is called with.
    """

    key: Record
    function: Callable[..., list[Record]]
    arguments: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return " ".join(str(value) for name, value in self.key.items() if name != "config_hash")


def combine(*axes: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Every combination of the values of some axes; what is named twice is taken once."""
    return product(*map(dict.fromkeys, axes))


def run_cells(
    cells: Sequence[Cell],
    store: CellStore,
    *,
    jobs: int = 1,
    threads: int | None = None,
    again: bool = False,
) -> None:
    """Runs the cells that a store does not hold yet, each in a process of its own.

    A fresh process makes a cell's peak memory its own. A cell that fails does not stop the others,
    and what is finished stays in the store when the run is interrupted.

    Args:
        cells: The cells.
        store (CellStore): Where their records go.
        jobs (int): How many run at once.
        threads (int, optional): Threads of each; as many as torch takes by default.
        again (bool): Whether to run cells that the store holds, too.

    Raises:
        SheafpropError: At the end, with the cells that failed; or if a process was killed.
    """
    todo = [cell for cell in cells if again or not store.holds(cell.key)]
    if len(todo) < len(cells):
        stored = f"{len(cells) - len(todo)} of {len(cells)} cells are stored results"
        print(f"{stored}; --again runs them again", file=sys.stderr)
    failed, context = [], multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(jobs, context, end_silently, max_tasks_per_child=1) as pool,
        tqdm(total=len(todo), desc="cells", disable=None) as bar,
    ):
        running = {pool.submit(_run, cell, store.folder(cell.key), threads): cell for cell in todo}
        try:
            for done in as_completed(running):
                cell = running[done]
                bar.set_postfix_str(str(cell))
                try:
                    found = done.result()
                except BrokenProcessPool:
                    raise
                except Exception as error:
                    if os.environ.get("SHEAFPROP_DEBUG"):
                        raise
                    kind = "" if isinstance(error, SheafpropError) else f"{type(error).__name__}: "
                    failed.append(f"{cell}: {kind}{error}")
                    tqdm.write(f"failed: {failed[-1]}", file=sys.stderr)
                else:
                    commit = {"commit": current_commit()}
                    store.put(cell.key, [record | commit for record in found])
                    folder = store.folder(cell.key)
                    shutil.rmtree(folder, ignore_errors=True)
                    with suppress(OSError):
                        folder.parent.rmdir()
                bar.update()
        except BrokenProcessPool as error:
            raise SheafpropError(
                "the process of a cell was killed, most likely for want of memory; finished cells "
                "are kept, the others go on from their last checkpoint, and --jobs 1 needs the "
                "least"
            ) from error
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    if failed:
        raise SheafpropError(f"{len(failed)} of {len(todo)} cells failed: {'; '.join(failed)}")


def _run(cell: Cell, folder: Path, threads: int | None) -> list[Record]:
    if threads is not None:
        torch.set_num_threads(threads)
    return cell.function(*cell.arguments, folder=folder)


def add_results_option(parser: argparse.ArgumentParser, name: str) -> None:
    """Adds the option that names the file of results, by default one of :obj:`RESULTS`."""
    text = f"where finished cells are kept (scripts/results/{name})"
    parser.add_argument("--results", metavar="FILE", type=Path, default=RESULTS / name, help=text)


def add_running_options(
    parser: argparse.ArgumentParser, results: str, *, threads: int | None = 1
) -> None:
    """Adds the options of every command whose cells :func:`run_cells` runs."""
    add_results_option(parser, results)
    add = parser.add_argument
    add("--again", action="store_true", help="run cells that are stored, too")
    add("--jobs", type=integer(1), default=1, help="cells that run at once (1)")
    add("--threads", type=integer(1), default=threads, help=f"threads of each ({threads or 'all'})")
