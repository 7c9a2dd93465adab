"""Small graphs from the files of an installed PyKEEN."""

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sheafprop.data.datasets.inductive_dataset import InductiveDataset
from sheafprop.data.triples import LabelTriples, read_triples
from sheafprop.errors import DataError

if TYPE_CHECKING:
    from sheafprop.data.inductive_data import InductiveData

NAMES = ("umls", "kinships", "nations")


class PykeenDataset(InductiveDataset):
    r"""UMLS, Kinships or Nations from the files of the ``pykeen`` package, split semi-inductively.

    The triples of all files are split by :func:`~sheafprop.data.semi_inductive_split`. A tenth of
    the training triples is held out for transductive validation. PyKEEN is not imported.

    Args:
        name: ``"umls"``, ``"kinships"`` or ``"nations"``.
        seed: Random seed of the split.
        new_fraction: Fraction of the entities that are new.

    Raises:
        ValueError: If the name is unknown.
    """

    def __init__(self, name: str = "umls", *, seed: int = 0, new_fraction: float = 0.25) -> None:
        if name not in NAMES:
            raise ValueError(f"'name' must be one of {', '.join(NAMES)} (got {name!r})")
        super().__init__(name)
        self.seed = seed
        self.new_fraction = new_fraction

    def load(self) -> "InductiveData":
        # Imported here, so that files can be checked without importing torch.
        from sheafprop.data.assembly import assemble
        from sheafprop.data.knowledge_graph import KnowledgeGraph
        from sheafprop.data.splits import hold_out_mask, semi_inductive_split

        labels = self._read()
        graph = KnowledgeGraph.from_labels(labels)
        triples = graph.triples
        split = semi_inductive_split(
            triples, len(graph.entities or ()), new_fraction=self.new_fraction, seed=self.seed
        )
        train = labels[split.train_mask.numpy()]
        held = hold_out_mask(triples[split.train_mask], fraction=0.1, seed=self.seed).numpy()
        notes = [f"semi-inductive split of all {len(labels)} triples with seed {self.seed}"]
        dropped = labels[split.dropped_mask.numpy()]
        if len(dropped):
            names = sorted(set(dropped[:, 1]))
            notes.append(
                f"{len(dropped)} triples of {len(names)} relations were dropped, since these "
                f"relations cannot keep a training triple (first: {names[0]!r})"
            )
        return assemble(
            self.name,
            "semi-inductive",
            train=train[~held],
            train_valid=train[held],
            observed=labels[split.observed_mask.numpy()],
            valid=labels[split.valid_mask.numpy()],
            test=labels[split.test_mask.numpy()],
            notes=notes,
        )

    def check(self) -> None:
        self._read()

    def _read(self) -> LabelTriples:
        folder = self._folder()
        files = [folder / f"{part}.txt" for part in ("train", "valid", "test")]
        return np.concatenate(
            [read_triples(file, columns=(0, 1, 2), header=False) for file in files]
        )

    def _folder(self) -> Path:
        spec = importlib.util.find_spec("pykeen")  # a top-level name: nothing is imported
        for location in (spec and spec.submodule_search_locations) or ():
            folder = Path(location) / "datasets" / self.name
            if (folder / "train.txt").is_file():
                return folder
        state = "is not installed" if spec is None else f"holds no files of {self.name!r}"
        raise DataError(
            f"the files of {self.name!r} are part of PyKEEN, which {state}. "
            'Install it: pip install "sheafprop[pykeen]"'
        )
