"""New entities with features: Hits@10 by the number of facts that are known of them.

A tenth of the entities of a graph is new. A model is trained on the others, and the new ones get
their vectors from none, 1, 2, 4 and all of their observed facts, with features and without. Beside
them stand the mean of the nearest training entities by features (how many is chosen by their own
squared error when each is left out), and the mean of all training entities. Features are numbers
(FB15k-237) or types (CoDEx-S); everything is fitted on training entities.

With ``--inner`` the training part is split once more in the same way, and the test triples are not
touched: that is what the weight of features was looked at on.
"""

import argparse
import json
import lzma
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from benchmarks.cells import Cell, CellStore, add_running_options, combine, run_cells
from benchmarks.command_line import report_errors
from benchmarks.completion_cell import train_model
from benchmarks.presets import Config, config_hash
from benchmarks.tables.figures import write_picture
from benchmarks.transductive_data import read_parts
from sheafprop import SheafModel
from sheafprop.checks import count_noun
from sheafprop.config_files import load_config
from sheafprop.data import KnowledgeGraph, Vocabulary
from sheafprop.data.datasets.grail import ENVIRONMENT
from sheafprop.data.feature_encoder import FeatureEncoder
from sheafprop.data.features import Column, FeatureTable
from sheafprop.data.inductive_data import InductiveData
from sheafprop.data.splits import semi_inductive_split
from sheafprop.errors import DataError
from sheafprop.inductive.section_scorer import SectionScorer
from sheafprop.kge import KGEModel
from sheafprop.pretrained.stored_model import StoredModel
from sheafprop.ranking import TripleFilter, evaluate
from sheafprop.report.tables import markdown_table
from sheafprop.seeding import seeded_uniform
from sheafprop.training import SheafCompletion

Record = dict[str, Any]

KEYS = ("dataset", "model", "seed", "inner", "config_hash")
FIELDS = ("method", "facts", "hits@10", "mrr")
DATASETS = ("fb237_v1", "fb237_v2", "fb237_v3", "fb237_v4", "codex-s")
#: Facts that are known of a new entity; None for all that are observed.
LEVELS: tuple[int | None, ...] = (0, 1, 2, 4, None)
WITH, WITHOUT = "with features", "without features"
NEAREST, MEAN = "nearest by features", "training mean"
_LOOKS: dict[str, dict[str, Any]] = {
    WITH: {"color": "#C44E52"},
    WITHOUT: {"color": "#4C72B0"},
    NEAREST: {"color": "#55A868", "linestyle": "--"},
    MEAN: {"color": "#8C8C8C", "linestyle": ":"},
}
#: Numbers of neighbours to choose from.
_NEIGHBOURS = (1, 2, 5, 10, 20, 50, 100)
_SHARE_NEW, _SHARE_OBSERVED = 0.1, 0.7


def load_features(name: str) -> FeatureTable:
    """The numbers of Freebase's entities, or the types of those of CoDEx-S.

    Raises:
        DataError: If the files are not at hand.
    """
    root = Path(os.environ.get(ENVIRONMENT, "."))
    if name == "codex-s":
        path = root / "codex" / "codex-s-entity2types.json"
        _check(path)
        types = json.loads(path.read_bytes())
        values = np.empty(len(types), dtype=object)
        values[:] = [tuple(found) or None for found in types.values()]
        return FeatureTable(tuple(types), (Column("types", "types", values),), str(path))
    path = root / "literals" / "FB15K_NumericalTriples.txt.xz"
    _check(path)
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            entity, key, value = line.rstrip("\n").split("\t")
            found[key][entity].append(float(value))
    labels = tuple(sorted({entity for column in found.values() for entity in column}))
    columns = []
    for key in sorted(found):
        numbers = [np.mean(found[key][e]) if e in found[key] else np.nan for e in labels]
        columns.append(Column(key, "number", np.array(numbers)))
    return FeatureTable(labels, tuple(columns), str(path))


def _check(path: Path) -> None:
    if not path.is_file():
        raise DataError(f"{path} is not there: set {ENVIRONMENT} to the folder of the data")


