"""``sheafprop convert``: converts facts of any format to triples, and literals to features."""

import argparse
import csv
import io
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sheafprop.cli.command_parser import (
    CommandParser,
    file_options,
    input_path,
    is_output,
    report,
    report_warnings,
    write_output,
)
from sheafprop.errors import DataError

_FORMATS = ("tsv", "csv", "ntriples")
_SUFFIXES = {".txt": "tsv", ".tsv": "tsv", ".csv": "csv", ".nt": "ntriples"}
# Number of bytes copied at once.
_STEP = 1 << 20


def run(words: Sequence[str]) -> int:
    """Converts files of facts to triples."""
    parser = CommandParser(
        "convert",
        "Convert facts from any supported format (RDF, OWL, OBO, KGX, Neo4j, tables) to triples, "
        "and literals and properties of nodes to a file of features.",
        "sheafprop convert go.owl --out go.tsv --literals go_features.csv",
    )
    parser.add_argument(
        "files",
        nargs="+",
        help="files of facts, or - for standard input; with --literals also files of nodes. "
        "HEADER,FILE: tables with a separate header; TYPE=FILE: Neo4j files without a type column",
    )
    parser.add_argument(
        "--out", metavar="FILE", help="output file of facts, or - (optional with --literals)"
    )
    parser.add_argument(
        "--format",
        choices=_FORMATS,
        help="output format (default: by the suffix of FILE: .tsv, .txt, .csv, .nt)",
    )
    parser.add_argument(
        "--literals", metavar="CSV", help="output file of literals, as lines entity,property,value"
    )
    parser.add_file_options()
    options = parser.parse_args(list(words))
    if options.out is None and options.literals is None:
        parser.error("give --out FILE, --literals FILE or both")
    place = None if options.out is None else _place(options)
    if options.literals is not None:
        target = Path(options.literals).expanduser()
        is_same = place is not None and target.resolve() == place.resolve()
        if is_output(options.literals) or is_same:
            raise DataError("--literals must be a file other than --out")
    _convert(options, place)
    for path in (options.out, options.literals):
        if path is not None and not is_output(path):
            print(path)
    return 0


def _place(options: argparse.Namespace) -> Path:
    """Returns the output file and sets its format."""
    shown = is_output(options.out)
    place = Path("/dev/stdout" if shown else options.out).expanduser()
    options.format = options.format or ("tsv" if shown else _SUFFIXES.get(place.suffix.lower()))
    if options.format is None:
        raise DataError(f"--out {place}: unknown suffix; give --format {'|'.join(_FORMATS)}")
    return place


def _convert(options: argparse.Namespace, place: Path | None) -> None:
    from sheafprop.data.triple_files import read_files
    from sheafprop.files import written_after

    with ExitStack() as stack:
        literals: Callable[[str, str, str], object] | None = None
        if options.literals is not None:
            file = stack.enter_context(
                tempfile.TemporaryFile("w+", encoding="utf-8", newline="", errors="surrogatepass")
            )
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(["entity", "property", "value"])

            def literals(entity: str, name: str, value: str) -> object:
                return rows.writerow([entity, name, value])

        with report_warnings():
            files = map(input_path, options.files)
            triples = read_files(files, literals=literals, **file_options(options)).rows
        if place is not None and not len(triples):
            raise DataError("the files hold no triples: give --literals without --out")
        content = [] if place is None else list(_format(triples, place, options))
        if options.literals is not None:
            file.flush()
            target = Path(options.literals).expanduser()
            stack.enter_context(written_after(target, _parts(file.buffer)))
        if place is None:
            return
        if is_output(options.out):
            write_output(b"".join(content).decode("utf-8", "surrogatepass"))
        else:
            with written_after(place, content):
                pass
    report(f"{len(triples):,} triples")


def _format(
    triples: Iterable[Sequence[str]], place: Path, options: argparse.Namespace
) -> Iterator[bytes]:
    from sheafprop.data.formats.prefixes import Prefixes
    from sheafprop.data.formats.writing import format_ntriples
    from sheafprop.data.triples import format_triples

    if options.format == "tsv":
        yield format_triples(triples, str(place))
    elif options.format == "ntriples":
        yield from format_ntriples(triples, Prefixes.of(options.prefixes))
    else:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([["head", "relation", "tail"], *triples])
        yield text.getvalue().encode("utf-8", "surrogatepass")


def _parts(file: Any) -> Iterator[bytes]:
    file.seek(0)
    while part := file.read(_STEP):
        yield part
