"""Splits one graph into the files of a run."""

import os
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sheafprop.checks import agree, check_choice, check_integer, count_noun
from sheafprop.data.datasets.folder import FILES, SPLIT_RECORD
from sheafprop.data.label_checks import MODES, Mode, format_counts, lookalike_notes
from sheafprop.data.splits import (
    check_fractions,
    disjoint_split,
    divide_triples,
    hold_out_mask,
    semi_inductive_split,
)
from sheafprop.data.triples import LabelTriples, as_label_triples, format_triples
from sheafprop.errors import DataError
from sheafprop.files import check_folder_target, new_folder, storage_errors, write_bytes, write_json
from sheafprop.seeding import combine_keys, label_keys, seeded_uniform
from sheafprop.version import __version__

#: The default of ``new_fraction``.
NEW_FRACTIONS = {"semi-inductive": 0.25, "fully-inductive": 0.35}


@dataclass(frozen=True, eq=False)
class GraphSplit:
    r"""One graph, split by :func:`split_graph`: label triples of shape ``[m, 3]``, sorted.

    Args:
        mode: ``"semi-inductive"`` or ``"fully-inductive"``.
        train: The training triples.
        train_valid: Triples of the training graph to predict, for transductive validation.
        observed: The observed triples of new entities.
        valid: Triples of new entities to predict, for validation.
        test: Triples of new entities to predict, for the test.
        report: Options and counts as plain values.
    """

    mode: Mode
    train: LabelTriples
    train_valid: LabelTriples
    observed: LabelTriples
    valid: LabelTriples
    test: LabelTriples
    report: dict[str, Any]

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        r"""Writes a folder that :class:`~sheafprop.data.FolderDataset` reads.

        The folder holds ``train.txt``, ``valid.txt``, ``inference.txt``, ``inference_valid.txt``
        and ``inference_test.txt``, except for empty sets, and the report as ``split.json``. It is
        written completely or not at all.

        Args:
            folder: The folder. Missing parents are created.
            overwrite: Whether to replace an existing split.

        Raises:
            ValueError: If the folder exists and ``overwrite`` is not set, or it holds other files.
            DataError: If a label cannot be written to a text file.
            StorageError: If writing fails. An existing split is then unchanged.
        """
        place = Path(folder).expanduser()
        contents = {
            name: format_triples(getattr(self, key), str(place / name))
            for key, name in FILES.items()
        }
        with storage_errors(folder, "written"):
            check_split_target(folder, overwrite)
            with new_folder(Path(os.path.realpath(place)), replace=overwrite) as temporary:
                for name, content in contents.items():
                    if content:
                        write_bytes(temporary / name, content)
                record = {"library": f"sheafprop {__version__}", **self.report}
                write_json(temporary / SPLIT_RECORD, record)
        return place

    def summary(self) -> str:
        r"""Returns the counts of the graph, of all parts and of dropped triples as text."""
        report = self.report
        graph, dropped = report["graph"], report["dropped"]
        lines = [f"{self.mode} split, seed {report['seed']}", f"graph: {_size(graph)}"]
        if copies := graph["copies"]:
            lines.append(f"  {count_noun(copies, 'duplicate')} removed")
        if dropped["beyond_max_triples"]:
            lines.append(f"sample: {_size(report['sample'])}")
        lines += [f"  {name + ':':21}{_size(part)}" for name, part in report["parts"].items()]
        lines.append(f"new entities: {report['new_entities']:,}")
        unseen = report["unseen_relations"]
        reasons = {
            "beyond_max_triples": "outside the sample of --max-triples",
            "between_graphs": "between an old and a new entity",
            "unseen_relation": f"of {count_noun(len(unseen), 'relation')} without a training "
            f"triple ({format_counts(Counter(unseen))})",
        }
        total = sum(dropped.values())
        lines.append(f"dropped: {count_noun(total, 'triple')}")
        lines += [f"  {dropped[key]:,} {text}" for key, text in reasons.items() if dropped[key]]
        if lost := report["lost_entities"]:
            text = f"{count_noun(lost, 'entity')} of the graph {agree(lost, 'has', 'have')}"
            lines.append(f"  {text} no triple in any part")
        return "\n".join([*lines, *(f"note: {note}" for note in report["notes"])])

    def __repr__(self) -> str:
        return f"{self.__class__.__name__}({self.mode}, {len(self.train)} training triples)"


