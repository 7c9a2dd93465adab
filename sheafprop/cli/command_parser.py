"""What the commands share: help with an example, files in, tables out.

Long because every option that commands share is read, checked and described here.
"""

import argparse
import json
import os
import re
import sys
import textwrap
import warnings
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from sheafprop.config_files import resolve_place
from sheafprop.data.read_options import FORMATS as INPUT_FORMATS
from sheafprop.data.read_options import ReadOptions
from sheafprop.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

    from sheafprop.data.text_rows import LocatedRows
    from sheafprop.pretrained.sheaf_model import SheafModel

FORMATS = ("tsv", "csv", "json", "parquet")
FACTS_HELP = "files of facts: lines head<TAB>relation<TAB>tail, CSV, or another --input-format"
#: What columns of tables hold, for the help of commands.
SCORE = "'score' is higher for better triples of one relation"
RATIO = (
    "'ratio' is the energy divided by its mean in training for that relation (above one: the "
    "triple fits worse than the mean)"
)
# Digits of a number in a table on a terminal.
_SHOWN_DIGITS = 6


class _Value(str):
    """A word that is the value of an option, whatever it begins with."""


class LiteralParser(argparse.ArgumentParser):
    """A parser whose options take the words after them literally.

    An option that takes one value, or a fixed number of them, takes the words after it also where
    they begin with a dash, such as ``--head -omega-3``, unless they are options themselves.
    """

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses words, and gives back those that are not options of this parser."""
        words = sys.argv[1:] if args is None else args
        options, rest = super().parse_known_args(self._with_values(words), namespace)
        for name, value in vars(options).items():
            setattr(options, name, _as_text(value))
        return options, _as_text(rest)

    def _parse_optional(self, arg_string: str) -> Any:
        return None if isinstance(arg_string, _Value) else super()._parse_optional(arg_string)

    def _with_values(self, words: Sequence[str]) -> list[str]:
        """The words, those that follow an option as its values marked as such."""
        out: list[str] = []
        wanted = 0
        for place, word in enumerate(words):
            action = self._option_string_actions.get(word)
            is_option = word.partition("=")[0] in self._option_string_actions
            if wanted and not is_option and word != "--":
                out.append(_Value(word))
                wanted -= 1
                continue
            wanted = 0
            if action is not None and action.nargs == "?" and action.choices:
                # The value is optional: a word that is not among the choices is not a value.
                after = words[place + 1] if place + 1 < len(words) else ""
                word = word if after in action.choices else f"{word}={action.const}"
            elif action is not None:
                count = 1 if action.nargs is None else action.nargs
                wanted = count if isinstance(count, int) else 0
            out.append(word)
        return out


class CommandParser(LiteralParser):
    """A parser of one command, which ends its help with an example.

    Args:
        command (str): The command.
        description (str): What it does, in a sentence.
        example (str): A call.
    """

    def __init__(self, command: str, description: str, example: str):
        super().__init__(
            prog=f"sheafprop {command}",
            description=textwrap.fill(description, 80),
            epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self._formats: tuple[str, ...] = ()

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses words whose options may stand anywhere, also between a model and its files.

        Raises:
            DataError: If the table cannot be written as it is to be, see :meth:`add_output`.
        """
        options = self.parse_intermixed_args(args, namespace)
        if self._formats:
            options.format = _table_format(options, self._formats)
        return options

    def error(self, message: str) -> NoReturn:
        """Prints how the command is used, and exits; of the processes of torchrun, the first one
        prints."""
        if os.environ.get("RANK", "0") != "0":
            raise SystemExit(2)
        super().error(message)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses words; ``--help=all``, which commands with more options have, is ``--help``."""
        words = sys.argv[1:] if args is None else args
        known = ["--help" if word == "--help=all" else word for word in words]
        return super().parse_known_args(known, namespace)

    def add_model(self) -> None:
        """Adds the model folder, also as an option: see :meth:`model_of`."""
        self.add_argument("model", nargs="?", help="a run folder or a model folder")
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
        given = options.run if options.model is None else options.model
        if not given:
            self.error("the model folder must have a name (got '')")
        return given

    def load_model(
        self, options: argparse.Namespace, files: list[str] | None = None
    ) -> "SheafModel":
        """Loads the model of :meth:`model_of`."""
        folder = self.model_of(options, files)
        from sheafprop.cli.run_folder import describe_interruption
        from sheafprop.pretrained.sheaf_model import SheafModel

        model = SheafModel.load(folder)
        if note := describe_interruption(Path(folder).expanduser()):
            report(f"note: {note}")
        if not hasattr(options, "without_episodes"):
            return model
        return model.with_scores(
            episodes=not options.without_episodes,
            proximity=options.proximity,
            own_last=None if options.own_entity is None else options.own_entity == "last",
        )

    def add_folder(self, what: str, existing: str) -> None:
        """Adds the folder to write, and whether it replaces what is there."""
        self.add_argument("--out", metavar="FOLDER", type=folder, required=True, help=what)
        self.add_argument("--overwrite", action="store_true", help=f"replace {existing}")

    def add_change(self, kept: str, scaled: str) -> None:
        """Adds how a changed model gets its vectors, and where the report on it goes."""
        add = self.add_argument
        add(
            "--mode",
            choices=("keep", "refine"),
            default="keep",
            help=f"keep the vectors of earlier extensions{kept} (default: keep)",
        )
        add(
            "--normalize-output",
            action=argparse.BooleanOptionalAction,
            help=f"{scaled} to the length used in training (default: yes for exact solutions if "
            "the model trains with unit rows, otherwise as selected by the run)",
        )
        add("--report", metavar="FILE", help="also write the report, as JSON")

    def add_scoring(self) -> None:
        """Adds what a score consists of, for models with episodes or proximity."""
        add = self.add_argument
        add("--without-episodes", action="store_true", help="score by the vectors alone")
        add(
            "--proximity",
            type=float,
            metavar="W",
            help="weight of proximity in the score, 0 for none, nor the frequency of answers "
            "(default: that of the model)",
        )
        add(
            "--own-entity",
            choices=["last", "ranked"],
            help="whether the query entity is ranked last if its relation has no self-loops in "
            "training (default: that of the model)",
        )

    def add_output(self, *, triples: bool = False) -> None:
        """Adds where a table goes.

        Args:
            triples: Whether its rows are triples, which N-Triples can hold with their numbers.
        """
        self._formats = (*FORMATS, "ntriples") if triples else FORMATS
        self.add_argument("--out", metavar="FILE", help="output file (default: -, standard output)")
        self.add_argument(
            "--format",
            choices=self._formats,
            help="format of the table (default: by the name of FILE, else tsv)",
        )

    def add_file_options(self) -> None:
        """Adds how a file of triples is read."""
        add_file_options(self)


def add_file_options(parser: argparse.ArgumentParser, prefix: str | None = None) -> None:
    """Adds how files of triples are read, also under the names of a configuration's section.

    Args:
        parser: The parser.
        prefix: The section, such as ``data`` for ``--data.columns`` beside ``--columns``.
    """

    def add(name: str, **arguments: Any) -> None:
        key = name.replace("-", "_")
        names = [f"--{name}"] if prefix is None else [f"--{name}", f"--{prefix}.{key}"]
        dest = key if prefix is None else f"{prefix}.{key}"
        parser.add_argument(*names, dest=dest, **arguments)

    add(
        "columns",
        metavar="H,R,T",
        type=_columns,
        help="columns of head, relation and tail: numbers from 0, or names from the header "
        "(default: by common names, else the only three columns)",
    )
    add(
        "header",
        nargs="?",
        const="yes",
        choices=("yes", "no", "auto"),
        help="whether the first line names the columns (without a value: yes; default: auto)",
    )
    add("delimiter", help="field delimiter (default: tab, in .csv comma)")
    add(
        "input-format",
        choices=INPUT_FORMATS,
        help="format of the files (default: auto, by content and name)",
    )
    add(
        "prefixes",
        metavar="FILE",
        help="how IRIs of RDF, and of tables if given, are shortened to labels: 'common' (default: "
        "GO:0008150, rdfs:label), 'none' (whole IRIs), or a file of further prefixes, as JSON or "
        "'@prefix' lines",
    )


def _as_text(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_text(item) for item in value]
    return str(value) if isinstance(value, _Value) else value


def _columns(text: str) -> str:
    try:
        ReadOptions.of(columns=text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def read_facts(
    paths: list[str],
    options: argparse.Namespace,
    known: Container[str] = (),
    *,
    compare: bool = True,
) -> "LocatedRows":
    """Reads and joins files of triples, and reports the labels that look alike.

    Args:
        paths: The files; ``-`` is standard input.
        options: Those of :meth:`CommandParser.add_file_options`.
        known: Labels that are known from elsewhere, see :func:`~sheafprop.data.read_triples`.
        compare: Whether to look for labels that look alike.
    """
    from sheafprop.data.label_checks import lookalike_notes
    from sheafprop.data.triple_files import read_files

    with report_warnings():
        read = read_files(map(input_path, paths), known=known, **file_options(options))
    ends, relations = read.rows[:, [0, 2]].ravel().tolist(), read.rows[:, 1].tolist()
    for note in lookalike_notes(ends, relations) if compare else ():
        report(f"note: {note}")
    return read


@contextmanager
def report_warnings(once: bool = False) -> Iterator[None]:
    """Reports the warnings of a block, a line each, without their place in the code.

    Args:
        once: Whether the process warns of these no more.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        report(f"note: {warning.message}")
        if once:
            warnings.filterwarnings("ignore", re.escape(str(warning.message)))