class NewEntities:
    """A graph some of whose entities are new.

    Args:
        graph (KnowledgeGraph): The graph.
        seed (int): The seed of all that is drawn.
    """

    def __init__(self, graph: KnowledgeGraph, seed: int):
        self.triples = torch.unique(graph.triples, dim=0)
        entities, relations = graph.entities, graph.relations
        assert entities is not None
        assert relations is not None
        split = semi_inductive_split(
            self.triples,
            len(entities),
            new_fraction=_SHARE_NEW,
            observed_fraction=_SHARE_OBSERVED,
            valid_fraction=(1 - _SHARE_OBSERVED) / 2,
            seed=seed,
        )
        is_new = split.new_entity_mask
        order = torch.cat([(~is_new).nonzero().flatten(), is_new.nonzero().flatten()])
        number = torch.empty_like(order)
        number[order] = torch.arange(len(order))
        self.num_old = int((~is_new).sum())
        self.entities = Vocabulary(entities.labels_of(order), kind="entities")
        self.relations = relations

        def part(mask: Tensor) -> Tensor:
            head, relation, tail = self.triples[mask].unbind(1)
            return torch.stack([number[head], relation, number[tail]], dim=1)

        self.train, self.observed = part(split.train_mask), part(split.observed_mask)
        self.test = part(split.valid_mask | split.test_mask)
        self.known = part(torch.ones_like(split.train_mask))
        draw = seeded_uniform(np.arange(len(self.observed)), 1, seed)[:, 0]
        self._order = torch.from_numpy(np.argsort(draw))

    @property
    def train_graph(self) -> KnowledgeGraph:
        """The graph of the entities that are not new."""
        return KnowledgeGraph.from_triples(
            self.train,
            entities=Vocabulary(self.entities.labels[: self.num_old], kind="entities"),
            relations=self.relations,
        )

    def facts(self, most: int | None) -> Tensor:
        """Observed facts ``[m, 3]``: all, or up to some of each new entity, to entities that are
        not new."""
        if most is None:
            return self.observed
        new = self.observed[:, [0, 2]] >= self.num_old
        single = (new.sum(1) == 1)[self._order]
        rows = self._order[single]
        owner = torch.where(new[rows, 0], self.observed[rows, 0], self.observed[rows, 2])
        seen: dict[int, int] = defaultdict(int)
        kept = []
        for row, entity in zip(rows.tolist(), owner.tolist(), strict=True):
            if seen[entity] < most:
                seen[entity] += 1
                kept.append(row)
        return self.observed[sorted(kept)]

    def labels(self, triples: Tensor) -> list[tuple[str, str, str]]:
        """Triples as labels."""
        head, relation, tail = (
            vocabulary.labels_of(column)
            for vocabulary, column in zip(
                (self.entities, self.relations, self.entities), triples.unbind(1), strict=True
            )
        )
        return list(zip(head, relation, tail, strict=True))


def load_graph(name: str) -> KnowledgeGraph:
    """A whole graph: all triples of the training graph of a GraIL benchmark, or of CoDEx-S."""
    return KnowledgeGraph.from_labels(np.concatenate(read_parts(name)))


def run_cell(
    name: str, kge: str, seed: int, inner: bool, config: Config, *, folder: Path
) -> list[Record]:
    """Trains a model without the new entities, and ranks their test triples by every method."""
    table = load_features(name)
    parts = NewEntities(load_graph(name), seed)
    if inner:
        parts = NewEntities(parts.train_graph, seed + 1000)
    module = SheafCompletion(**(config["model"] | {"seed": seed}))
    kge_model, seconds = train_model(module, config, _as_data(name, parts), folder=folder)
    begin = time.process_time()
    graph = parts.train_graph
    assert graph.entities is not None
    stored = StoredModel.from_training(
        kge_model, graph.entities, parts.relations, parts.train, features=table
    )
    model = SheafModel(stored)
    own = table.select(parts.entities.labels[parts.num_old :])
    found: list[Record] = []
    hits: dict[tuple[str, int | None], Tensor] = {}
    for most in LEVELS:
        facts = parts.labels(parts.facts(most))
        vectors = {
            WITHOUT: _extended(model, parts, facts, None),
            WITH: _extended(model, parts, facts, own),
        }
        if most == 0:
            x = model.vectors()[:, 0]
            vectors |= {MEAN: _with_means(kge_model, x, parts)}
            near, count = _nearest(kge_model, x, parts, table)
            vectors[NEAREST] = near
        for method, rows in vectors.items():
            metrics, hits[method, most] = _rank(kge_model, rows, parts)
            record: Record = {"method": method, "facts": -1 if most is None else most} | metrics
            if method == NEAREST:
                record["neighbours"] = count
            if method == WITH:
                gap = hits[WITH, most] - hits[WITHOUT, most]
                deviation = float(gap.std()) if len(gap) > 1 else 0.0
                record |= {
                    "gain": float(gap.mean()),
                    "gain_error": deviation / len(gap) ** 0.5,
                }
            found.append(record)
    features = model.feature_map
    assert features is not None
    common = {
        "num_test": len(parts.test),
        "num_new": len(parts.entities) - parts.num_old,
        "with_features": len(own),
        "gamma": features.gamma,
        "explained": features.explained,
        "strength": features.strength,
        "seconds_train": round(seconds, 2),
        "seconds": round(time.process_time() - begin, 2),
    }
    return [record | common for record in found]


