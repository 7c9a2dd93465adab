"""Options of reading triples, common to all readers and commands."""

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from sheafprop.checks import check_choice
from sheafprop.data.formats.prefixes import Prefixes

Columns = tuple[int | str, int | str, int | str]
Header = Literal["auto", "yes", "no"]
InputFormat = Literal[
    "auto",
    "tsv",
    "csv",
    "parquet",
    "ntriples",
    "nquads",
    "turtle",
    "trig",
    "rdfxml",
    "obo",
    "jsonl",
]
FORMATS: tuple[InputFormat, ...] = get_args(InputFormat)


@dataclass(frozen=True)
class ReadOptions:
    r"""Validated options of :func:`~sheafprop.data.read_triples`.

    Args:
        columns: The columns of head, relation and tail: three numbers from 0 on or three names of
            the header, as a sequence or as text such as ``"0,1,2"`` or ``"source,kind,target"``.
        header: Whether the first line holds the names of the columns: True or ``"yes"``, False or
            ``"no"``, None or ``"auto"``.
        delimiter: The character between fields; the tab may be written as backslash and t.
        format: One of :data:`FORMATS`; ``"auto"`` infers it from the file's name and first lines.
        prefixes: The prefixes that shorten IRIs, see :class:`Prefixes`.
        prefixes_given: Whether prefixes were given, so that IRIs in tables are shortened too.

    Raises:
        ValueError: If an option is not valid.
    """

    columns: Columns | None = None
    header: bool | None = None
    delimiter: str | None = None
    format: InputFormat = "auto"
    prefixes: Prefixes = field(default_factory=Prefixes.of, compare=False)
    prefixes_given: bool = False

    @classmethod
    def of(
        cls,
        columns: Any = None,
        header: Header | bool | None = None,
        delimiter: str | None = None,
        format: InputFormat | None = None,
        prefixes: Any = None,
    ) -> "ReadOptions":
        """Parses options given in Python, in YAML or on the command line."""
        headers = {"auto": None, "yes": True, "no": False, None: None, True: True, False: False}
        if header not in headers:
            raise ValueError(f"'header' must be one of 'auto', 'yes', 'no' (got {header!r})")
        chosen = format or "auto"
        check_choice("format", chosen, FORMATS)
        shortened = Prefixes.of(prefixes)
        options = cls(
            _columns(columns),
            headers[header],
            _delimiter(delimiter),
            chosen,
            shortened,
            prefixes is not None,
        )
        if options.has_names and options.header is False:
            raise ValueError(
                f"'columns' must be numbers if 'header' is 'no' (got {options.columns})"
            )
        return options

    @property
    def has_names(self) -> bool:
        """Whether columns are given by name."""
        return self.columns is not None and any(isinstance(c, str) for c in self.columns)


def _columns(given: Any) -> Columns | None:
    if given is None:
        return None
    parts = given.split(",") if isinstance(given, str) else list(given)
    parts = [_column(part) for part in parts]
    good = len(parts) == 3 and len(set(parts)) == 3
    if not good or any(part == "" if isinstance(part, str) else part < 0 for part in parts):
        raise ValueError(
            "'columns' must be three different columns of head, relation and tail, as numbers from "
            f"0 on or as names (got {given!r})"
        )
    return parts[0], parts[1], parts[2]


def _column(part: Any) -> int | str:
    if isinstance(part, str):
        part = part.strip()
        return int(part) if part.isdecimal() else part
    return int(part)


def _delimiter(given: str | None) -> str | None:
    if given is None:
        return None
    character = given.replace("\\t", "\t")
    if len(character) != 1 or character in '"\r\n':
        raise ValueError(f"'delimiter' must be a single character (got {given!r})")
    return character
