"""Why figures of the preset ``paper`` differ from those of the paper, one change at a time.

Each variant changes one thing of our procedure towards the released code of Cobb and Gebhart; the
variant ``released`` of the training changes all that apply to a model. Variants of the evaluation
share a trained model. What chooses on test triples is marked as a leak and only bounds what a
choice of iterations could give. With ``--epochs``, training ends after so many of them.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.cells import (
    Cell,
    CellStore,
    add_running_options,
    combine,
    read_records,
    run_cells,
)
from benchmarks.command_line import integer, report_errors
from benchmarks.completion_cell import load_data, train_until_it_stalls
from benchmarks.paper_curve import follow_training
from benchmarks.paper_diffusion import (
    Trajectory,
    normal_start,
    own_start,
    released_trajectory,
    text_trajectory,
)
from benchmarks.paper_training import ProjectedTransR, start_maps_at_random_, train_on_pairs
from benchmarks.presets import (
    MODELS,
    VERSIONS,
    Config,
    completion_config,
    config_hash,
    paper_numbers,
)
from benchmarks.tables.paper_tables import curve_table, procedure_report
from benchmarks.training import hold_out
from sheafprop.config_files import merge
from sheafprop.data.inductive_data import InductiveData
from sheafprop.inductive.propagation_search import inference_filter
from sheafprop.inductive.section_scorer import SectionScorer
from sheafprop.kge import KGEModel
from sheafprop.kge.transr import TransR
from sheafprop.ranking import RankingResult, TripleFilter, evaluate
from sheafprop.training import SheafCompletion

Record = dict[str, Any]

KEYS = ("dataset", "model", "seed", "trained", "config_hash")
FIELDS = ("evaluated", "hits@10")
FAMILIES = ("fb237", "WN18RR")


@dataclass(frozen=True)
class Training:
    """What a variant changes in the training towards the released code.

    Args:
        pairs: Whether a batch holds pairs of head and relation with all their tails.
        all_triples: Whether nothing is held out, and Hits@10 of the training triples stops.
        one_batch: Whether a batch holds all triples, as PyKEEN's search on a large GPU finds.
        squared: Whether distances are squared.
        clamped: Whether projected entities and translations have length one at most.
        random_maps: Whether maps start uniform and small, instead of near the identity.
        other_run: Whether the settings are those of the other configuration that is stored for
            the data set.
    """

    pairs: bool = False
    all_triples: bool = False
    one_batch: bool = False
    squared: bool = False
    clamped: bool = False
    random_maps: bool = False
    other_run: bool = False


AS_WE_DO = "as we do"
#: The variants of the training by model; the last but one has all that apply.
TRAINED: dict[str, dict[str, Training]] = {
    "transe": {
        AS_WE_DO: Training(),
        "batches of pairs": Training(pairs=True),
        "all triples": Training(all_triples=True),
        "released": Training(pairs=True, all_triples=True),
        "released, the other stored settings": Training(
            pairs=True, all_triples=True, other_run=True
        ),
    },
    "transr": {
        AS_WE_DO: Training(),
        "batches of pairs": Training(pairs=True),
        "all triples": Training(all_triples=True),
        "squared distance": Training(squared=True),
        "clamped projections": Training(clamped=True),
        "maps start at random": Training(random_maps=True),
        "released": Training(
            pairs=True, all_triples=True, squared=True, clamped=True, random_maps=True
        ),
    },
    "rotate": {
        AS_WE_DO: Training(),
        "one batch an epoch": Training(one_batch=True),
        "all triples": Training(all_triples=True),
        "released": Training(one_batch=True, all_triples=True),
    },
}
#: The settings of a second run that is stored with the code, with relations of length one.
OTHER_RUN: dict[tuple[str, str], Config] = {
    ("fb237_v1", "transe"): {"lr": 0.00482, "step_size": 0.223, "iterations": 6709},
    ("fb237_v2", "transe"): {"lr": 0.00316, "step_size": 0.667, "iterations": 1809},
}
_COUNTS = tuple(2**n for n in range(14))
#: Steps with wide maps cost much, and trainings that end early are looked at for their steps.
_FEW = 1024
#: The epochs that the paper trains for, at most.
_EPOCHS = 500
#: A step size of 1 oscillates where an eigenvalue is 2, that of any graph without odd cycles.
_STABLE = 0.9


def run_variant(
    config: Config, trained: str, seed: int, root: str | None = None, *, folder: Path
) -> list[Record]:
    """Trains one variant and ranks under every variant of the evaluation."""
    data, name = load_data(config, root), config["model"]["kge"]
    variant = TRAINED[name][trained]
    begin = time.process_time()
    model, notes = train(config, variant, data, seed, folder)
    notes.setdefault("seconds_train", round(time.process_time() - begin, 1))
    (step_size,) = config["model"]["propagation"]["step_size"]
    iterations = published_iterations(config)
    if variant.other_run:
        other = OTHER_RUN[config["data"]["name"], name]
        step_size, iterations = other["step_size"], other["iterations"]
    most = _COUNTS[-1]
    if name == "transr" or config["trainer"]["max_epochs"] < _EPOCHS:
        most = min(_FEW, iterations)
    counts = sorted({count for count in _COUNTS if count <= most} | {iterations})
    starts: dict[str, Callable[[KGEModel, InductiveData, int], Tensor]] = {
        "our start": own_start,
        "normal start": normal_start,
    }
    kinds = {
        "step of the text": (text_trajectory, step_size),
        "released step": (released_trajectory, step_size),
    }
    if step_size > _STABLE:
        kinds[f"step of the text, h = {_STABLE}"] = text_trajectory, _STABLE
    records: list[Record] = []
    for kind, (trajectory, size) in kinds.items():
        for start, draw in starts.items():
            ranked = Ranked(
                model, data, trajectory(model, data, draw(model, data, seed), size, counts)
            )
            records += [
                notes | {"step": kind, "start": start} | record
                for record in ranked.records(iterations)
            ]
    return records


def published_iterations(config: Config) -> int:
    """The number of iterations that the paper prints for a configuration."""
    family, _, version = config["data"]["name"].rpartition("_")
    return paper_numbers(family, version, config["model"]["kge"])["iterations"]


def train(
    config: Config, variant: Training, data: InductiveData, seed: int, folder: Path
) -> tuple[KGEModel, Record]:
    """A trained model, and what is worth knowing of its training."""
    changes: Config = {"model": {"seed": seed}}
    if variant.squared:
        changes["model"]["kge_args"] = {"squared": True}
    config = merge(config, changes)
    if config["model"]["loss"] != "cross_entropy":
        triples = data.train.triples
        if variant.one_batch:
            config = merge(config, {"data": {"batch_size": len(triples)}})
        module, watched = SheafCompletion(**config["model"]), None
        if variant.all_triples:
            watched = triples
        model, seconds = train_until_it_stalls(module, config, data, folder, watched)
        return model, {"seconds_train": round(seconds, 1)}  # also those before an interruption
    model = SheafCompletion(**config["model"]).build(data.train.num_nodes or 0, data.num_relations)
    if variant.clamped:
        start, model = model, ProjectedTransR(**model.config())
        model.load_state_dict(start.state_dict())
    if variant.random_maps:
        assert isinstance(model, TransR)
        start_maps_at_random_(model, seed)
    part, held = hold_out(data, seed=0)
    triples, watched = part.train.triples, held
    if variant.all_triples:
        triples = watched = data.train.triples
    lr = config["model"]["lr"]
    if variant.other_run:
        lr = OTHER_RUN[config["data"]["name"], config["model"]["kge"]]["lr"]
    return model, train_on_pairs(
        model,
        triples,
        watched,
        batch_size=config["data"]["batch_size"],
        lr=lr,
        label_smoothing=config["model"]["loss_args"]["label_smoothing"],
        max_epochs=config["trainer"]["max_epochs"],
        check_every=config["trainer"]["check_val_every_n_epoch"],
        seed=seed,
        pairs=variant.pairs,
        unit_relations=variant.other_run,
        clamped_relations=variant.clamped,
    )


class Ranked:
    """Ranks of validation and test triples along a diffusion.

    Args:
        model (KGEModel): The model that scores.
        data (InductiveData): The inference graph and its triples.
        trajectory (iterator): Counts with vectors ``[N, 1, d]``.
    """

    def __init__(self, model: KGEModel, data: InductiveData, trajectory: Trajectory) -> None:
        assert data.valid is not None
        assert data.test is not None
        known, without = inference_filter(data), _without_validation(data)
        self.valid: dict[int, RankingResult] = {}
        self.test: dict[int, RankingResult] = {}
        self.test_unfiltered: dict[int, RankingResult] = {}
        for count, x in trajectory:
            scorer = SectionScorer(model, x, (1.0,))
            scores = scorer.score_tails, scorer.score_heads
            self.valid[count] = evaluate(*scores, data.valid, known)
            self.test[count] = evaluate(*scores, data.test, known)
            self.test_unfiltered[count] = evaluate(*scores, data.test, without)

    def records(self, iterations: int) -> list[Record]:
        """Hits@10 of the test triples under every variant of the evaluation.

        Args:
            iterations: The number of iterations that is given.
        """
        if not self.test:
            return []
        validation = {count: _hits(result) for count, result in self.valid.items()}
        test = {count: _hits(result) for count, result in self.test.items()}
        chosen = max(validation, key=lambda count: (validation[count], -count))
        best = max(test, key=lambda count: (test[count], -count))
        at = self.test[chosen].metrics("full")
        optimistic = self.test[chosen].metrics("full", ties="optimistic")["hits@10_optimistic"]
        found = {
            AS_WE_DO: (chosen, test[chosen], False),
            "tails alone": (chosen, at["tail/hits@10"], False),
            "heads alone": (chosen, at["head/hits@10"], False),
            "optimistic ties": (chosen, optimistic, False),
            "validation triples not filtered": (chosen, _hits(self.test_unfiltered[chosen]), False),
            "iterations chosen on test": (best, test[best], True),
        }
        if iterations in test:
            found["the paper's number of iterations"] = (iterations, test[iterations], False)
        return [
            {"evaluated": name, "iterations": count, "hits@10": value, "leak": leak}
            for name, (count, value, leak) in found.items()
        ]


def _hits(result: RankingResult) -> float:
    return result.metrics("full")["hits@10"]


def _without_validation(data: InductiveData) -> TripleFilter:
    assert data.test is not None
    parts = {"observed": data.inference.triples, "test": data.test}
    return TripleFilter(parts, data.inference.num_nodes, data.num_relations)


def cells(
    datasets: Sequence[str],
    model: str,
    trained: Sequence[str],
    seeds: Sequence[int],
    root: str | None = None,
    epochs: int | None = None,
) -> list[Cell]:
    """All variants of the training that a model has, or those of the given names.

    With ``epochs``, each ends after so many, and has them in its name.
    """
    found = []
    for seed, dataset, name in combine(seeds, datasets, list(TRAINED[model])):
        variant = TRAINED[model][name]
        if trained and name not in trained:
            continue
        if variant.other_run and (dataset, model) not in OTHER_RUN:
            continue
        family, _, version = dataset.rpartition("_")
        config = completion_config("paper", family, version, model)
        key: Record = {"dataset": dataset, "model": model, "seed": seed, "trained": name}
        if epochs is not None:
            short = {"max_epochs": epochs, "check_val_every_n_epoch": epochs}
            config = merge(config, {"trainer": short})
            key["trained"] = f"{name}, {epochs} epochs"
        key["config_hash"] = config_hash(config | {"changes": vars(variant)})
        found.append(Cell(key, run_variant, (config, name, seed, root)))
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    datasets = [f"{family}_{version}" for family in FAMILIES for version in VERSIONS]
    add("--dataset", nargs="+", choices=datasets, default=["fb237_v1"], help="(fb237_v1)")
    add("--model", choices=MODELS, default="transe", help="the model (transe)")
    add(
        "--trained", nargs="+", metavar="VARIANT", default=[], help="variants of the training (all)"
    )
    add("--seeds", nargs="+", type=int, default=[0], help="seeds (0)")
    add("--epochs", type=integer(1), help="end training after so many (those of the paper)")
    add("--data", help="folder of the benchmark's files or archives (default: SHEAFPROP_DATA)")
    add_running_options(parser, "paper_procedure.jsonl")
    add("--report", action="store_true", help="print the tables, run nothing")
    add("--curve", metavar="EPOCHS", type=integer(1),
        help="store validation Hits@10 by epochs instead, in paper_curves.jsonl")  # fmt: skip
    add("--every", type=integer(1), default=5, help="epochs between points of the curve (5)")
    options = parser.parse_args(arguments)
    store = CellStore(options.results, KEYS, FIELDS)
    with report_errors(parser, "finished cells are kept, and the same command goes on"):
        if options.curve:
            _run_curves(options)
            return
        if not options.report:
            if options.model not in TRAINED:
                parser.error(f"{options.model} has a curve alone: --curve EPOCHS")
            store.check()
            chosen = (options.dataset, options.model, options.trained, options.seeds)
            limits = {"jobs": options.jobs, "threads": options.threads}
            chosen_cells = cells(*chosen, options.data, options.epochs)
            run_cells(chosen_cells, store, again=options.again, **limits)
        if records := store.records():
            print(procedure_report(records))
        else:
            print(f"{options.results} holds no results")


def _run_curves(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    path = options.results.with_name("paper_curves.jsonl")
    for seed, dataset in combine(options.seeds, options.dataset):
        family, _, version = dataset.rpartition("_")
        config = completion_config("paper", family, version, options.model)
        follow_training(config, seed, options.curve, options.every, path, options.data)
    print(curve_table(read_records(path)))