def _as_data(name: str, parts: NewEntities) -> InductiveData:
    """The training graph as data of a run, which is propagated into nothing."""
    graph = parts.train_graph
    everything = KnowledgeGraph.from_triples(
        parts.train, entities=parts.entities, relations=parts.relations
    )
    known = torch.arange(len(parts.entities)) < parts.num_old
    return InductiveData(
        name=name,
        mode="semi-inductive",
        train=graph,
        train_valid=None,
        inference=everything,
        boundary_mask=known,
        boundary_source=torch.where(known, torch.arange(len(known)), -1),
        valid=None,
        test=None,
    )


def _extended(
    model: SheafModel,
    parts: NewEntities,
    facts: Sequence[tuple[str, str, str]],
    features: FeatureTable | None,
) -> Tensor:
    """Vectors ``[N, d]`` after an extension; entities of which nothing is known have the mean of
    training with features, and a random vector without."""
    larger = model.extend(facts, features=features) if facts or features is not None else model
    numbers = {label: number for number, label in enumerate(larger.labels())}
    place = torch.tensor([numbers.get(label, -1) for label in parts.entities.labels])
    x = larger.vectors()[:, 0]
    if features is not None:
        rest = _with_means(model.kge, model.vectors()[:, 0], parts)
    else:
        drawn = model.kge.draw_entities(parts.entities.labels[parts.num_old :], 0, 1)[:, 0]
        rest = torch.cat([x[: parts.num_old], drawn.to(x)])
    return torch.where((place >= 0).unsqueeze(1), x[place], rest)


def _with_means(
    kge: KGEModel, x: Tensor, parts: NewEntities, means: Tensor | None = None
) -> Tensor:
    count = len(parts.entities) - parts.num_old
    if means is None:
        means = x[: parts.num_old].mean(0).expand(count, -1)
    if kge.has_unit_rows():
        means = kge.rescale_entities(means.unsqueeze(1))[:, 0]
    return torch.cat([x[: parts.num_old], means])


def _nearest(
    kge: KGEModel, x: Tensor, parts: NewEntities, table: FeatureTable
) -> tuple[Tensor, int]:
    """Means of the training entities with the nearest features, and of how many."""
    old, new = parts.entities.labels[: parts.num_old], parts.entities.labels[parts.num_old :]
    trained, asked = table.select(old), table.select(new)
    encoder = FeatureEncoder.fit(trained)
    rows_old, known = encoder.encode(trained)
    rows_new, asked_known = encoder.encode(asked)
    f, g = torch.from_numpy(rows_old[known]), torch.from_numpy(rows_new[asked_known])
    values = x[: parts.num_old][torch.from_numpy(table.lookup(old) >= 0)][torch.from_numpy(known)]
    most = max(_NEIGHBOURS)
    apart = torch.cdist(f, f).fill_diagonal_(float("inf"))
    near = apart.argsort(dim=1, stable=True)[:, :most]
    errors = [
        float((values - values[near[:, :k]].mean(1)).abs().square().sum()) for k in _NEIGHBOURS
    ]
    count = _NEIGHBOURS[int(np.argmin(errors))]
    chosen = torch.cdist(g, f).argsort(dim=1, stable=True)[:, :count]
    means = x[: parts.num_old].mean(0).repeat(len(new), 1)
    rows = torch.from_numpy(np.flatnonzero(table.lookup(new) >= 0))[torch.from_numpy(asked_known)]
    means[rows] = values[chosen].mean(1)
    return _with_means(kge, x, parts, means), count


def _rank(kge: KGEModel, x: Tensor, parts: NewEntities) -> tuple[Record, Tensor]:
    """Figures, and Hits@10 of each test triple, the mean of both sides."""
    scorer = SectionScorer(kge, x.unsqueeze(1), (1.0,), parts.entities.labels)
    known = TripleFilter({"all": parts.known}, len(parts.entities), len(parts.relations))
    result = evaluate(scorer.score_tails, scorer.score_heads, parts.test, known)
    metrics = result.metrics("full")
    each = [(counts.ranks() <= 10).double() for counts in result.counts.values()]
    return {name: float(metrics[name]) for name in ("hits@10", "mrr")}, torch.stack(each).mean(0)


