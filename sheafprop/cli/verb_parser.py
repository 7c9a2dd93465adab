"""What the verbs of our own parser share: help with an example, files in, tables out."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

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
            description=description,
            epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def add_model(self, *, run: bool = False) -> None:
        """Adds the model folder, on request also as an option: see :meth:`model_of`."""
        self.add_argument(
            "model", nargs="?" if run else None, help="a run folder, or a model folder"
        )
        if run:
            self.add_argument("--run", metavar="RUN", help="the same as an option")

    def model_of(self, options: argparse.Namespace) -> str:
        """The model folder, however it was given."""
        if (options.model is None) == (options.run is None):
            self.error("give a model, or --run RUN")
        return options.model or options.run

    def add_output(self) -> None:
        """Adds where a table goes."""
        self.add_argument("--out", metavar="FILE", help="write here instead of standard output")
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
    parts = tuple(int(part) for part in text.split(","))
    if len(parts) != 3:
        raise argparse.ArgumentTypeError(f"three numbers are needed (got {text!r})")
    return parts[0], parts[1], parts[2]


def read_facts(paths: list[str], options: argparse.Namespace) -> "LabelTriples":
    """Reads and joins files of triples."""
    import numpy as np

    from sheafprop.data import read_triples
    from sheafprop.service.triple_input import label_triples

    parts = []
    for name in paths:
        path = Path(name).expanduser()
        if path.suffix.lower() == ".parquet":
            parts.append(label_triples(path))
            continue
        delimiter = options.delimiter or ("," if path.suffix.lower() == ".csv" else "\t")
        parts.append(
            read_triples(
                path,
                columns=options.columns,
                header=True if options.header else None,
                delimiter=delimiter.replace("\\t", "\t"),
            )
        )
    return np.concatenate(parts)


def write_table(frame: "pd.DataFrame", options: argparse.Namespace) -> None:
    """Writes a frame to the chosen place in the chosen format."""
    place = Path(options.out).expanduser() if options.out else None
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
        text = frame.to_json(orient="records", force_ascii=False, indent=1, double_precision=15)
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
