"""Relations that were hidden from training and are fitted to a few of their facts.

The relations of at least 20 training triples are dealt into three parts at random. A cell hides one
part from training, fits these relations to some of their training triples, and ranks their held-out
triples among all entities: beside those of the trained relations, and beside the same triples under
a model that was trained with all relations. Both models have the entities that have a training
triple of a trained relation. Nothing is chosen by any of these figures.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cells import Cell, CellStore, Record, add_running_options, combine, run_cells
from benchmarks.command_line import report_errors
from benchmarks.completion_cell import figures
from benchmarks.presets import config_hash
from benchmarks.training import train_plainly
from benchmarks.transductive_data import TransductiveData, read_parts
from sheafprop.config_files import load_config
from sheafprop.data import KnowledgeGraph
from sheafprop.data.datasets.grail import GraILDataset
from sheafprop.data.triples import LabelTriples, parse_triples
from sheafprop.pretrained import StoredModel
from sheafprop.pretrained.sheaf_model import SheafModel
from sheafprop.report.tables import markdown_table
from sheafprop.training import SheafCompletion

KEYS = ("dataset", "model", "fold", "config_hash")
FIELDS = ("method", "facts", "part", "hits@10", "mrr", "count")

#: Data sets with the batches that a model is trained for.
DATASETS = {"fb237_v1": 300, "codex-s": 600}
MODELS = ("transe", "rotate", "pairre", "lineare", "transh", "transr", "se", "stranse")
#: Facts that a hidden relation is fitted to; None for all.
FACTS = (1, 2, 5, 10, 20, None)
FOLDS = 3
BATCH_SIZE = 1024
#: Training triples of a relation that may be hidden.
FREQUENT = 20

FITTED, SAME, OTHERS = "fitted", "trained with its facts", "the trained relations"


def read_split(name: str) -> list[LabelTriples]:
    """Training, validation and test triples of a graph whose entities are all known.

    Raises:
        DataError: If the data are not at hand.
    """
    if name == "codex-s":
        return read_parts(name)
    names = [f"{name}/{part}.txt" for part in ("train", "valid", "test")]
    contents = GraILDataset(name=name).read_files(names)
    return [parse_triples(contents[n], n, columns=(0, 1, 2), header=False) for n in names]


def hidden_relations(train: LabelTriples, fold: int) -> set[str]:
    """The relations of a part, of :obj:`FOLDS` that are drawn with a fixed seed."""
    counts = Counter(train[:, 1].tolist())
    frequent = sorted(label for label, count in counts.items() if count >= FREQUENT)
    order = np.random.default_rng(0).permutation(len(frequent))
    return {frequent[i] for i in order[fold::FOLDS]}


def some_facts(facts: LabelTriples, number: int | None) -> LabelTriples:
    """A seeded choice of so many facts of each relation, more of them with a larger number."""
    order = np.random.default_rng(1).permutation(len(facts))
    seen: Counter[str] = Counter()
    kept = []
    for i in order.tolist():
        seen[facts[i, 1]] += 1
        if number is None or seen[facts[i, 1]] <= number:
            kept.append(i)
    return facts[kept]


def train(train: LabelTriples, config: dict[str, Any], seed: int, folder: Path) -> SheafModel:
    """A model of label triples."""
    graph = KnowledgeGraph.from_labels(train)
    assert graph.entities is not None
    assert graph.relations is not None
    data = TransductiveData("", graph, graph.triples[:0], graph.triples[:0]).as_inductive()
    folder.mkdir(parents=True, exist_ok=True)
    model = {key: value for key, value in config["model"].items() if key != "propagation"}
    module = SheafCompletion(seed=seed, **model)
    kge, _ = train_plainly(
        module, data, BATCH_SIZE, folder=folder, max_epochs=-1, max_steps=config["steps"]
    )
    stored = StoredModel.from_training(kge, graph.entities, graph.relations, graph.triples)
    return SheafModel(stored)


def run_fold(name: str, config: dict[str, Any], fold: int, *, folder: Path) -> list[Record]:
    """Ranks the held-out triples of hidden and of trained relations."""
    parts = read_split(name)
    hidden = hidden_relations(parts[0], fold)
    is_hidden = np.isin(parts[0][:, 1].astype(str), sorted(hidden))
    model = train(parts[0][~is_hidden], config, fold, folder / "hidden")
    known = set(model.labels())

    def between_known(triples: LabelTriples) -> LabelTriples:
        kept = [h in known and t in known for h, t in triples[:, [0, 2]].tolist()]
        return triples[np.array(kept, dtype=bool)]

    facts = between_known(parts[0][is_hidden])
    whole = train(np.concatenate([parts[0][~is_hidden], facts]), config, fold, folder / "whole")
    every = np.concatenate(parts)
    records: list[Record] = []

    def rank(ranker: SheafModel, method: str, of_hidden: bool, number: int | None) -> None:
        for part, triples in zip(("valid", "test"), parts[1:], strict=True):
            own = np.array([label in hidden for label in triples[:, 1]], dtype=bool) == of_hidden
            asked = between_known(triples[own])
            asked = asked[[label in ranker.relations for label in asked[:, 1]]]
            result = ranker.rank(asked, known=every)
            row: Record = {"method": method, "facts": number, "part": part, "count": 2 * len(asked)}
            records.append(row | figures(result.metrics("full"), "full"))

    for number in FACTS:
        given = some_facts(facts, number)
        fitted = model.extend(given, on_unknown_relation="fit", min_facts=1)
        rank(fitted, FITTED, True, number)
    rank(whole, SAME, True, None)
    rank(model, OTHERS, False, None)
    return records


def fold_table(records: Sequence[Record], part: str = "test") -> str:
    """Hits@10 in percent by data set, model and number of facts, as Markdown; all parts pooled."""
    columns = [(FITTED, number) for number in FACTS] + [(SAME, None), (OTHERS, None)]
    rows = []
    for dataset, model in dict.fromkeys((r["dataset"], r["model"]) for r in records):
        cells = []
        for method, number in columns:
            own = [r for r in records if (r["dataset"], r["model"]) == (dataset, model)
                   and (r["method"], r["facts"], r["part"]) == (method, number, part)]  # fmt: skip
            total = sum(r["count"] for r in own)
            cells.append(f"{100 * sum(r['hits@10'] * r['count'] for r in own) / total:.1f}")
            if len(cells) == 1:
                seen = [f"{len({r['fold'] for r in own})} of {FOLDS}", f"{total:,}"]
        rows.append([f"{dataset}, {model}", *seen, *cells])
    header = [f"{n or 'all'} fact{'' if n == 1 else 's'}" for n in FACTS] + [SAME, OTHERS]
    return markdown_table(["Hits@10", "parts", "ranks", *header], rows)


def main(arguments: list[str] | None = None) -> None:
    """Runs the cells that are missing from the file of results, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--dataset", nargs="+", choices=DATASETS, default=list(DATASETS), help="graphs (all)")
    add("--model", nargs="+", choices=MODELS, default=list(MODELS), help="models (all)")
    add("--fold", nargs="+", type=int, choices=range(FOLDS), default=list(range(FOLDS)),
        help="parts that are hidden (all, one after the other)")  # fmt: skip
    add_running_options(parser, "new_relations.jsonl")
    options = parser.parse_args(arguments)
    store = CellStore(options.results, KEYS, FIELDS)
    with report_errors(parser, "finished cells are kept, and the same command goes on"):
        store.check()
        cells = []
        for name, model, fold in combine(options.dataset, options.model, options.fold):
            config = load_config(f"model/{model}.yaml") | {"steps": DATASETS[name]}
            key = {"dataset": name, "model": model, "fold": fold}
            key["config_hash"] = config_hash(config | {"batch_size": BATCH_SIZE})
            cells.append(Cell(key, run_fold, (name, config, fold)))
        run_cells(cells, store, jobs=options.jobs, threads=options.threads, again=options.again)
        print(fold_table(store.records()))
