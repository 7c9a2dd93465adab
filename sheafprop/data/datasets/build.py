"""Builds a data set from options."""

import os
from typing import Any, Literal

from sheafprop.data.datasets.folder import FolderDataset
from sheafprop.data.datasets.grail import ENVIRONMENT, GraILDataset
from sheafprop.data.datasets.inductive_dataset import InductiveDataset
from sheafprop.data.datasets.pykeen import PykeenDataset
from sheafprop.data.label_checks import Mode


def build_dataset(
    dataset: str = "grail",
    *,
    name: str | None = None,
    root: str | None = None,
    mode: Mode | None = None,
    hold_out: float = 0.0,
    on_unknown_relation: Literal["error", "drop"] = "error",
    seed: int = 0,
    columns: Any = None,
    header: Any = None,
    delimiter: str | None = None,
    input_format: Any = None,
    prefixes: Any = None,
) -> InductiveDataset:
    r"""Builds a data set from the options of a run.

    Args:
        dataset: ``"grail"``, ``"pykeen"`` or ``"folder"``.
        name: The name of the graph; not used by ``"folder"``.
        root: The folder of the files.
        mode: ``"semi-inductive"`` or ``"fully-inductive"``.
        hold_out: See :class:`FolderDataset`.
        on_unknown_relation: See :class:`FolderDataset`.
        seed: Random seed of splits.
        columns, header, delimiter, input_format, prefixes: Options of reading for ``"folder"``, see
            :func:`~sheafprop.data.read_triples`.

    Raises:
        ValueError: If an option is missing or does not apply to the data set.
    """
    if dataset == "folder":
        if root is None or mode is None:
            raise ValueError(
                "data.dataset=folder needs data.root (the folder) and data.mode ('semi-inductive' "
                f"or 'fully-inductive') (got root={root!r}, mode={mode!r})"
            )
        return FolderDataset(
            root,
            mode,
            on_unknown_relation=on_unknown_relation,
            hold_out=hold_out,
            seed=seed,
            columns=columns,
            header=header,
            delimiter=delimiter,
            format=input_format,
            prefixes=prefixes,
        )
    reading = {"columns": columns, "header": header, "delimiter": delimiter}
    reading |= {"input_format": input_format, "prefixes": prefixes}
    given = [name for name, value in reading.items() if value is not None]
    if given:
        raise ValueError(
            f"data.{given[0]} applies only to data.dataset=folder (got dataset={dataset!r})"
        )
    if dataset not in ("grail", "pykeen"):
        raise ValueError(f"data.dataset must be 'grail', 'pykeen' or 'folder' (got {dataset!r})")
    if name is None:
        raise ValueError(f"data.dataset={dataset} needs data.name, the name of the graph")
    if dataset == "grail":
        place = root if root is not None else os.environ.get(ENVIRONMENT)
        return GraILDataset(place, name, mode=mode or "fully-inductive")
    if mode not in (None, "semi-inductive"):
        raise ValueError(f"data.dataset=pykeen is split semi-inductively (got mode={mode!r})")
    return PykeenDataset(name, seed=seed)
