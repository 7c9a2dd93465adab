"""Times extensions and predictions of a large model against recomputing and bare products."""

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.cells import write_records
from benchmarks.measuring import (
    add_runs,
    interleave,
    measured_here,
    summarize,
    time_call,
    with_peak,
)
from benchmarks.tables.benchmark_tables import service_table
from sheafprop.data import Vocabulary
from sheafprop.kge import build_model
from sheafprop.nn import HarmonicExtension, RelationPrototypes
from sheafprop.pretrained.sheaf_model import SheafModel
from sheafprop.pretrained.stored_model import StoredModel

_RELATIONS = 50
#: The maps of each model, and real numbers for each of its coordinates.
_MODELS = {
    "transe": ("identity", 1),
    "rotate": ("diagonal, complex", 2),
    "pairre": ("diagonal, real", 1),
    "transr": ("dense, shared", 1),
    "se": ("dense, pair", 1),
}
# Facts for each old entity, and for each new one.
_OLD_FACTS, _NEW_FACTS = 3, 10
_TURNS = 7
# Ends by itself when its time is over or the program that started it is gone.
_LOOP = """
import os, sys, time
parent, end = os.getppid(), time.monotonic() + float(sys.argv[1])
while time.monotonic() < end and os.getppid() == parent:
    sum(range(10**5))
"""


def large_model(name: str, entities: Vocabulary, width: int) -> SheafModel:
    """A model of random parameters and facts; ``width`` counts real numbers."""
    num_entities = len(entities)
    with torch.device("meta"):
        model = build_model(
            name,
            num_nodes=num_entities,
            num_relations=_RELATIONS,
            hidden_channels=width // _MODELS[name][1],
        )
    g = torch.Generator().manual_seed(0)
    state = {
        key: torch.randn(value.shape, generator=g) / value.shape[-1] ** 0.5
        for key, value in model.state_dict().items()
    }
    model.load_state_dict(state, assign=True)
    d = model.hidden_channels
    dtype = torch.complex64 if model.is_complex else torch.float32
    num_facts = _OLD_FACTS * num_entities
    facts = torch.randint(num_entities, (num_facts, 3), generator=g)
    facts[:, 1] %= _RELATIONS
    return SheafModel(
        StoredModel(
            model=model,
            entities=entities,
            relations=Vocabulary((f"r{i}" for i in range(_RELATIONS)), kind="relations"),
            origins=("trained",) * num_entities,
            facts=facts,
            prototypes=RelationPrototypes(
                torch.zeros(2 * _RELATIONS, d, dtype=dtype),
                torch.zeros(2 * _RELATIONS, dtype=torch.int64),
            ),
            residual_variance=torch.zeros(_RELATIONS),
        )
    )


def new_facts(count: int, num_entities: int, each: int = _NEW_FACTS) -> list[tuple[str, str, str]]:
    """Facts of new entities, a fifth of them with another new one."""
    g = torch.Generator().manual_seed(1)
    rows = torch.randint(0, 2**31, (count * each, 4), generator=g).tolist()
    facts = []
    for i, (other, relation, side, kind) in enumerate(rows):
        near = f"n{other % count}" if kind % 5 == 0 and count > 1 else f"e{other % num_entities}"
        pair = (f"n{i // each}", near) if side % 2 else (near, f"n{i // each}")
        facts.append((pair[0], f"r{relation % _RELATIONS}", pair[1]))
    return facts


@contextmanager
def busy_processes(count: int, *, most_seconds: float = 3600.0) -> Iterator[None]:
    """Runs ``count`` processes that each keep a core busy, and ends them in any case.

    Args:
        count (int): How many.
        most_seconds (float): When they end by themselves.

    Raises:
        RuntimeError: If one of them ended before what was inside: the machine was not kept busy.
    """
    with ExitStack() as stack:
        processes = []
        for _ in range(count):
            command = [sys.executable, "-I", "-S", "-c", _LOOP, str(most_seconds)]
            # Left in the opposite order: killed first, then waited for.
            process = stack.enter_context(subprocess.Popen(command))
            stack.callback(process.kill)
            processes.append(process)
        yield
        ended = sum(process.poll() is not None for process in processes)
        if ended:
            raise RuntimeError(
                f"{ended} of {count} busy processes ended before the measurement did, after at "
                f"most {most_seconds:g} s: measure fewer cases at once"
            )