def feature_table(records: Sequence[Record]) -> str:
    """Hits@10 in percent by number of facts, the mean over seeds, as Markdown."""
    columns = list(dict.fromkeys(r["facts"] for r in records))
    rows = []
    for dataset in _datasets(records):
        seeds = len({r["seed"] for r in records if r["dataset"] == dataset})
        name = f"{dataset}, {count_noun(seeds, 'seed')}"
        for method in (WITH, WITHOUT, NEAREST, MEAN):
            cells = []
            for facts in columns:
                found = [
                    r
                    for r in records
                    if (r["dataset"], r["method"], r["facts"]) == (dataset, method, facts)
                ]
                if not found:
                    cells.append("")
                    continue
                text = f"{100 * np.mean([r['hits@10'] for r in found]):.1f}"
                if method == WITH and facts:
                    gain = 100 * np.mean([r["gain"] for r in found])
                    error = 100 * np.linalg.norm([r["gain_error"] for r in found]) / len(found)
                    text += f" ({gain:+.1f} ± {error:.1f})"
                cells.append(text)
            rows.append([name, method, *cells])
    names = ["all facts" if c < 0 else f"{c} fact{'s' * (c != 1)}" for c in columns]
    return markdown_table(["", "Hits@10", *names], rows)


def _datasets(records: Sequence[Record]) -> list[str]:
    found = dict.fromkeys(r["dataset"] for r in records)
    return sorted(found, key=lambda name: DATASETS.index(name) if name in DATASETS else -1)


def draw_features(records: Sequence[Record], path: Path) -> None:
    """Draws Hits@10 by number of facts, a panel for each graph, as a PNG."""
    datasets = _datasets(records)
    figure = Figure(figsize=(2.7 * len(datasets), 3.1), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(datasets), sharey=True, squeeze=False)[0]
    names = ["0", "1", "2", "4", "all"]
    for axis, dataset in zip(panels, datasets, strict=True):
        for method, look in _LOOKS.items():
            means = [
                100 * float(np.mean(found))
                for level in LEVELS
                if (
                    found := [
                        r["hits@10"]
                        for r in records
                        if (r["dataset"], r["method"], r["facts"])
                        == (dataset, method, -1 if level is None else level)
                    ]
                )
            ]
            if len(means) == 1:
                axis.axhline(means[0], label=method, **look)
            else:
                axis.plot(range(len(means)), means, marker="o", label=method, **look)
        axis.set_xticks(range(len(names)), names)
        axis.set_title(dataset, fontsize=10)
        axis.set_xlabel("facts of a new entity")
        axis.grid(color="#E3E3E3", linewidth=0.8)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("Hits@10 in percent")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    write_picture(figure, path)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--dataset", nargs="+", choices=DATASETS, default=list(DATASETS), help="graphs (all)")
    add("--model", nargs="+", default=["rotate"], help="models with a preset (rotate)")
    add("--seeds", nargs="+", type=int, default=[0], help="seeds of split and training (0)")
    add("--inner", action="store_true", help="split the training part, to look at settings")
    add("--picture", metavar="FILE", type=Path, help="draw the stored results as a PNG")
    add_running_options(parser, "features.jsonl")
    options = parser.parse_args(arguments)
    store = CellStore(options.results, KEYS, FIELDS)
    with report_errors(parser, "finished cells are kept, and the same command goes on"):
        store.check()
        cells = []
        for seed, name, kge in combine(options.seeds, options.dataset, options.model):
            load_features(name)
            config = load_config(f"preset/best/fb237_{kge}.yaml")
            key = {"dataset": name, "model": kge, "seed": seed, "inner": options.inner}
            key["config_hash"] = config_hash(config)
            given = (name, kge, seed, options.inner, config)
            cells.append(Cell(key, run_cell, given))
        run_cells(cells, store, jobs=options.jobs, threads=options.threads, again=options.again)
        chosen = [r for r in store.records() if r["inner"] == options.inner]
        for kge in options.model:
            print(feature_table([r for r in chosen if r["model"] == kge]))
        if options.picture is not None:
            draw_features([r for r in chosen if r["model"] == options.model[0]], options.picture)
