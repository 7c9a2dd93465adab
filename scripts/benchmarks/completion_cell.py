"""One cell of the completion benchmarks: train a model, choose the propagation, rank once."""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor

from benchmarks.training import hold_out, rank_triples, train_plainly
from sheafprop.data import build_dataset
from sheafprop.data.inductive_data import InductiveData
from sheafprop.hardware import describe_hardware, peak_bytes
from sheafprop.inductive.inductive_propagation import InductivePropagation
from sheafprop.inductive.propagation_search import PropagationSearch, Selection, inference_filter
from sheafprop.inductive.rank_completion import rank_completion
from sheafprop.inductive.training_graph import training_graph_as_new
from sheafprop.kge import KGEModel
from sheafprop.ranking import PROTOCOLS, EdgeTypeHeuristic, RankingResult, evaluate
from sheafprop.ranking.protocols import MAIN_METRICS
from sheafprop.training.reference import prepare_reference
from sheafprop.training.sheaf_completion import SheafCompletion

Record = dict[str, Any]

#: Shares of the prototype section that ``merged`` chooses from.
PROTOTYPE_SHARES = (0.33, 0.1, 0.2, 0.5)
#: Triples that decide for ``merged``, at most.
MOST_VALID = 1000


def run_cell(
    config: dict[str, Any], preset: str, seed: int, root: str | None = None, *, folder: Path
) -> list[Record]:
    """Trains on the training graph, selects on validation, ranks the test triples once.

    Times of training and selection are those of the processor, which other programs on the machine
    do not lengthen; with one thread they are what a clock on the wall shows on an idle machine.

    Returns:
        A record for each method and protocol. ``merged`` has settings of its own, chosen on the
        training graph with all its entities taken as new.
    """
    data = load_data(config, root)
    module = SheafCompletion(**(config["model"] | {"seed": seed}))
    if preset == "reference":
        return _reference(config, module, data, folder)
    train = train_until_it_stalls if preset == "paper" else train_model
    model, training = train(module, config, data, folder=folder)
    begin = time.process_time()
    selection = module.search.select(model, data)
    seconds = {"train": training, "select": time.process_time() - begin}
    found = rank_completion(model, data, selection.settings, seed=seed, progress=False)
    seconds |= found.seconds
    own = found.rows[0]["method"]
    records = []
    for row in found.rows:
        method, protocol = row["method"], row["protocol"]
        if method != own and "(no propagation)" not in method:
            continue  # baselines without a model have cells of their own
        record: Record = {"protocol": protocol} | figures(row["metrics"], protocol)
        if method == own:
            record |= _report_choice(selection) | times(seconds)
            if protocol == "full":
                record["validation_curve"] = _curve(selection)
                if preset == "paper":
                    record["test_curve"] = _test_curve(module.search, model, data, selection)
        else:
            start = "random" if "random" in method else "mixed"
            name = f"{config['model']['kge']}, {start} start, not propagated"
            record = {"model": name} | record
        records.append(record)
    if preset == "best":
        records.append(_run_merged(module.search, model, data, seconds))
    return records


def heuristic_records(name: str, root: str | None, *, folder: Path) -> list[Record]:
    """Ranks the test triples by the edge-type heuristic, under both conventions for ties.

    It knows the observed inference graph alone.
    """
    data = load_data({"data": {"dataset": "grail", "name": name}}, root)
    assert data.test is not None
    heuristic = EdgeTypeHeuristic(
        data.inference.triples, data.inference.num_nodes, data.num_relations
    )
    scores = heuristic.score_tails, heuristic.score_heads
    result = evaluate(*scores, data.test, inference_filter(data))
    return _report_ranks(result, (*MAIN_METRICS, *(f"expected_{name}" for name in MAIN_METRICS)))


def load_data(config: dict[str, Any], root: str | None) -> InductiveData:
    """The data set of a configuration."""
    data = config["data"]
    return build_dataset(data["dataset"], name=data["name"], root=root).load()


def train_model(
    module: SheafCompletion, config: dict[str, Any], data: InductiveData, **changes: Any
) -> tuple[KGEModel, float]:
    """Trains for as long as the configuration says and takes the last weights."""
    trainer = {
        "max_epochs": config["trainer"]["max_epochs"],
        "max_steps": config["trainer"].get("max_steps", -1),
    }
    return train_plainly(module, data, _batch_size(config), **(trainer | changes))


def _batch_size(config: dict[str, Any]) -> int:
    return config["data"].get("batch_size", 512)


def train_until_it_stalls(
    module: SheafCompletion,
    config: dict[str, Any],
    data: InductiveData,
    folder: Path,
    watched: Tensor | None = None,
) -> tuple[KGEModel, float]:
    """Trains on 90 % of the training graph until Hits@10 of the rest has not grown twice.

    With ``watched``, all of the training graph is trained on, and these triples stop.
    """
    part, held = (data, watched) if watched is not None else hold_out(data, seed=0)
    # Without validation and test triples of the inference graph, which have no part in training.
    part = replace(part, train_valid=held, valid=None, test=None)
    stops: dict[str, Any] = {"monitor": "val/transductive/hits@10", "mode": "max"}
    best = ModelCheckpoint(dirpath=folder, enable_version_counter=False, **stops)
    model, seconds = train_model(
        module,
        config,
        part,
        folder=folder,
        enable_checkpointing=True,
        callbacks=[best, EarlyStopping(patience=2, **stops)],
        check_val_every_n_epoch=config["trainer"]["check_val_every_n_epoch"],
        limit_val_batches=None,
    )
    module.load_state_dict(torch.load(best.best_model_path, weights_only=True)["state_dict"])
    return model, seconds