def split_graph(
    triples: Iterable[Sequence[Any]],
    mode: Mode,
    *,
    new_fraction: float | None = None,
    observed_fraction: float = 0.8,
    valid_fraction: float = 0.1,
    max_triples: int | None = None,
    seed: int = 0,
) -> GraphSplit:
    r"""Randomly splits one graph into a training graph and triples of new entities.

    In the mode ``"semi-inductive"``, triples among old entities are the training graph, and new
    entities have triples with old entities and with each other, see
    :func:`~sheafprop.data.semi_inductive_split`. In the mode ``"fully-inductive"``, regions of the
    graph become the inference graph, so that the two graphs share no entity. Triples between them
    are dropped, as are triples of relations without a training triple. In both modes, every new
    entity keeps an observed triple, and every entity and relation of the training graph keeps a
    training triple.

    If the graph has more than ``max_triples`` triples, it is first reduced to the triples among a
    sample of entities. The sample grows breadth first from a random entity and visits neighbors in
    random order, until the next entity would exceed the limit.

    Duplicates are removed. The split depends only on the set of triples, the options and the seed,
    not on the order of the triples or on the machine.

    Args:
        triples: Label triples ``(head, relation, tail)``.
        mode: ``"semi-inductive"`` or ``"fully-inductive"``.
        new_fraction: Fraction of the entities that are new. (default: 0.25 in the semi-inductive
            and 0.35 in the fully inductive mode)
        observed_fraction: Fraction of the triples of new entities that are observed.
        valid_fraction: Fraction of these triples used for validation, and fraction of the training
            triples used for transductive validation. The remaining ones are test triples.
        max_triples: Maximum number of triples.
        seed: Random seed.

    Raises:
        DataError: If the graph is too small, or no test triple is left.
        ValueError: If an option is out of its range.

    Example:
        >>> rows = [(f"e{i}", f"r{k}", f"e{(i + k) % 50}") for i in range(50) for k in (1, 2, 3)]
        >>> split_graph(rows, "semi-inductive")
        GraphSplit(semi-inductive, 77 training triples)
    """
    check_choice("mode", mode, MODES)
    check_integer("seed", seed)
    if max_triples is not None:
        check_integer("max_triples", max_triples, 1)
    new_fraction = NEW_FRACTIONS[mode] if new_fraction is None else new_fraction
    check_fractions(new_fraction, observed_fraction, valid_fraction)
    labels = as_label_triples(triples)
    if len(labels) == 0:
        raise DataError("the graph to split has no triples")
    entities, relations = sorted(set(labels[:, [0, 2]].ravel())), sorted(set(labels[:, 1]))
    # Sorted labels and ids make the split independent of the order of the triples.
    whole = np.unique(_encode(labels, entities, relations), axis=0)
    entity_keys, relation_keys = label_keys(entities), label_keys(relations)
    rows = whole
    if max_triples is not None and len(whole) > max_triples:
        chosen = _choose_entities(whole, entity_keys, max_triples, seed)
        rows = whole[chosen[whole[:, 0]] & chosen[whole[:, 2]]]

    ids = torch.from_numpy(rows)
    part = np.full(len(rows), 4)
    if mode == "semi-inductive":
        semi = semi_inductive_split(
            ids,
            len(entities),
            new_fraction=new_fraction,
            observed_fraction=observed_fraction,
            valid_fraction=valid_fraction,
            seed=seed,
        )
        masks = (semi.train_mask, semi.observed_mask, semi.valid_mask, semi.test_mask)
        for number, mask in enumerate(masks):
            part[mask.numpy()] = number
    else:
        disjoint = disjoint_split(ids, len(entities), new_fraction=new_fraction, seed=seed)
        part[disjoint.train_mask.numpy()] = 0
        apart = np.flatnonzero(disjoint.new_mask.numpy())
        head, relation, tail = rows[apart].T
        keys = combine_keys(4, entity_keys[head], relation_keys[relation], entity_keys[tail])
        apart = apart[np.argsort(seeded_uniform(keys, 1, seed)[:, 0])]
        new = disjoint.new_entity_mask.numpy()
        part[apart] = divide_triples(rows[apart], new, observed_fraction, valid_fraction)
    train = rows[part == 0]
    held = hold_out_mask(torch.from_numpy(train), fraction=valid_fraction, seed=seed).numpy()
    parts = {
        "train": train[~held],
        "train_valid": train[held],
        "observed": rows[part == 1],
        "valid": rows[part == 2],
        "test": rows[part == 3],
    }
    if len(parts["test"]) == 0:
        raise DataError(
            f"no test triple is left: {count_noun(len(parts['observed']), 'triple')} of new "
            f"entities are observed and {len(parts['valid']):,} are used for validation. Lower "
            "'observed_fraction' or 'valid_fraction', or use a larger graph. If new entities have "
            "one triple each, as in a tree, none can be predicted: use the whole graph as train.* "
            "of a folder, and the facts of new entities as inference.*"
        )

    dropped = rows[part == 4]
    known = np.isin(dropped[:, 1], train[:, 1])
    unseen = Counter(relations[i] for i in dropped[~known, 1])
    new_entities = np.setdiff1d(parts["observed"][:, [0, 2]], train[:, [0, 2]])
    placed = np.unique(rows[part < 4][:, [0, 2]])
    report = {
        "mode": mode,
        "seed": int(seed),
        "new_fraction": float(new_fraction),
        "observed_fraction": float(observed_fraction),
        "valid_fraction": float(valid_fraction),
        "max_triples": None if max_triples is None else int(max_triples),
        "graph": {**_counts(whole), "copies": len(labels) - len(whole)},
        "sample": _counts(rows),
        "parts": {FILES[key]: _counts(ids) for key, ids in parts.items()},
        "new_entities": len(new_entities),
        "dropped": {
            "beyond_max_triples": len(whole) - len(rows),
            "between_graphs": int(known.sum()),
            "unseen_relation": int((~known).sum()),
        },
        "unseen_relations": {
            label: unseen[label] for label in sorted(unseen, key=lambda x: (-unseen[x], x))
        },
        "lost_entities": len(np.unique(rows[:, [0, 2]])) - len(placed),
        "notes": lookalike_notes(
            [entities[i] for i in placed], [relations[i] for i in np.unique(rows[part < 4][:, 1])]
        ),
    }
    names = [np.array(kind, dtype=object) for kind in (entities, relations, entities)]
    return GraphSplit(
        mode=mode,
        report=report,
        **{
            key: np.stack([name[i] for name, i in zip(names, ids.T, strict=True)], axis=1)
            for key, ids in parts.items()
        },
    )


