"""Inspects files of triples and models: counts, components, duplicates, overlaps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from sheafprop.checks import count_noun, quote
from sheafprop.data import (
    Vocabulary,
    connected_components,
    count_duplicates,
    read_triples,
    triple_codes,
)
from sheafprop.data.file_kinds import GRAPH_ENDINGS, file_suffix
from sheafprop.data.label_checks import format_lookalikes, lookalikes
from sheafprop.data.triples import LabelTriples, holds_triples
from sheafprop.errors import DataError, NotTriplesError
from sheafprop.pretrained.sheaf_model import SheafModel

_SUFFIXES = (".txt", ".tsv", ".csv", ".parquet", *GRAPH_ENDINGS)
#: Files of a data folder and their sets, see :class:`~sheafprop.data.FolderDataset`.
_TRAIN, _OBSERVED = "train", "inference"
_PARTS = (_TRAIN, _OBSERVED, "valid", "inference_valid", "inference_test")
_EXAMPLES = 5
# Maximum number of pairs of relations checked for inverses, most frequent overlaps first.
_INVERSE_SHARE = 0.8


@dataclass(frozen=True)
class GraphInspection:
    """The results of inspecting files of triples.

    Args:
        files (dict): For each file, the numbers of triples, entities, relations, duplicates,
            self-loops, pairs connected in both directions and components, and the sizes of the
            largest components.
        graph (dict): For the inference graph, if there is one, the numbers of new entities, known
            entities and components, the number of known entities (anchors) of the largest
            components, and the number of components by number of anchors.
        overlaps (list of dict): Triples, swapped pairs and labels shared by two files.
        unseen_relations (dict): Relations without training triples, with their number per file.
        inverse_relations (list of dict): Relations whose pairs mostly occur swapped in another one.
        lookalikes (dict): Labels of ``entities`` and ``relations`` that differ from an earlier
            label only in case, white space or Unicode form, with that label.
        relations (dict): Number of triples of each relation, over all files.
        degrees (list of int): Degree of each entity, over all files.
        model (dict, optional): Description of the model, if the triples are its facts.
        skipped (list of str): Files of the folder without triples.
    """

    files: dict[str, dict[str, Any]]
    graph: dict[str, Any] | None
    overlaps: list[dict[str, Any]]
    unseen_relations: dict[str, dict[str, int]]
    inverse_relations: list[dict[str, Any]]
    lookalikes: dict[str, dict[str, str]]
    relations: dict[str, int]
    degrees: list[int] = field(repr=False)
    model: dict[str, Any] | None = None
    skipped: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Returns all results as plain values, degrees as a histogram."""
        return {
            **({"model": self.model} if self.model else {}),
            "files": self.files,
            "skipped": self.skipped,
            "graph": self.graph,
            "overlaps": self.overlaps,
            "unseen_relations": self.unseen_relations,
            "inverse_relations": self.inverse_relations,
            "lookalikes": self.lookalikes,
            "relations": self.relations,
            "degrees": _histogram(torch.tensor(self.degrees, dtype=torch.int64)),
        }

    def summary(self) -> str:
        """Returns the results as text."""
        lines = []
        if self.model:
            lines.append("model")
            for key, value in self.model.items():
                if value is None:
                    continue
                parts = value.items() if isinstance(value, dict) else ()
                text = ", ".join(f"{name}: {part}" for name, part in parts)
                lines.append(f"  {key.replace('_', ' ')}: {text if parts else value}")
        for name, counts in self.files.items():
            lines.append(name)
            lines += [
                f"  {key.replace('_', ' ')}: {value}"
                for key, value in counts.items()
                if value not in ([], None)
            ]
        if self.skipped:
            lines.append(f"no triples in {', '.join(self.skipped)}: skipped")
        if self.graph:
            lines.append("inference graph")
            lines += [
                f"  {k.replace('_', ' ')}: {_format_histogram(v) if isinstance(v, dict) else v}"
                for k, v in self.graph.items()
            ]
        for overlap in self.overlaps:
            found, (first, second) = (
                _format_count(overlap["count"], overlap["what"]),
                overlap["files"],
            )
            example = ", ".join(map(quote, overlap["example"]))
            lines.append(f"{found} in both {first} and {second} (first: {example})")
        for name, counts in self.unseen_relations.items():
            named = ", ".join(f"{quote(k)}: {v}" for k, v in list(counts.items())[:_EXAMPLES])
            few = count_noun(len(counts), "relation")
            lines.append(f"{name}: without training triple: {few} ({named})")
        for pair in self.inverse_relations[:_EXAMPLES]:
            is_own = pair["relation"] == pair["inverse"]
            kind = "symmetric" if is_own else f"like the inverse of {quote(pair['inverse'])}"
            lines.append(
                f"{quote(pair['relation'])} looks {kind}: {100 * pair['share']:.0f} % of its pairs "
                "occur swapped"
            )
        if len(self.inverse_relations) > _EXAMPLES:
            more = len(self.inverse_relations) - _EXAMPLES
            lines.append(f"and {more} more such pairs of relations (--json has all)")
        lines += [format_lookalikes(kind, near) for kind, near in self.lookalikes.items() if near]
        if self.relations:
            named = ", ".join(
                f"{quote(k)}: {v}" for k, v in list(self.relations.items())[:_EXAMPLES]
            )
            rare = sum(count == 1 for count in self.relations.values())
            lines.append(
                f"triples of a relation: {named}; {count_noun(len(self.relations), 'relation')} "
                f"in all, {rare} with a single triple"
            )
        degrees = np.array(self.degrees)
        if degrees.size:
            quantiles = np.quantile(degrees, (0.5, 0.9)).astype(int)
            lines.append(
                f"degrees: median {quantiles[0]}, nine tenths at most {quantiles[1]}, "
                f"largest {degrees.max()}"
            )
        return "\n".join(lines)