def file_options(options: argparse.Namespace) -> dict[str, Any]:
    """How a file is read, of :meth:`CommandParser.add_file_options`, as arguments."""
    return {
        "columns": options.columns,
        "header": options.header,
        "delimiter": options.delimiter,
        "format": options.input_format,
        "prefixes": resolve_place("prefixes", options.prefixes),
    }


def read_text(name: str, what: str) -> str:
    """The text of a file of ``what`` (``-``: standard input), decompressed.

    Raises:
        DataError: If it cannot be read.
    """
    from sheafprop.data.file_kinds import decompress

    path = input_path(name)
    try:
        return decompress(path.read_bytes(), str(path)).decode("utf-8-sig")
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError(f"{path}: the {what} cannot be read ({reason})") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: the {what} cannot be read (not UTF-8 text)") from error


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
    """The name of a folder to write."""
    if is_output(text):
        raise argparse.ArgumentTypeError("a folder is written, not standard output")
    return text


def _table_format(options: argparse.Namespace, formats: Sequence[str]) -> str:
    """The format of a table, refused before anything is computed."""
    place = Path(options.out).expanduser() if options.out not in (None, "-") else None
    kind = options.format or (place.suffix[1:].lower() if place else "tsv")
    kind = {"txt": "tsv", "": "tsv", "nt": "ntriples"}.get(kind, kind)
    if kind not in formats:
        raise DataError(f"--out {place}: there is no format {kind!r}; take {', '.join(formats)}")
    if kind == "parquet" and place is None:
        raise DataError("Parquet is not text: give --out FILE")
    if kind == "parquet" and find_spec("pyarrow") is None:
        raise DataError("writing Parquet needs pyarrow: pip install 'sheafprop[parquet]'")
    return kind


