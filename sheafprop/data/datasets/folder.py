"""A folder of the user's own files."""

import os
from pathlib import Path
from typing import Literal

from sheafprop.data.datasets.inductive_dataset import InductiveDataset
from sheafprop.data.inductive_data import InductiveData, Mode, assemble
from sheafprop.data.knowledge_graph import KnowledgeGraph
from sheafprop.data.splits import hold_out_mask
from sheafprop.data.triples import LabelTriples, read_triples
from sheafprop.errors import DataError

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
        # Resolved at once, so that a later change of the current folder does not matter.
        self.root = Path(root).expanduser().absolute()
        super().__init__(self.root.name)
        self.mode: Mode = mode
        self.on_unknown_relation: Literal["error", "drop"] = on_unknown_relation
        self.on_overlap: Literal["warn", "error"] = on_overlap
        self.hold_out = hold_out
        self.seed = seed

    def load(self) -> InductiveData:
        self._check_files()
        train = read_triples(self.root / "train.txt")
        observed = read_triples(self.root / "inference.txt")
        notes: list[str] = []
        train_valid = self._optional("valid.txt", notes)
        valid = self._optional("inference_valid.txt", notes)
        test = self._optional("inference_test.txt", notes)
        if train_valid is None and self.hold_out:
            held = hold_out_mask(
                KnowledgeGraph.from_labels(train).triples, fraction=self.hold_out, seed=self.seed
            ).numpy()
            train, train_valid = train[~held], train[held]
            notes.append(
                f"{int(held.sum())} training triples were held out for transductive validation "
                f"(seed {self.seed})"
            )
        return assemble(
            self.name,
            self.mode,
            train=train,
            observed=observed,
            train_valid=train_valid,
            valid=valid,
            test=test,
            on_unknown_relation=self.on_unknown_relation,
            on_overlap=self.on_overlap,
            notes=notes,
        )

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

    def _optional(self, name: str, notes: list[str]) -> LabelTriples | None:
        if not (self.root / name).exists():
            notes.append(f"there is no {name}")
            return None
        triples = read_triples(self.root / name, allow_empty=True)
        if len(triples) == 0:
            notes.append(f"{name} is empty")
            return None
        return triples
