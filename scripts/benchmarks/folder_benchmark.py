"""Times opening, look-ups, extensions and predictions on the folder of a large model.

Every run measures in a process of its own, against what format 2 and 3 do where that is asked for.
Processor seconds are given beside seconds, as other programs change them less.
"""

import argparse
import gc
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.cells import write_records
from benchmarks.measuring import (
    add_runs,
    in_own_process,
    measured_here,
    most_memory_held,
    summarize,
    with_peak,
)
from benchmarks.service_benchmark import new_facts
from benchmarks.tables.benchmark_tables import folder_table
from sheafprop.data import Vocabulary
from sheafprop.kge import build_model
from sheafprop.nn import RelationPrototypes
from sheafprop.pretrained.blocks import RowBlocks
from sheafprop.pretrained.entity_index import EntityIndex
from sheafprop.pretrained.fact_index import FactBlock, FactIndex
from sheafprop.pretrained.model_folder import open_model_folder, write_model_folder
from sheafprop.pretrained.model_state import ModelState
from sheafprop.pretrained.sheaf_model import SheafModel
from sheafprop.pretrained.stored_model import ModelHead
from sheafprop.pretrained.tensor_file import StoredFile

_RELATIONS = 50
_TURNS = 5
_LABELS, _NEW = 10_000, 1_000


class NumberedLabels:
    """The labels e0, e1, ... of trained entities, without a list of them.

    Args:
        size (int): How many.
    """

    file: StoredFile | None = None

    def __init__(self, size: int):
        self._size = size

    def lookup(self, labels: Sequence[str]) -> Tensor:
        return torch.tensor([int(label[1:]) for label in labels])

    def labels(self, start: int, stop: int) -> Sequence[str]:
        return [f"e{i}" for i in range(start, stop)]

    def origins(self, start: int, stop: int) -> Sequence[str]:
        return ["trained"] * (stop - start)

    def find_folded(self, wanted: Collection[str]) -> Iterator[tuple[int, str]]:
        return iter([(int(text[1:]), text) for text in wanted])

    def __len__(self) -> int:
        return self._size