def write_table(
    frame: "pd.DataFrame",
    options: argparse.Namespace,
    nested: list[Any] | None = None,
    write_more: Callable[[], None] = lambda: None,
) -> None:
    """Writes a frame to the chosen place in the chosen format; in JSON, what is nested if given.

    What else belongs to the table is written with it by ``write_more``, or neither is.
    """
    if options.out in (None, "-") and options.format == "tsv" and sys.stdout.isatty():
        frame = _shorten(frame)
    nests = nested is not None and options.format == "json"
    content = _as_json(nested) if nests else _render(frame, options)
    place = Path(options.out).expanduser() if options.out not in (None, "-") else None
    if place is None:
        write_more()
        write_output(content.decode("utf-8", "surrogatepass"))
        return
    from sheafprop.files import written_after

    with written_after(place, content):
        write_more()


def _shorten(frame: "pd.DataFrame") -> "pd.DataFrame":
    """A frame whose fractions have the digits that a person reads."""
    numbers = frame.select_dtypes("floating").columns
    return frame.assign(
        **{name: [float(f"{x:.{_SHOWN_DIGITS}g}") for x in frame[name]] for name in numbers}
    )


def write_output(text: str) -> None:
    """Writes text to standard output in its encoding, or in UTF-8 where that cannot hold it."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    buffer = getattr(sys.stdout, "buffer", None)
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        if buffer is not None:
            sys.stdout.flush()
            buffer.write(text.encode("utf-8", "surrogatepass"))
            buffer.flush()
            report(f"note: {encoding} cannot hold all labels: the output is UTF-8")
            return
    sys.stdout.write(text)


def _render(frame: "pd.DataFrame", options: argparse.Namespace) -> bytes:
    kind = options.format
    if kind == "ntriples":
        from sheafprop.data.formats.prefixes import Prefixes
        from sheafprop.data.formats.writing import format_ntriples

        triples = frame[["head", "relation", "tail"]].astype(str).to_numpy()
        numbers = {name: frame[name] for name in ("score", "probability") if name in frame}
        return b"".join(format_ntriples(triples, Prefixes.of(options.prefixes), numbers))
    if kind == "parquet":
        import io

        buffer = io.BytesIO()
        frame.to_parquet(buffer, index=False)
        return buffer.getvalue()
    if kind == "json":
        return _as_json(frame.astype(object).where(frame.notna(), None).to_dict("records"))
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


def _as_json(records: Any) -> bytes:
    text = json.dumps(records, ensure_ascii=False, indent=1) + "\n"
    return text.encode("utf-8", "surrogatepass")


def report(text: str) -> None:
    """Prints a message for the user, apart from the output."""
    print(text, file=sys.stderr)


def show_progress() -> bool:
    """Whether standard error is a terminal."""
    return sys.stderr.isatty()
