"""A data set from a folder of files."""

import difflib
import os
import re
import shlex
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sheafprop.checks import check_choice, count_noun
from sheafprop.data.datasets.inductive_dataset import InductiveDataset
from sheafprop.data.file_kinds import GRAPH_ENDINGS, file_suffix, plain_name
from sheafprop.data.label_checks import MODES, Mode, check_labels
from sheafprop.data.read_options import ReadOptions
from sheafprop.data.triple_files import rename_rows
from sheafprop.data.triples import LabelTriples, read_located
from sheafprop.errors import DataError

if TYPE_CHECKING:
    from sheafprop.data.inductive_data import InductiveData

#: The file of each set; the first two are required.
FILES = {
    "train": "train.txt",
    "observed": "inference.txt",
    "train_valid": "valid.txt",
    "valid": "inference_valid.txt",
    "test": "inference_test.txt",
}
#: The report that ``sheafprop split`` writes beside the files.
SPLIT_RECORD = "split.json"
_REQUIRED = ("train.txt", "inference.txt")
_OPTIONAL = ("valid.txt", "inference_valid.txt", "inference_test.txt")
#: Suffixes of files that may hold a set, before that of a compression.
_ENDINGS = (".txt", ".tsv", ".csv", ".parquet", *GRAPH_ENDINGS)
#: Synonyms of the words in the names of the files.
_WORDS = {
    "training": "train",
    "testing": "test",
    **dict.fromkeys(("validation", "validate", "val", "dev"), "valid"),
    **dict.fromkeys(("ind", "inductive", "infer", "observed"), "inference"),
}
_CLOSE = 0.85