def inspect_graph(path: str | PathLike[str], **options: Any) -> GraphInspection:
    r"""Inspects a file or a folder of triples, or a model with its facts.

    In a folder with ``train.txt`` and ``inference.txt``, the entities of the former are the anchors
    of the latter.

    Args:
        path: A file, a folder of files, a run folder or a model folder.
        **options: Options of reading, see :func:`~sheafprop.data.read_triples`.

    Raises:
        DataError: If there is no file, no triple, or a line is malformed.
    """
    place = Path(path).expanduser()
    if any((place / name).is_file() for name in ("manifest.json", "model/manifest.json")):
        if any(value is not None for value in options.values()):
            raise DataError(
                f"{place} is a model; options of reading ({', '.join(options)}) do not apply"
            )
        return inspect_model(SheafModel.load(place))
    if place.is_dir():
        found = sorted(
            (p for p in place.iterdir() if file_suffix(p.name) in _SUFFIXES and p.is_file()),
            key=lambda p: (p.name.partition(".")[0] != _TRAIN, p.name),
        )
        if not found:
            raise DataError(f"{place}: neither files of triples (*.txt, *.tsv) nor a model found")
    else:
        found = [place]
    parts, skipped = _read(found, options)
    if not any(map(len, parts.values())):
        if skipped:
            raise DataError(f"{place}: no file holds triples (skipped: {', '.join(skipped)})")
        raise DataError(f"{place}: all {len(parts)} files are empty ({', '.join(parts)})")
    return replace(inspect_triples(parts), skipped=skipped)


def _read(
    files: Sequence[Path], options: dict[str, Any]
) -> tuple[dict[str, LabelTriples], list[str]]:
    """Reads triples of files by name; also returns the names of files without triples."""
    parts: dict[str, LabelTriples] = {}
    skipped: list[str] = []
    known: set[str] = set()
    for path in files:
        try:
            parts[path.name] = read_triples(
                path, allow_empty=len(files) > 1, known=known, **options
            )
        except DataError as error:
            # Nodes, literals, lists of names, tables of ids or other text.
            is_part = path.name.partition(".")[0] in _PARTS
            is_other = isinstance(error, NotTriplesError)
            if len(files) == 1 or is_part or (not is_other and holds_triples(path, **options)):
                raise
            skipped.append(path.name)
        else:
            known.update(parts[path.name].ravel().tolist())
    return parts, skipped


