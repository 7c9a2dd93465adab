"""What the verbs of our own parser share: help with an example, files in, tables out."""

import argparse
import os
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sheafprop.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

    from sheafprop.data.triples import LabelTriples

FORMATS = ("tsv", "csv", "json", "parquet")


class VerbParser(argparse.ArgumentParser):
    """A parser of one verb, which ends its help with an example.

    Args:
        verb (str): The verb.
        description (str): What it does, in a sentence.
        example (str): A call.
    """

    def __init__(self, verb: str, description: str, example: str):
        super().__init__(
            prog=f"sheafprop {verb}",
            description=textwrap.fill(description, 80),
            epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses words whose options may stand anywhere, also between a model and its files."""
        return self.parse_intermixed_args(args, namespace)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses words; ``--help=all``, which verbs with more options have, is ``--help``."""
        words = sys.argv[1:] if args is None else args
        known = ["--help" if word == "--help=all" else word for word in words]
        return super().parse_known_args(known, namespace)

    def add_model(self) -> None:
        """Adds the model folder, also as an option: see :meth:`model_of`."""
        self.add_argument("model", nargs="?", help="a run folder, or a model folder")
        self.add_argument("--run", metavar="RUN", help="the same as an option")

    def model_of(self, options: argparse.Namespace, files: list[str] | None = None) -> str:
        """The model folder, however it was given.

        With ``--run``, what stands in the model's place is the first of the ``files``.
        """
        if options.run is not None and options.model is not None and files is not None:
            files.insert(0, options.model)
            return options.run
        if (options.model is None) == (options.run is None):
            self.error("give a model, or --run RUN" + ("" if files is None else ", and a file"))
        return options.model or options.run

    def add_output(self) -> None:
        """Adds where a table goes."""
        self.add_argument(
            "--out", metavar="FILE", help="write here instead of standard output (also -)"
        )
        self.add_argument(
            "--format",
            choices=FORMATS,
            help="of the table (default: that of FILE's name, else tsv)",
        )

    def add_file_options(self) -> None:
        """Adds how a file of triples is read."""
        self.add_argument(
            "--columns",
            metavar="H,R,T",
            type=_columns,
            help="columns of head, relation and tail, counted from 0",
        )
        self.add_argument("--header", action="store_true", help="skip the first line")
        self.add_argument(
            "--delimiter", default=None, help="of the fields (default: the tab, in .csv a comma)"
        )


def _columns(text: str) -> tuple[int, int, int]:
    parts = tuple(int(part) if part.strip().isdecimal() else -1 for part in text.split(","))
    if len(parts) != 3 or min(parts) < 0 or len(set(parts)) < 3:
        raise argparse.ArgumentTypeError(
            f"three different numbers from 0 on are needed, such as 0,1,2 (got {text!r})"
        )
    return parts[0], parts[1], parts[2]


def read_facts(paths: list[str], options: argparse.Namespace) -> "LabelTriples":
    """Reads and joins files of triples; ``-`` is standard input."""
    import numpy as np

    from sheafprop.service.triple_input import triples_of_file

    return np.concatenate(
        [triples_of_file(input_path(name), **file_options(options)) for name in paths]
    )


def file_options(options: argparse.Namespace) -> dict[str, Any]:
    """How a file is read, of :meth:`VerbParser.add_file_options`, as arguments."""
    return {
        "columns": options.columns,
        "header": True if options.header else None,
        "delimiter": options.delimiter and options.delimiter.replace("\\t", "\t"),
    }


def read_text(name: str, what: str) -> str:
    """The text of a file of ``what`` (``-``: standard input), told so where it cannot be read."""
    path = input_path(name)
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError(f"{path}: the {what} cannot be read ({reason})") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: the {what} cannot be read (they are no UTF-8 text)") from error


def input_path(name: str) -> Path:
    """The file of a name that was given; ``-`` is standard input."""
    return Path("/dev/stdin" if name == "-" else name).expanduser()


def is_output(place: str | Path) -> bool:
    """Whether a place is standard output: ``-``, or a name for it such as ``/dev/stdout``."""
    if str(place) == "-":
        return True
    try:
        return os.path.samestat(os.stat(place), os.fstat(1))
    except OSError:
        return False


def folder(text: str) -> str:
    """The name of a folder to write a model into."""
    if is_output(text):
        raise argparse.ArgumentTypeError("a model is a folder, no standard output")
    return text


def write_table(frame: "pd.DataFrame", options: argparse.Namespace) -> None:
    """Writes a frame to the chosen place in the chosen format."""
    place = Path(options.out).expanduser() if options.out not in (None, "-") else None
    kind = options.format or (place.suffix[1:].lower() if place else "tsv")
    kind = {"txt": "tsv", "": "tsv"}.get(kind, kind)
    if kind not in FORMATS:
        raise DataError(f"--out {place}: there is no format {kind!r}; take {', '.join(FORMATS)}")
    if kind == "parquet" and place is None:
        raise DataError("Parquet is no text: give --out FILE")
    content = _rendered(frame, kind)
    if place is None:
        sys.stdout.write(content.decode("utf-8", "surrogatepass"))
        return
    from sheafprop.io import write_bytes

    write_bytes(place, content)


def _rendered(frame: "pd.DataFrame", kind: str) -> bytes:
    if kind == "parquet":
        import io

        buffer = io.BytesIO()
        try:
            frame.to_parquet(buffer, index=False)
        except ImportError as error:
            raise DataError("writing Parquet needs pyarrow: pip install pyarrow") from error
        return buffer.getvalue()
    if kind == "json":
        import json

        # Numbers with all their digits, what is none as null.
        values = frame.astype(object).where(frame.notna(), None)
        text = json.dumps(values.to_dict("records"), ensure_ascii=False, indent=1)
        return (text + "\n").encode("utf-8", "surrogatepass")
    if kind == "csv":
        return frame.to_csv(index=False).encode("utf-8", "surrogatepass")
    # Literal labels, as they are read: no quotes.
    lines = ["\t".join(frame.columns)]
    for row in frame.itertuples(index=False):
        cells = [str(cell) for cell in row]
        if any(mark in cell for cell in cells for mark in "\t\n\r"):
            raise DataError(
                "a label holds a tab or a line break, which TSV cannot hold: take --format csv or "
                "json"
            )
        lines.append("\t".join(cells))
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogatepass")


def tell(text: str) -> None:
    """Says something to the user, apart from the output."""
    print(text, file=sys.stderr)


def show_progress() -> bool:
    """Whether somebody watches."""
    return sys.stderr.isatty()
