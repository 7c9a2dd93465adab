"""A folder of the user's own files."""

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

#: What each file holds; the first two are needed.
FILES = {
    "train": "train.txt",
    "observed": "inference.txt",
    "train_valid": "valid.txt",
    "valid": "inference_valid.txt",
    "test": "inference_test.txt",
}
#: What ``sheafprop split`` leaves beside the files that it writes.
SPLIT_RECORD = "split.json"
_REQUIRED = ("train.txt", "inference.txt")
_OPTIONAL = ("valid.txt", "inference_valid.txt", "inference_test.txt")
#: Endings of files that may hold a part; a compressed one has one more, as ``.tsv.gz``.
_ENDINGS = (".txt", ".tsv", ".csv", ".parquet", *GRAPH_ENDINGS)
#: Other words for those that the names of the files are made of.
_WORDS = {
    "training": "train",
    "testing": "test",
    **dict.fromkeys(("validation", "validate", "val", "dev"), "valid"),
    **dict.fromkeys(("ind", "inductive", "infer", "observed"), "inference"),
}
_CLOSE = 0.85


class FolderDataset(InductiveDataset):
    r"""Triples in a folder: ``train.txt`` and ``inference.txt``, and up to three more files.

    ``valid.txt`` holds transductive validation triples of the training graph,
    ``inference_valid.txt`` and ``inference_test.txt`` triples to predict in the inference graph.
    All files are read by :func:`~sheafprop.data.read_triples`; the last three may be missing or
    empty. A file may also have the ending of another format, or be compressed. Other files
    are left alone; one whose name is close to one that is missing gives a warning.

    Args:
        root: The folder; ``~`` is expanded, a relative path starts at the current folder.
        mode: ``"semi-inductive"``: entities that occur in ``train.txt`` are known in
            ``inference.txt``, and the training triples are part of the inference graph.
            ``"fully-inductive"``: all entities of ``inference.txt`` are new.
        on_unknown_relation: ``"error"`` or ``"drop"``, see :func:`~sheafprop.data.assemble`.
        hold_out: Without ``valid.txt``, the share of the training triples to hold out for
            transductive validation, so that every entity and relation keeps one; 0 for none.
        seed: The seed of that choice.
        columns, header, delimiter, format, prefixes: How all files are read, see
            :func:`~sheafprop.data.read_triples`.

    Raises:
        ValueError: If an argument is out of its range.
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
        # Resolved at once, so that a later change of the current folder does not matter.
        self.root = Path(root).expanduser().absolute()
        super().__init__(self.root.name)
        self.mode: Mode = mode
        self.on_unknown_relation: Literal["error", "drop"] = on_unknown_relation
        self.hold_out = hold_out
        self.seed = seed
        self.reading = ReadOptions.of(columns, header, delimiter, format, prefixes)

    def load(self) -> "InductiveData":
        # Only here, so that the files can be checked without torch.
        from sheafprop.data.assembly import assemble
        from sheafprop.data.knowledge_graph import KnowledgeGraph
        from sheafprop.data.splits import hold_out_mask

        parts, files = self._read()
        notes = [
            f"{files[key].name} is empty" if key in files else f"there is no {name}"
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
        """The triples of all files that hold some, and the files that there are."""
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
        """The file of each part that there is."""
        if self.root.is_file():
            raise DataError(
                f"The data folder is a file (got {self.root}). {self._advise_split(self.root)}"
            )
        if not self.root.is_dir():
            kind = "is not a folder" if self.root.exists() else "does not exist"
            raise DataError(f"The data folder {kind} (got {self.root})")
        files = {}
        for key, name in FILES.items():
            stem = Path(name).stem
            found = [
                p for p in sorted(self.root.iterdir()) if Path(plain_name(p.name)).stem == stem
            ]
            found = [p for p in found if p.is_file()]
            # Any other format is refused by name when it is read.
            found = [p for p in found if Path(plain_name(p.name)).suffix in _ENDINGS] or found
            if len(found) > 1:
                names = ", ".join(path.name for path in found)
                raise DataError(f"{self.root}: several files may be {name} ({names}). Keep one")
            if found:
                files[key] = found[0]
        for key, name in FILES.items():
            if key not in files and (self.root / name).is_dir():
                raise DataError(f"{self.root / name} is a folder: it must be a file of triples")
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
        """The commands that make a run of one file of triples."""
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
            "Split the graph into the files of a run first, and train on these: "
            f"{shlex.join(split)} && {shlex.join([*fit, '--data.mode', self.mode])}"
        )

    def _close_names(self, files: dict[str, Path]) -> dict[str, str]:
        """Parts without a file, and the file of each whose name is close."""
        others = [p.name for p in sorted(self.root.iterdir()) if p not in files.values()]
        stems = {name: Path(plain_name(name)).stem for name in others if not name.startswith(".")}
        found = {}
        for key, wanted in FILES.items():
            stem = Path(wanted).stem
            near = [name for name, other in stems.items() if _words(other) == _words(stem)]
            # By spelling, a name may be close to that of another part: it is not taken then.
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
            notes.append(f"{count_noun(len(others), 'other file')} not read ({names})")
        return notes


def _close(key: str, name: str) -> str:
    return f"'{name}' was not read: if it is meant, call it {FILES[key]}"


def _words(stem: str) -> list[str]:
    parts = re.findall(r"[^\W_]+", stem.lower())
    return sorted(_WORDS.get(part, part) for part in parts)


def _nearest(stem: str) -> str | None:
    stems = [Path(name).stem for name in FILES.values()]
    return next(iter(difflib.get_close_matches(stem.lower(), stems, 1, _CLOSE)), None)