class FolderDataset(InductiveDataset):
    r"""A data set from files in a folder: ``train.txt``, ``inference.txt`` and optional ones.

    ``valid.txt`` holds transductive validation triples of the training graph,
    ``inference_valid.txt`` and ``inference_test.txt`` hold triples to predict in the inference
    graph. These three may be missing or empty. All files are read by
    :func:`~sheafprop.data.read_triples`; they may have the suffix of another format or be
    compressed. Other files are ignored. A file whose name resembles that of a missing one causes a
    warning.

    Args:
        root: The folder. ``~`` is expanded.
        mode: ``"semi-inductive"``: entities that occur in ``train.txt`` are known in
            ``inference.txt``, and the training triples are part of the inference graph.
            ``"fully-inductive"``: all entities of ``inference.txt`` are new.
        on_unknown_relation: ``"error"`` or ``"drop"``, see :func:`~sheafprop.data.assemble`.
        hold_out: Fraction of the training triples to hold out for transductive validation if there
            is no ``valid.txt``. Every entity and relation keeps a training triple.
        seed: Random seed of the selection.
        columns, header, delimiter, format, prefixes: Options of reading all files, see
            :func:`~sheafprop.data.read_triples`.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        mode: Mode,
        *,
        on_unknown_relation: Literal["error", "drop"] = "error",
        hold_out: float = 0.0,
        seed: int = 0,
        columns: Any = None,
        header: Any = None,
        delimiter: str | None = None,
        format: Any = None,
        prefixes: Any = None,
    ) -> None:
        check_choice("mode", mode, MODES)
        if not 0 <= hold_out < 1:
            raise ValueError(f"'hold_out' must be at least 0 and below 1 (got {hold_out})")
        # Made absolute here, since the current folder may change later.
        self.root = Path(root).expanduser().absolute()
        super().__init__(self.root.name)
        self.mode: Mode = mode
        self.on_unknown_relation: Literal["error", "drop"] = on_unknown_relation
        self.hold_out = hold_out
        self.seed = seed
        self.reading = ReadOptions.of(columns, header, delimiter, format, prefixes)

    def load(self) -> "InductiveData":
        # Imported here, so that files can be checked without importing torch.
        from sheafprop.data.assembly import assemble
        from sheafprop.data.knowledge_graph import KnowledgeGraph
        from sheafprop.data.splits import hold_out_mask

        parts, files = self._read()
        notes = [
            f"{files[key].name} is empty" if key in files else f"{name} is missing"
            for key, name in FILES.items()
            if key not in parts
        ]
        notes += self._notes(files)
        if "train_valid" not in parts and self.hold_out:
            train = parts["train"]
            held = hold_out_mask(
                KnowledgeGraph.from_labels(train).triples, fraction=self.hold_out, seed=self.seed
            ).numpy()
            parts["train"], parts["train_valid"] = train[~held], train[held]
            notes.append(
                f"{count_noun(int(held.sum()), 'training triple')} held out for transductive "
                f"validation (seed {self.seed})"
            )
        return assemble(
            self.name,
            self.mode,
            **parts,  # type: ignore[arg-type]
            on_unknown_relation=self.on_unknown_relation,
            notes=notes,
        )

    def check(self) -> None:
        parts, files = self._read()
        for key, name in self._close_names(files).items():
            warnings.warn(f"{self.root}: {_close(key, name)}", stacklevel=2)
        train = parts.pop("train")
        check_labels(self.name, self.mode, train, parts, self.on_unknown_relation)

    def _read(self) -> tuple[dict[str, LabelTriples], dict[str, Path]]:
        """Reads all files; returns the sets that are not empty, and the existing files."""
        files = self._files()
        parts = {}
        known: set[str] = set()
        aliases: dict[str, str] = {}
        for key, path in files.items():
            empty = FILES[key] in _OPTIONAL
            read = read_located(path, options=self.reading, allow_empty=empty, known=known)
            triples = rename_rows(read, aliases).rows
            aliases |= read.aliases
            if len(triples):
                parts[key] = triples
                known.update(triples.ravel().tolist())
        return parts, files

    def _files(self) -> dict[str, Path]:
        """Finds the file of each set."""
        if self.root.is_file():
            raise DataError(
                f"{self.root}: the data folder is a file. {self._advise_split(self.root)}"
            )
        if not self.root.is_dir():
            kind = "is not a folder" if self.root.exists() else "does not exist"
            raise DataError(f"{self.root}: the data folder {kind}")
        files = {}
        for key, name in FILES.items():
            stem = Path(name).stem
            found = [
                p for p in sorted(self.root.iterdir()) if Path(plain_name(p.name)).stem == stem
            ]
            found = [p for p in found if p.is_file()]
            # Reading a file of another format raises an error.
            found = [p for p in found if Path(plain_name(p.name)).suffix in _ENDINGS] or found
            if len(found) > 1:
                names = ", ".join(path.name for path in found)
                raise DataError(f"{self.root}: {name} is ambiguous ({names}). Keep one of them")
            if found:
                files[key] = found[0]
        for key, name in FILES.items():
            if key not in files and (self.root / name).is_dir():
                raise DataError(f"{self.root / name} must be a file of triples (got a folder)")
        missing = [name for key, name in FILES.items() if name in _REQUIRED and key not in files]
        if missing:
            present = sorted(path.name for path in self.root.iterdir())
            names = ", ".join(present[:20]) + (", ..." if len(present) > 20 else "")
            close = [_close(key, name) for key, name in self._close_names(files).items()]
            graphs = [name for name in present if file_suffix(name) in _ENDINGS]
            if len(graphs) == 1 and not files and not close:
                close = [self._advise_split(self.root / graphs[0])]
            raise DataError(
                f"{self.root}: {' and '.join(missing)} missing. Expected "
                f"{' and '.join(_REQUIRED)}, optionally {', '.join(_OPTIONAL)} "
                f"(found {names or 'nothing'})" + "".join(f"; {text}" for text in close)
            )
        return files

    def _advise_split(self, graph: Path) -> str:
        """Returns the commands that split one file of triples and train on it."""
        out = f"{Path(plain_name(graph.name)).stem}_split"
        options = {
            "columns": self.reading.columns and ",".join(map(str, self.reading.columns)),
            "header": {None: None, True: "yes", False: "no"}[self.reading.header],
            "delimiter": self.reading.delimiter,
            "input-format": None if self.reading.format == "auto" else self.reading.format,
        }
        given = [f"--{name}={value}" for name, value in options.items() if value is not None]
        split = ["sheafprop", "split", str(graph), "--out", out, "--mode", self.mode, *given]
        fit = ["sheafprop", "fit", "--config", "experiment/folder", "--data.root", out]
        return (
            "To train on a single graph, split it first: "
            f"{shlex.join(split)} && {shlex.join([*fit, '--data.mode', self.mode])}"
        )

    def _close_names(self, files: dict[str, Path]) -> dict[str, str]:
        """Returns missing sets, each with a file whose name is similar."""
        others = [p.name for p in sorted(self.root.iterdir()) if p not in files.values()]
        stems = {name: Path(plain_name(name)).stem for name in others if not name.startswith(".")}
        found = {}
        for key, wanted in FILES.items():
            stem = Path(wanted).stem
            near = [name for name, other in stems.items() if _words(other) == _words(stem)]
            # A name may be more similar to that of another set.
            near += [name for name, other in stems.items() if _nearest(other) == stem]
            if key not in files and near:
                found[key] = near[0]
        return found

    def _notes(self, files: dict[str, Path]) -> list[str]:
        close = self._close_names(files)
        every = [p.name for p in sorted(self.root.iterdir()) if not p.name.startswith(".")]
        used = {SPLIT_RECORD, *(path.name for path in files.values())}
        others = [name for name in every if name not in used and name not in close.values()]
        notes = [_close(key, name) for key, name in close.items()]
        if others:
            names = ", ".join(others[:5]) + (", ..." if len(others) > 5 else "")
            notes.append(f"{count_noun(len(others), 'other file')} ignored ({names})")
        return notes


def _close(key: str, name: str) -> str:
    return f"{name!r} is ignored; to use it, rename it to {FILES[key]}"


def _words(stem: str) -> list[str]:
    parts = re.findall(r"[^\W_]+", stem.lower())
    return sorted(_WORDS.get(part, part) for part in parts)


def _nearest(stem: str) -> str | None:
    stems = [Path(name).stem for name in FILES.values()]
    return next(iter(difflib.get_close_matches(stem.lower(), stems, 1, _CLOSE)), None)