def write_large(folder: str, entities: int, facts: int, width: int, layout: str) -> dict[str, Any]:
    """Writes a RotatE of random parameters and facts; ``width`` counts real numbers."""
    with torch.device("meta"):
        model = build_model(
            "rotate", num_nodes=entities, num_relations=_RELATIONS, hidden_channels=width // 2
        )
    g = torch.Generator().manual_seed(0)
    state = model.state_dict()
    # In a file, so that memory is left for others.
    scratch = f"{folder}.table"
    shape = state.pop("node_emb.weight").shape
    table = torch.from_file(scratch, shared=True, size=shape.numel()).view(shape)
    for part in table.split(2**16):
        part.normal_(std=width**-0.5, generator=g)
    own = {name: torch.randn(value.shape, generator=g) for name, value in state.items()}
    model.load_state_dict(own | {"node_emb.weight": table}, assign=True)
    triples = torch.randint(entities, (facts, 3), generator=g, dtype=torch.int32)
    triples[:, 1] %= _RELATIONS
    head = ModelHead(
        model=model,
        relations=Vocabulary((f"r{i}" for i in range(_RELATIONS)), kind="relations"),
        prototypes=RelationPrototypes(
            torch.zeros(2 * _RELATIONS, width // 2, dtype=torch.complex64),
            torch.zeros(2 * _RELATIONS, dtype=torch.int64),
        ),
        residual_variance=torch.zeros(_RELATIONS),
    )
    rows = RowBlocks([model.entity_vectors().detach().unsqueeze(1)])
    index, known = EntityIndex.of([NumberedLabels(entities)]), FactIndex(FactBlock(triples))
    whole = ModelState(head, index, rows, known, (1.0,), facts)
    begin = time.perf_counter()
    write_model_folder(folder, whole, layout=layout)  # type: ignore[arg-type]
    seconds = time.perf_counter() - begin
    Path(scratch).unlink()
    return {"seconds": seconds}


def measure(folder: str, scratch: str) -> dict[str, Any]:
    """What is done with a mapped folder, in this process alone."""
    # What is compiled or imported once is no part of it.
    model = SheafModel.load(folder)
    entities = model.num_entities
    model.predict_tails("e1", "r1")
    model.extend(new_facts(2, entities)).report.summary()  # type: ignore[union-attr]
    del model
    gc.collect()

    before = _anonymous()
    opened, open_times = _turns(lambda: SheafModel.load(folder))
    found: dict[str, Any] = {"open_bytes": max(0, _anonymous() - before)}
    found |= _named("open", open_times)

    g = torch.Generator().manual_seed(2)
    labels = [f"e{i}" for i in torch.randint(entities, (_LABELS,), generator=g).tolist()]
    found |= _named("lookup", _turns(lambda: opened.vectors(labels))[1])

    passes, predictions = [], []
    for turn in range(_TURNS):
        passes += _turns(_read_table, 1, prepare=lambda: open_model_folder(folder))[1]
        predictions += _turns(
            lambda model, turn=turn: model.predict_tails(f"e{turn}", "r1"),
            1,
            prepare=lambda: SheafModel.load(folder),
        )[1]
    found |= _named("pass", passes) | _named("predict", predictions)
    found["ratio_pass"] = found["predict_seconds"] / found["pass_seconds"]
    found["ratio_pass_cpu"] = found["predict_cpu"] / found["pass_cpu"]

    facts = new_facts(_NEW, entities)

    def extend(model: SheafModel) -> None:
        grown = model.extend(facts)
        grown.report.summary()  # type: ignore[union-attr]
        grown.save(scratch, overwrite=True)

    _, times = _turns(extend, prepare=lambda: SheafModel.load(folder))
    found |= _named("extend", times)
    return found


def measure_plain(folder: str) -> dict[str, Any]:
    """What opening a folder that is read whole takes."""
    begin = time.perf_counter(), time.process_time()
    _, peak = with_peak(lambda: SheafModel.load(folder))
    seconds, cpu = time.perf_counter() - begin[0], time.process_time() - begin[1]
    return {
        "plain_seconds": seconds,
        "plain_cpu": cpu,
        "plain_peak_bytes": peak or most_memory_held(),
    }


def _read_table(state: ModelState) -> None:
    for rows in state.rows.slices(2**16):
        torch.view_as_real(rows).sum()


def _turns(
    function: Callable[..., Any], turns: int = _TURNS, prepare: Callable[[], Any] | None = None
) -> tuple[Any, list[tuple[float, float]]]:
    """The last result, and seconds and processor seconds of each turn."""
    times, result = [], None
    for _ in range(turns):
        given = () if prepare is None else (prepare(),)
        begin = time.perf_counter(), time.process_time()
        result = function(*given)
        times.append((time.perf_counter() - begin[0], time.process_time() - begin[1]))
    return result, times


def _named(name: str, times: list[tuple[float, float]]) -> dict[str, float]:
    """The least of the turns: what other programs take is no part of it."""
    return {
        f"{name}_seconds": min(seconds for seconds, _ in times),
        f"{name}_cpu": min(cpu for _, cpu in times),
    }


def _anonymous() -> int:
    """Memory of this process that no file backs."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return 1024 * int(line.split()[1])
    raise OSError("no RssAnon in /proc/self/status")


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entities", type=int, default=1_000_000)
    parser.add_argument("--facts", type=int, help="(default: three for each entity)")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--plain", action="store_true", help="also a folder that is read whole")
    parser.add_argument(
        "--folder", metavar="FOLDER", type=Path, help="where to write (default: a temporary one)"
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the results there")
    add_runs(parser)
    options = parser.parse_args(arguments)
    facts = 3 * options.entities if options.facts is None else options.facts
    size = options.entities, facts, options.width
    place = Path(tempfile.mkdtemp(dir=options.folder, prefix="folder-benchmark-"))
    try:
        in_own_process(write_large, str(place / "model"), *size, "mapped")
        if options.plain:
            in_own_process(write_large, str(place / "plain"), *size, "plain")
        runs = []
        for _ in range(options.runs):
            found = in_own_process(measure, str(place / "model"), str(place / "grown"))
            if options.plain:
                found |= in_own_process(measure_plain, str(place / "plain"))
                found["ratio_plain_cpu"] = found["plain_cpu"] / found["open_cpu"]
            runs.append(found)
        total = sum(path.stat().st_size for path in (place / "model").rglob("*") if path.is_file())
    finally:
        shutil.rmtree(place)
    shape = {"entities": options.entities, "facts": facts, "width": options.width}
    more = {"threads": torch.get_num_threads(), "folder_bytes": total}
    cases = [summarize(runs) | shape | more | measured_here()]
    print(folder_table(cases))
    if options.json is not None:
        write_records(options.json, cases)