def measure(name: str, entities: Vocabulary, width: int, busy: int = 0) -> dict[str, Any]:
    """Times of one model, beside ``busy`` processes that each keep a core busy."""
    model = large_model(name, entities, width)
    with busy_processes(busy):
        return {"model": name, "busy_processes": busy, **_measure(model, width)}


def _measure(model: SheafModel, width: int) -> dict[str, Any]:
    num_entities = model.num_entities
    thousand, one = new_facts(1000, num_entities), new_facts(1, num_entities)
    grown, peak = with_peak(lambda: model.extend(thousand))
    extensions = interleave(
        {"thousand": lambda: model.extend(thousand), "one": lambda: model.extend(one)}, _TURNS
    )
    predictions = interleave(
        {
            "predict": lambda: model.predict_tails("e1", "r1", k=10),
            "bare": _bare_product(model, width),
        },
        _TURNS,
    )
    recomputed = _time_recompute(model, grown)
    return {
        "maps": _MODELS[model.kge.name][0],
        "threads": torch.get_num_threads(),
        "extend_seconds": extensions["thousand"],
        "extend_peak_bytes": peak,
        "extend_one_seconds": extensions["one"],
        "ratio_recompute": recomputed / extensions["thousand"],
        "predict_seconds": predictions["predict"],
        "bare_seconds": predictions["bare"],
        "ratio_bare": predictions["predict"] / predictions["bare"],
    }


def _bare_product(model: SheafModel, width: int) -> Callable[[], Tensor]:
    """What a prediction cannot do without: one product of the table, in plain torch."""
    table = model.kge.node_emb.weight.detach()
    if _MODELS[model.kge.name][0].startswith("dense"):
        matrix = model.kge.sheaf().matrices("tail", torch.tensor([0]))[0].detach()
        return lambda: table @ matrix.T
    query, squares = torch.randn(width), table.square().sum(1)
    out = torch.empty(len(table))
    return lambda: torch.addmv(squares, table, query, alpha=-2, out=out).clamp_(0).sqrt_()


def _time_recompute(model: SheafModel, grown: SheafModel) -> float:
    """Seconds for the same extension over all rows, as one call of the layer."""
    facts = grown.stored().facts
    new = grown.vectors(grown.labels()[model.num_entities :])[:, 0]
    x = torch.cat([model.kge.entity_vectors().detach(), new])
    known = torch.arange(len(x)) < model.num_entities
    layer = HarmonicExtension(tol=1e-6)
    with torch.no_grad():
        _, seconds = time_call(
            lambda: layer(
                x, facts[:, [0, 2]].T, facts[:, 1], model.kge.sheaf(), boundary_mask=known
            )
        )
    return seconds


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entities", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--models", nargs="+", choices=sorted(_MODELS), default=list(_MODELS))
    parser.add_argument(
        "--busy",
        type=int,
        choices=range(65),
        metavar="N",
        default=0,
        help="keep so many cores busy by other processes meanwhile, which are ended in any case",
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the results there")
    add_runs(parser)
    options = parser.parse_args(arguments)
    entities = Vocabulary((f"e{i}" for i in range(options.entities)), kind="entities")
    runs = [
        [measure(name, entities, options.width, options.busy) for name in options.models]
        for _ in range(options.runs)
    ]
    facts = measured_here() | {
        "entities": options.entities,
        "facts": _OLD_FACTS * options.entities,
        "width": options.width,
    }
    cases = [summarize(found) | facts for found in zip(*runs, strict=True)]
    print(service_table(cases))
    if options.json is not None:
        write_records(options.json, cases)
