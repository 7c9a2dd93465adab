"""A folder of the user's own files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sheafprop.data.datasets.inductive_dataset import InductiveDataset
from sheafprop.data.label_checks import MODES, Mode, check_choice, check_labels, count_noun
from sheafprop.data.triples import LabelTriples, read_triples
from sheafprop.errors import DataError

if TYPE_CHECKING:
    from sheafprop.data.inductive_data import InductiveData

#: What each file holds; the first two are needed.
_FILES = {
    "train": "train.txt",
    "observed": "inference.txt",
    "train_valid": "valid.txt",
    "valid": "inference_valid.txt",
    "test": "inference_test.txt",
}
_REQUIRED = ("train.txt", "inference.txt")
_OPTIONAL = ("valid.txt", "inference_valid.txt", "inference_test.txt")


class FolderDataset(InductiveDataset):
    r"""Triples in a folder: ``train.txt`` and ``inference.txt``, and up to three more files.

    ``valid.txt`` holds transductive validation triples of the training graph,
    ``inference_valid.txt`` and ``inference_test.txt`` triples to predict in the inference graph.
    All files are read by :func:`~sheafprop.data.read_triples`; the last three may be missing or
    empty.

    Args:
        root: The folder; ``~`` is expanded, a relative path starts at the current folder.
        mode: ``"semi-inductive"``: entities that occur in ``train.txt`` are known in
            ``inference.txt``, and the training triples are part of the inference graph.
            ``"fully-inductive"``: all entities of ``inference.txt`` are new.
        on_unknown_relation: ``"error"`` or ``"drop"``, see :func:`~sheafprop.data.assemble`.
        on_overlap: ``"warn"`` or ``"error"``, likewise.
        hold_out: Without ``valid.txt``, the share of the training triples to hold out for
            transductive validation, so that every entity and relation keeps one; 0 for none.
        seed: The seed of that choice.

    Raises:
        ValueError: If an argument is out of its range.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        mode: Mode,
        *,
        on_unknown_relation: Literal["error", "drop"] = "error",
        on_overlap: Literal["warn", "error"] = "warn",
        hold_out: float = 0.0,
        seed: int = 0,
    ) -> None:
        check_choice("mode", mode, MODES)
        if not 0 <= hold_out < 1:
            raise ValueError(f"'hold_out' must be at least 0 and below 1 (got {hold_out})")
        # Resolved at once, so that a later change of the current folder does not matter.
        self.root = Path(root).expanduser().absolute()
        super().__init__(self.root.name)
        self.mode: Mode = mode
        self.on_unknown_relation: Literal["error", "drop"] = on_unknown_relation
        self.on_overlap: Literal["warn", "error"] = on_overlap
        self.hold_out = hold_out
        self.seed = seed

    def load(self) -> InductiveData:
        # Only here, so that the files can be checked without torch.
        from sheafprop.data.inductive_data import assemble
        from sheafprop.data.knowledge_graph import KnowledgeGraph
        from sheafprop.data.splits import hold_out_mask

        parts = self._read()
        notes = [
            f"{name} is empty" if (self.root / name).exists() else f"there is no {name}"
            for key, name in _FILES.items()
            if key not in parts
        ]
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
            on_overlap=self.on_overlap,
            notes=notes,
        )

    def check(self) -> None:
        parts = self._read()
        train = parts.pop("train")
        check_labels(self.name, self.mode, train, parts, self.on_unknown_relation)

    def _read(self) -> dict[str, LabelTriples]:
        """The triples of all files that there are and that hold some."""
        self._check_files()
        parts = {}
        for key, name in _FILES.items():
            path = self.root / name
            if name in _REQUIRED or path.exists():
                triples = read_triples(path, allow_empty=name in _OPTIONAL)
                if len(triples):
                    parts[key] = triples
        return parts

    def _check_files(self) -> None:
        if not self.root.is_dir():
            kind = "is not a folder" if self.root.exists() else "does not exist"
            raise DataError(f"The data folder {kind} (got {self.root})")
        found = sorted(path.name for path in self.root.iterdir())
        missing = [name for name in _REQUIRED if name not in found]
        if missing:
            names = ", ".join(found[:20]) + (", ..." if len(found) > 20 else "")
            raise DataError(
                f"{self.root}: {' and '.join(missing)} missing. Expected "
                f"{' and '.join(_REQUIRED)}, optionally {', '.join(_OPTIONAL)} "
                f"(found {names or 'nothing'})"
            )