def inspect_model(model: SheafModel) -> GraphInspection:
    """Inspects a model and its facts."""
    found = inspect_triples({"facts": model.facts().to_numpy(dtype=object)})
    origins = model.entities()["origin"].value_counts()
    kinds = model.describe_relations()
    fitted = kinds["relation"][kinds["origin"] == "fitted"].tolist()
    return replace(
        found,
        model={
            "method": type(model.kge).__name__,
            "dimension": model.kge.hidden_channels,
            "entities": model.num_entities,
            "origins": {str(origin): int(count) for origin, count in origins.items()},
            "relations": len(model.relations),
            **({"fitted_relations": fitted} if fitted else {}),
            "vectors_of_an_entity": model.num_sections,
            "chosen_propagation": model.settings or None,
        },
        lookalikes={
            "entities": lookalikes(model.labels()),
            "relations": lookalikes(model.relations.labels),
        },
        relations=found.relations
        | {label: 0 for label in model.relations if label not in found.relations},
    )


def inspect_triples(parts: Mapping[str, LabelTriples]) -> GraphInspection:
    """Inspects label triples by the names of their files."""
    entities, relations = Vocabulary(kind="entities"), Vocabulary(kind="relations")
    for part in parts.values():
        entities = entities.extend(part[:, [0, 2]].ravel())
        relations = relations.extend(part[:, 1])
    ids = {
        name: torch.stack(
            [
                entities.lookup(part[:, 0]),
                relations.lookup(part[:, 1]),
                entities.lookup(part[:, 2]),
            ],
            dim=1,
        )
        for name, part in parts.items()
    }
    every = torch.cat(list(ids.values())) if ids else torch.zeros(0, 3, dtype=torch.int64)
    stems = {name.partition(".")[0]: name for name in parts}
    train = ids.get(stems.get(_TRAIN, ""))
    observed = ids.get(stems.get(_OBSERVED, ""))
    graph = None
    if train is not None and observed is not None and len(observed):
        graph = _anchors(train, observed, len(entities))
    unseen = {}
    if train is not None:
        seen = torch.unique(train[:, 1])
        for name, triples in ids.items():
            missing, count = torch.unique(
                triples[~torch.isin(triples[:, 1], seen), 1], return_counts=True
            )
            if missing.numel():
                labels = relations.labels_of(missing)
                unseen[name] = dict(zip(labels, count.tolist(), strict=True))
    number, count = torch.unique(every[:, 1], return_counts=True)
    per_relation = dict(zip(relations.labels_of(number), count.tolist(), strict=True))
    return GraphInspection(
        files={name: _counts(triples) for name, triples in ids.items()},
        graph=graph,
        overlaps=_overlaps(ids, parts, entities),
        unseen_relations=unseen,
        inverse_relations=_inverses(every, relations),
        lookalikes={
            "entities": lookalikes(entities.labels),
            "relations": lookalikes(relations.labels),
        },
        relations=dict(sorted(per_relation.items(), key=lambda item: -item[1])),
        degrees=torch.bincount(every[:, [0, 2]].flatten(), minlength=len(entities)).tolist(),
    )


def _counts(triples: Tensor) -> dict[str, Any]:
    if not len(triples):
        return {"triples": 0}
    nodes, edges = torch.unique(triples[:, [0, 2]], return_inverse=True)
    component = connected_components(edges.T.contiguous(), len(nodes))
    sizes = torch.unique(component, return_counts=True)[1].sort(descending=True).values
    head, tail = edges.unbind(1)
    pairs = torch.unique((head * len(nodes) + tail)[head != tail])
    swapped = torch.unique((tail * len(nodes) + head)[head != tail])
    return {
        "triples": len(triples),
        "entities": len(nodes),
        "relations": len(torch.unique(triples[:, 1])),
        "duplicates": count_duplicates(triples),
        "self_loops": int((triples[:, 0] == triples[:, 2]).sum()),
        "pairs_in_both_directions": int(torch.isin(pairs, swapped).sum()) // 2,
        "components": len(sizes),
        "largest_components": sizes[:_EXAMPLES].tolist(),
    }