def check_split_target(folder: str | os.PathLike[str], overwrite: bool = False) -> None:
    """Checks that a split can be written to a folder.

    Args:
        folder: The folder.
        overwrite: Whether an existing split may be replaced.

    Raises:
        ValueError: If the folder holds something that must not be replaced.
    """
    check_folder_target(
        folder, overwrite, names=FILES.values(), record=SPLIT_RECORD, what="a split"
    )


def _encode(labels: LabelTriples, entities: list[str], relations: list[str]) -> np.ndarray:
    columns = []
    for column, kind in enumerate((entities, relations, entities)):
        number = {label: i for i, label in enumerate(kind)}
        columns.append([number[label] for label in labels[:, column]])
    return np.array(columns, dtype=np.int64).T


def _choose_entities(
    triples: np.ndarray, keys: np.ndarray, max_triples: int, seed: int
) -> np.ndarray:
    """Samples entities breadth first, up to a maximum number of triples among them."""
    draw = seeded_uniform(combine_keys(5, keys), 1, seed)[:, 0]
    ends = np.concatenate([triples[:, 0], triples[:, 2]])
    others = np.concatenate([triples[:, 2], triples[:, 0]])
    order = np.lexsort((draw[others], ends))
    others = others[order]
    start = np.searchsorted(ends[order], np.arange(len(keys) + 1))
    chosen = np.zeros(len(keys), dtype=bool)
    listed = chosen.copy()
    count = 0
    for root in np.argsort(draw):
        if listed[root]:
            continue
        listed[root] = True
        queue = deque([root])
        while queue:
            entity = queue.popleft()
            near = others[start[entity] : start[entity + 1]]
            # Loops are listed twice.
            count += int(chosen[near].sum()) + int((near == entity).sum()) // 2
            if count > max_triples:
                return chosen
            chosen[entity] = True
            queue.extend(dict.fromkeys(near[~listed[near]].tolist()))
            listed[near] = True
    return chosen


def _counts(ids: np.ndarray) -> dict[str, int]:
    return {
        "triples": len(ids),
        "entities": len(np.unique(ids[:, [0, 2]])),
        "relations": len(np.unique(ids[:, 1])),
    }


def _size(counts: dict[str, int]) -> str:
    nouns = {"triples": "triple", "relations": "relation", "entities": "entity"}
    triples, relations, entities = (count_noun(counts[key], noun) for key, noun in nouns.items())
    return f"{triples} of {relations} among {entities}"
