"""How long a file of N-Triples takes to be read, and how much memory.

The file has IRIs of two name spaces, a tenth of its lines are literals, and its entities repeat as
often as in Wikidata's subsets. It is read in a process of its own, whose largest resident memory
counts all: the interpreter, NumPy, and the triples.
"""

import argparse
import json
import multiprocessing
import random
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.command_line import integer, report_errors
from benchmarks.measuring import with_peak
from sheafprop.hardware import describe_hardware


def write_lines(path: Path, count: int) -> None:
    """Writes so many lines, seeded."""
    rng = random.Random(0)
    entities = max(2, count // 5)

    def lines() -> Iterator[str]:
        for number in range(count):
            head, tail = rng.randrange(entities), rng.randrange(entities)
            begin = (
                f"<http://www.wikidata.org/entity/Q{head}> <http://example.org/prop/P{head % 50}>"
            )
            if number % 10 == 9:
                yield f'{begin} "label {tail} \\u00e9"@en .\n'
            else:
                yield f"{begin} <http://example.org/things/T{tail}> .\n"

    with open(path, "w", encoding="utf-8") as file:
        file.writelines(lines())


def measure(path: Path) -> dict[str, Any]:
    """Seconds, processor seconds, peak bytes and triples of reading a file in a new process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_read, args=(str(path), theirs))
    child.start()
    theirs.close()
    found = ours.recv()
    child.join()
    return found


def _read(path: str, connection: Any) -> None:
    from sheafprop.data import read_triples

    begin, processor = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # The kernel's own figure would be that of the parent, where it was larger.
        triples, peak = with_peak(lambda: read_triples(path))
    connection.send(
        {
            "seconds": round(time.perf_counter() - begin, 2),
            "processor_seconds": round(time.process_time() - processor, 2),
            "peak_bytes": peak,
            "triples": len(triples),
        }
    )


def main(words: Sequence[str] | None = None) -> None:
    """Measures, and prints a record in JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=integer(1), default=1_000_000)
    parser.add_argument("--ending", default=".nt", help="such as .nt.gz or .nt.zst, to compress it")
    options = parser.parse_args(words)
    with report_errors(parser), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "facts.nt"
        write_lines(path, options.lines)
        if (packing := options.ending.removeprefix(".nt")) != "":
            path = pack(path, packing)
        record = {"lines": options.lines, "bytes": path.stat().st_size, "file": path.name}
        print(json.dumps(record | measure(path) | {"machine": describe_hardware()}))


def pack(path: Path, ending: str) -> Path:
    """Compresses a file, and gives the new one."""
    import gzip

    target = path.with_name(path.name + ending)
    if ending == ".gz":
        target.write_bytes(gzip.compress(path.read_bytes(), 1))
    elif ending == ".zst":
        from backports import zstd

        target.write_bytes(zstd.compress(path.read_bytes(), 1))
    else:
        raise ValueError(f"--ending must be .nt, .nt.gz or .nt.zst (got .nt{ending})")
    return target