def _reference(
    config: dict[str, Any], module: SheafCompletion, data: InductiveData, folder: Path
) -> list[Record]:
    """A model of the same kind and settings, trained on the observed inference graph itself."""
    alone, epochs = prepare_reference(
        module,
        data,
        max_epochs=config["trainer"]["max_epochs"],
        max_steps=config["trainer"].get("max_steps", -1),
        batch_size=_batch_size(config),
    )
    model, training = train_plainly(
        module, alone, _batch_size(config), folder=folder, max_epochs=epochs
    )
    seconds = {"train": training}
    assert data.test is not None
    begin = time.perf_counter()
    result = rank_triples(model, data.test, inference_filter(data))
    seconds["rank"] = time.perf_counter() - begin
    common = {"iterations": 0, "configurations_tried": 0} | times(seconds)
    return [record | common for record in _report_ranks(result)]


def _run_merged(
    search: PropagationSearch, model: KGEModel, data: InductiveData, seconds: dict[str, float]
) -> Record:
    """Validation and test triples together, so the settings come from the training graph.

    Among them is the share of the prototype section, which the presets have from validation.
    """
    begin = time.process_time()
    part, found = training_graph_as_new(data), []
    search = replace(search, max_triples=MOST_VALID)
    for share in PROTOTYPE_SHARES:
        settings = replace(search.settings, prototype_share=share)
        found.append(replace(search, settings=settings).select(model, part))
    selection = max(found, key=lambda one: one.value or 0.0)
    seconds = seconds | {"select": time.process_time() - begin}
    propagation = InductivePropagation(model, data, selection.settings)
    scorer = propagation.scorer()
    assert data.valid is not None
    assert data.test is not None
    result = evaluate(
        scorer.score_tails,
        scorer.score_heads,
        torch.cat([data.valid, data.test]),
        inference_filter(data),
    )
    return (
        {"protocol": "merged"}
        | figures(result.metrics("merged"), "merged")
        | _report_choice(selection, on="training graph")
        | {"prototype_share": selection.settings.prototype_share}
        | {"configurations_tried": sum(one.tried for one in found)}
        | times(seconds)
    )


def _test_curve(
    search: PropagationSearch, model: KGEModel, data: InductiveData, selection: Selection
) -> list[list[float]]:
    """Hits@10 of the test triples by iterations: shown beside the choice, never choosing."""
    assert data.test is not None
    known, curve = inference_filter(data), []
    propagation = InductivePropagation(model, data, selection.settings)
    for count, scorer in propagation.scorers(search.iterations):
        result = evaluate(scorer.score_tails, scorer.score_heads, data.test, known)
        curve.append([count, round(result.metrics("full")["hits@10"], 5)])
    return curve


def _curve(selection: Selection) -> list[list[Any]]:
    """Start, iterations and Hits@10 of every configuration that was tried."""
    return [[row["start"], row["iterations"], round(row["hits@10"], 5)] for row in selection.curve]


def _report_choice(selection: Selection, on: str = "validation") -> Record:
    chosen = selection.settings
    wanted = (chosen.start, chosen.step_size, chosen.iterations)
    (row,) = (
        row
        for row in selection.curve
        if (row["start"], row["step_size"], row["iterations"]) == wanted
    )
    return {
        "start": chosen.start,
        "iterations": chosen.iterations,
        "configurations_tried": selection.tried,
        "selected_on": on,
        "selection_hits@10": row["hits@10"],
        "selection_mrr": row["mrr"],
    }


def _report_ranks(result: RankingResult, names: Sequence[str] = MAIN_METRICS) -> list[Record]:
    return [
        {"protocol": protocol} | figures(result.metrics(protocol), protocol, names)
        for protocol in ("full", "sampled50")
    ]


def figures(
    metrics: dict[str, float], protocol: str, names: Sequence[str] = MAIN_METRICS
) -> Record:
    """Metrics of a protocol by their plain names; none may be anything but finite."""
    found = {name: metrics[PROTOCOLS[protocol].key(name)] for name in names}
    if not all(math.isfinite(value) for value in found.values()):
        raise ArithmeticError(f"a score of the protocol {protocol} is not finite: {found}")
    return found


def times(seconds: dict[str, float]) -> Record:
    """Times by name, with the memory and the machine that they were measured on."""
    found = {f"seconds_{name}": round(value, 2) for name, value in seconds.items()}
    found.setdefault("seconds_propagate", 0.0)
    measured = {"peak_bytes": peak_bytes(), "hardware": describe_hardware()}
    return found | measured | {"threads": torch.get_num_threads()}