def _anchors(train: Tensor, observed: Tensor, num_entities: int) -> dict[str, Any]:
    known = torch.zeros(num_entities, dtype=torch.bool)
    known[train[:, [0, 2]].flatten()] = True
    nodes, edges = torch.unique(observed[:, [0, 2]], return_inverse=True)
    component = connected_components(edges.T.contiguous(), len(nodes))
    number = torch.unique(component, return_inverse=True)[1]
    anchors = torch.bincount(number[known[nodes]], minlength=int(number.max()) + 1)
    free = torch.bincount(number[~known[nodes]], minlength=len(anchors))
    order = torch.argsort(free + anchors, descending=True, stable=True)
    return {
        "known_entities": int(known[nodes].sum()),
        "new_entities": int((~known[nodes]).sum()),
        "components": len(anchors),
        "components_without_anchor": int((anchors == 0).sum()),
        "anchors_of_largest": anchors[order][:_EXAMPLES].tolist(),
        "components_by_anchors": _histogram(anchors),
    }


def _format_count(count: int, what: str) -> str:
    """``triples``, ``pairs in swapped order`` and ``entity labels``, or one of them."""
    if count == 1:
        first, *rest = what.split(" in ")
        what = " in ".join([first.removesuffix("s"), *rest])
    return f"{count} {what}"


def _format_histogram(histogram: dict[str, int]) -> str:
    """The beginning of a histogram, in words."""
    parts = [f"{count} with {value}" for value, count in list(histogram.items())[:_EXAMPLES]]
    return ", ".join(parts) + (", ..." if len(histogram) > _EXAMPLES else "")


def _histogram(values: Tensor) -> dict[str, int]:
    """How often each value occurs."""
    value, count = torch.unique(values, return_counts=True)
    return {str(v): c for v, c in zip(value.tolist(), count.tolist(), strict=True)}


def _overlaps(
    ids: dict[str, Tensor], parts: Mapping[str, LabelTriples], entities: Vocabulary
) -> list[dict[str, Any]]:
    names, found = list(ids), []
    codes = dict(zip(names, triple_codes(*ids.values()), strict=True)) if names else {}
    size = len(entities)
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            a, b = ids[first], ids[second]
            same = torch.isin(codes[second], codes[first])
            swapped = (b[:, 0] != b[:, 2]) & torch.isin(
                b[:, 0] * size + b[:, 2], a[:, 2] * size + a[:, 0]
            )
            for what, mask in (("triples", same), ("pairs in swapped order", swapped)):
                if bool(mask.any()):
                    example = parts[second][mask.numpy()][0].tolist()
                    found.append(_overlap(what, int(mask.sum()), first, second, example))
            both = torch.unique(b[:, [0, 2]])
            both = both[torch.isin(both, a[:, [0, 2]])]
            if both.numel():
                example = entities.labels_of(both[:1])
                found.append(_overlap("entity labels", both.numel(), first, second, example))
    return found


def _overlap(what: str, count: int, first: str, second: str, example: list[str]) -> dict[str, Any]:
    return {"what": what, "count": count, "files": [first, second], "example": example}


def _inverses(triples: Tensor, relations: Vocabulary) -> list[dict[str, Any]]:
    """Pairs of relations of which one mostly holds the swapped pairs of the other."""
    frame = pd.DataFrame(triples.numpy(), columns=["head", "relation", "tail"]).drop_duplicates()
    frame = frame[frame["head"] != frame["tail"]]
    swapped = frame.rename(columns={"head": "tail", "tail": "head", "relation": "inverse"})
    pairs = frame.merge(swapped, on=["head", "tail"]).groupby(["relation", "inverse"]).size()
    total = frame["relation"].value_counts()
    shares = {pair: np.float32(count / total[pair[0]]) for pair, count in pairs.items()}
    return [
        {
            "relation": relations.labels[relation],
            "inverse": relations.labels[inverse],
            "share": float(share),
        }
        for (relation, inverse), share in shares.items()
        if share >= _INVERSE_SHARE
    ]
