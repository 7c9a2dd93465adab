"""Propagation of vectors that are larger than memory, against the way of version 0.1.0.

"Files" counts mapped facts into mapped rows, writes the start in blocks of columns, and propagates
block by block; "memory" sorts all triple ends, as version 0.1.0 does, and propagates the whole
table. All vertices are free, maps are identity (with translations), unitary or real diagonal. Each
way runs in a process of its own, one after the other, and their results are compared. Times are
processor times; memory is anonymous, beyond what a process holds once everything is imported and
compiled.

The case "command" plays ``sheafprop propagate`` once, from a file of labels to a folder of vectors,
and compares its estimate with what it took. The case "costs" measures the constants of the
estimate.
"""

import argparse
import contextlib
import io
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from benchmarks.benchmark_cases import (
    STEP_SIZE,
    BenchmarkGraph,
    make_features,
    make_sheaf,
    power_law_multigraph,
)
from benchmarks.cells import Cell, CellStore, add_results_option, run_cells
from benchmarks.command_line import integer, report_errors
from benchmarks.measuring import (
    add_runs,
    anonymous_peak,
    in_own_process,
    measured_here,
    summarize,
)
from sheafprop.cli.main import main as sheafprop
from sheafprop.data import Vocabulary
from sheafprop.data.triple_blocks import triple_blocks
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.kernels.build_fact_csr import TripleChunk, build_fact_csr
from sheafprop.kernels.fact_csr import FactCSR
from sheafprop.kernels.label_table import LabelTable
from sheafprop.kge import build_model
from sheafprop.nn import SheafPropagation
from sheafprop.pretrained.mapped.array_folder import ArrayFolder, load_rows, save_rows
from sheafprop.pretrained.mapped.column_table import ColumnTable, split_columns
from sheafprop.pretrained.model_folder import write_model_folder
from sheafprop.pretrained.stored_model import StoredModel
from sheafprop.sheaf import PropagationPlan, RelationSheaf, plan
from sheafprop.sheaf.row_plan import needs_labels

ENTITIES, TRIPLES, WIDTH, STEPS = 300_000, 3_000_000, 128, 8
COMMAND_ENTITIES, COMMAND_TRIPLES = 5_000_000, 20_000_000
MAPS = ("identity", "diagonal", "diagonal, real")
#: Columns of a block: as many as an eighth of the memory of version 0.1.0 allows.
COLUMNS = {"identity": 32, "diagonal": 16, "diagonal, real": 32}
_RELATIONS = 200
_CHUNK = 2**18
# What constants are measured on, beside entries.
_READ_TRIPLES, _DRAWN_ROWS = 500_000, 20_000
_KINDS = {"identity": "identity", "diagonal": "complex", "diagonal, real": "real"}


# Both ways ---------------------------------------------------------------------------------------


def write_problem(folder: Path, maps: str, entities: int, triples: int, width: int) -> None:
    """Facts as int32 and the start as rows, in files."""
    graph = power_law_multigraph(entities, triples, _RELATIONS)
    facts = torch.stack([graph.edge_index[0], graph.edge_type, graph.edge_index[1]], dim=1)
    np.save(folder / "facts.npy", facts.int().numpy())
    np.save(folder / "start.npy", make_features(maps, entities, width).numpy())


def _measure(work: Callable[[], dict[str, float]]) -> dict[str, Any]:
    with anonymous_peak() as peak:
        held, begin = peak(), time.process_time()
        found = work()
        return found | {
            "seconds": time.process_time() - begin,
            "peak_bytes": peak() - held,
        }


def _in_memory(folder: Path, maps: str, width: int, steps: int) -> dict[str, Any]:
    """Plan and steps of version 0.1.0: all ends are sorted, all columns propagate together."""
    sheaf = make_sheaf(maps, _RELATIONS, width)
    small = power_law_multigraph(100, 1000, _RELATIONS)
    sort = mock.patch.object(plan, "can_count_rows", return_value=False)

    def propagate(graph: BenchmarkGraph, x: Tensor) -> tuple[Tensor, float]:
        layer = SheafPropagation(steps, step_size=STEP_SIZE)
        moving = layer.trajectory(graph.plan(sheaf, x), x, [1, steps])
        next(moving)
        begin = time.process_time()
        _, out = next(moving)
        return out, time.process_time() - begin

    def work() -> dict[str, float]:
        facts = torch.from_numpy(np.load(folder / "facts.npy")).long()
        x = torch.from_numpy(np.load(folder / "start.npy"))
        ends = facts[:, [0, 2]].T.contiguous(), facts[:, 1].contiguous()
        del facts
        out, seconds = propagate(BenchmarkGraph("", *ends, len(x), _RELATIONS), x)
        np.save(folder / "memory.npy", out.numpy())
        return {"step": seconds / (steps - 1)}

    with sort:
        propagate(small, make_features(maps, 100, width))
        return _measure(work)


def _from_files(folder: Path, maps: str, width: int, steps: int, most: int) -> dict[str, Any]:
    """Rows by counting, then one block of columns after the other."""
    sheaf = make_sheaf(maps, _RELATIONS, width)
    layer = SheafPropagation(steps, step_size=STEP_SIZE)

    def propagate(place: Path, facts: np.ndarray, start: np.ndarray) -> dict[str, float]:
        begin = time.process_time()
        rows = _count(place / "rows", facts, len(start), sheaf)
        counted = time.process_time()
        dtype = torch.from_numpy(start[:1].copy()).dtype
        blocks = split_columns(1, start.shape[2], most)
        tables = [
            ColumnTable(place / name, name, len(start), blocks, dtype) for name in ("start", "out")
        ]
        tables[0].write_rows(range(len(blocks)), _pieces(start))
        copied = time.process_time()
        stepping = 0.0
        for k, block in enumerate(blocks):
            times: list[float] = []

            def note(_: int, times: list[float] = times) -> None:
                times.append(time.process_time())

            x = layer.run_columns(
                rows,
                sheaf,
                tables[0].read_block(k),
                columns=block.columns,
                on_step=note,
            )
            # The first step comes after the block's own part of the plan.
            stepping += (times[-1] - times[0]) / (len(times) - 1)
            tables[1].write_block(k, x)
            del x
        found = {
            "step": stepping,
            "build": counted - begin,
            "copy": copied - counted,
            "entry_bytes": _entry_bytes(rows),
        }
        with tables[1].open_rows() as reader, open(place / "files.bin", "wb") as file:
            for piece in _pieces(start):
                file.write(reader.next(len(piece)).numpy().data)
        return found

    small = power_law_multigraph(100, 1000, _RELATIONS)
    few = torch.stack([small.edge_index[0], small.edge_type, small.edge_index[1]], dim=1)
    (folder / "small").mkdir(exist_ok=True)
    propagate(folder / "small", few.int().numpy(), make_features(maps, 100, width).numpy())
    facts = np.load(folder / "facts.npy", mmap_mode="r")
    start = np.load(folder / "start.npy", mmap_mode="r")
    return _measure(lambda: propagate(folder, facts, start))


def _count(folder: Path, facts: np.ndarray, num_nodes: int, sheaf: RelationSheaf) -> FactCSR:
    def chunks() -> Iterator[TripleChunk]:
        for begin in range(0, len(facts), _CHUNK):
            yield TripleChunk(*facts[begin : begin + _CHUNK].T)

    place = ArrayFolder(folder).clear()
    options: dict[str, Any] = {"merge": sheaf.is_constant, "ends": needs_labels(sheaf, "block")}
    rows = build_fact_csr(chunks, num_nodes, 0, sheaf.num_relations, allocate=place.make, **options)
    save_rows(place, rows)
    del rows
    return load_rows(place, num_nodes, 0, sheaf.num_relations)


def _pieces(start: np.ndarray) -> Iterator[Tensor]:
    for begin in range(0, len(start), 8192):
        yield torch.from_numpy(np.array(start[begin : begin + 8192]))


def _entry_bytes(rows: FactCSR) -> float:
    """Bytes of the operator for each message of a step."""
    parts = [part for part in (rows.free, rows.ends) if part is not None]
    tensors = [t for part in parts for t in (part.src, part.label, part.weight) if t is not None]
    return sum(t.numel() * t.element_size() for t in tensors) / max(1, rows.num_entries)


def measure_ways(
    maps: str, entities: int, triples: int, width: int, steps: int, most: int, folder: Path
) -> dict[str, Any]:
    """Times and memory of both ways, and how far their results are apart."""
    write_problem(folder, maps, entities, triples, width)
    memory = in_own_process(_in_memory, folder, maps, width, steps)
    files = in_own_process(_from_files, folder, maps, width, steps, most)
    a = np.load(folder / "memory.npy", mmap_mode="r")
    b = np.memmap(folder / "files.bin", a.dtype, "r", shape=a.shape)
    apart = max(
        float(np.abs(a[i : i + 8192] - b[i : i + 8192]).max()) for i in range(0, len(a), 8192)
    )
    if not apart <= 1e-6:
        raise AssertionError(f"the two ways give other vectors (apart by {apart:.2g})")
    return {
        "maps": maps,
        "triples": triples,
        "width": width,
        "steps": steps,
        "columns": most,
        "threads": torch.get_num_threads(),
        "apart": apart,
        "seconds_files": files["seconds"],
        "seconds_memory": memory["seconds"],
        "step_files": files["step"],
        "step_memory": memory["step"],
        "peak_bytes_files": files["peak_bytes"],
        "peak_bytes_memory": memory["peak_bytes"],
        "build_microseconds": 1e6 * files["build"] / triples,
        "entry_bytes": files["entry_bytes"],
        "ratio_step": files["step"] / memory["step"],
        "ratio_seconds": files["seconds"] / memory["seconds"],
        "ratio_peak": memory["peak_bytes"] / max(1, files["peak_bytes"]),
    }


# Memory of plans ---------------------------------------------------------------------------------


def _plan(maps: str, entities: int, triples: int, sorts: bool) -> dict[str, Any]:
    sheaf = make_sheaf(maps, _RELATIONS, 8)
    graph = power_law_multigraph(entities, triples, _RELATIONS)
    x = make_features(maps, 1, 8)

    def build(of: BenchmarkGraph) -> PropagationPlan:
        return of.plan(sheaf, x)

    with contextlib.ExitStack() as stack:
        if sorts:
            stack.enter_context(mock.patch.object(plan, "can_count_rows", return_value=False))
        build(power_law_multigraph(100, 1000, _RELATIONS))
        kept: list[PropagationPlan] = []

        def work() -> dict[str, float]:
            kept.append(build(graph))
            return {}

        return _measure(work)


def measure_plan(maps: str, entities: int, triples: int, folder: Path) -> dict[str, Any]:
    """Peak memory and time of plans in memory, counted and sorted."""
    found: dict[str, Any] = {
        "maps": maps,
        "triples": triples,
        "threads": torch.get_num_threads(),
    }
    for name, sorts in (("counted", False), ("sorted", True)):
        run = in_own_process(_plan, maps, entities, triples, sorts)
        found |= {
            f"bytes_{name}": run["peak_bytes"] / triples,
            f"microseconds_{name}": 1e6 * run["seconds"] / triples,
        }
    return found


# The command -------------------------------------------------------------------------------------


def write_command(folder: Path, entities: int, triples: int, width: int) -> None:
    """A model of a fifth of the entities, and facts of all of them as text."""
    known = entities // 5
    labels = Vocabulary((f"Q{i}" for i in range(known)), kind="entities")
    relations = Vocabulary((f"P{i}" for i in range(_RELATIONS)), kind="relations")
    with torch.device("meta"):
        model = build_model(
            "transe", num_nodes=known, num_relations=_RELATIONS, hidden_channels=width
        )
    model.to_empty(device="cpu")
    model.reset_parameters(0)
    few = power_law_multigraph(known, min(triples, 100_000), _RELATIONS, seed=1)
    facts = torch.stack([few.edge_index[0], few.edge_type, few.edge_index[1]], dim=1)
    settings = PropagationSettings(iterations=STEPS, start="prototype")
    stored = StoredModel.from_training(model, labels, relations, facts, settings=settings.to_dict())
    write_model_folder(folder / "model", stored)
    graph = power_law_multigraph(entities, triples, _RELATIONS, seed=2)
    with open(folder / "facts.tsv", "w") as file:
        for begin in range(0, triples, _CHUNK):
            part = slice(begin, begin + _CHUNK)
            columns = [ids[part].tolist() for ids in (*graph.edge_index, graph.edge_type)]
            file.writelines(f"Q{h}\tP{r}\tQ{t}\n" for h, t, r in zip(*columns, strict=True))


def _command(folder: Path, memory: str) -> dict[str, Any]:
    words = ["propagate", str(folder / "facts.tsv"), "--model", str(folder / "model")]
    words += ["--memory", memory, "--out", str(folder / "vectors"), "--overwrite"]
    said = io.StringIO()
    begin = time.perf_counter()

    def work() -> dict[str, float]:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            if sheafprop(words):
                raise RuntimeError(said.getvalue())
        return {}

    with anonymous_peak() as peak:
        found = _measure(work)
        whole = peak()
    return found | {
        "wall_seconds": time.perf_counter() - begin,
        "peak_bytes": whole,
        "said": said.getvalue(),
    }


def measure_command(
    entities: int, triples: int, width: int, memory: str, folder: Path
) -> dict[str, Any]:
    """What the command takes from text to vectors, and what it had estimated."""
    in_own_process(write_command, folder, entities, triples, width)
    run = in_own_process(_command, folder, memory)
    return {
        "maps": "identity",
        "triples": triples,
        "width": width,
        "steps": STEPS,
        "memory": memory,
        "threads": torch.get_num_threads(),
        "seconds": run["seconds"],
        "wall_seconds": run["wall_seconds"],
        "peak_bytes": run["peak_bytes"],
        "said": run["said"].strip(),
    }


# Constants of the estimate -----------------------------------------------------------------------


def measure_costs(entities: Sequence[int], folder: Path) -> dict[str, Any]:
    """The constants of ``cost_estimate``: reading, building, drawing, copying and entries."""
    found: dict[str, Any] = {"threads": torch.get_num_threads()}
    found |= _reading_costs(folder)
    lines: dict[str, list[list[float]]] = {}
    for maps in MAPS:
        for size in entities:
            line, build, held = _entry_costs(maps, size, folder)
            lines.setdefault(_KINDS[maps], []).append(line)
            found["build"] = max(found.get("build", 0.0), build)
            found["build_bytes_an_entity"] = held / size
    return found | {"entry": lines}


def _reading_costs(folder: Path) -> dict[str, float]:
    triples, rows, width = _READ_TRIPLES, _DRAWN_ROWS, WIDTH
    graph = power_law_multigraph(triples // 4, triples, _RELATIONS)
    columns = [ids.tolist() for ids in (*graph.edge_index, graph.edge_type)]
    with open(folder / "facts.tsv", "w") as file:
        file.writelines(f"Q{h}\tP{r}\tQ{t}\n" for h, t, r in zip(*columns, strict=True))

    def read() -> None:
        table = LabelTable()
        for block in triple_blocks(folder / "facts.tsv"):
            table.number(block.raw, block.begin.ravel(), block.end.ravel())

    with torch.device("meta"):
        model = build_model("transe", num_nodes=1, num_relations=1, hidden_channels=width)
    model.to_empty(device="cpu")
    keys = np.arange(rows, dtype=np.uint64)
    blocks = split_columns(1, width, 32)
    table = ColumnTable(folder / "copy", "x", rows, blocks, torch.float32)
    x = torch.zeros(rows, 1, width)
    return {
        "read": _best(read) / triples,
        "draw": _best(lambda: model.draw_entities(keys, 0)) / (rows * width),
        "copy": _best(lambda: table.write_rows(range(len(blocks)), x.split(4096))) / x.numel(),
    }


def _entry_costs(maps: str, entities: int, folder: Path) -> tuple[list[float], float, int]:
    """``[a, b]`` of ``a + b w`` nanoseconds an entry, seconds a triple to build rows, and the
    anonymous memory that this takes."""
    triples = 10 * entities if entities < 10**6 else 4 * entities
    graph = power_law_multigraph(entities, triples, _RELATIONS)
    facts = torch.stack([graph.edge_index[0], graph.edge_type, graph.edge_index[1]], dim=1).int()
    np.save(folder / "facts.npy", facts.numpy())
    del graph, facts
    mapped = np.load(folder / "facts.npy", mmap_mode="r")
    widths, nanoseconds = (16, 32, 64), []
    build, held = 0.0, 0
    for width in widths:
        sheaf = make_sheaf(maps, _RELATIONS, width)
        begin = time.process_time()
        with anonymous_peak() as peak:
            before = peak()
            rows = _count(folder / "rows", mapped, entities, sheaf)
            held = peak() - before
        build = (time.process_time() - begin) / triples
        x = make_features(maps, entities, width)
        whole = PropagationPlan.from_rows(rows, sheaf, dtype=x.dtype)
        seconds = _best(partial(whole.step, x, None, STEP_SIZE, torch.empty_like(x)))
        nanoseconds.append(1e9 * seconds / (2 * triples))
        del rows, x, whole
    b, a = np.polyfit(widths, nanoseconds, 1)
    return [round(max(0.0, float(a)), 2), round(float(b), 3)], build, held


def _best(work: Callable[[], Any], rounds: int = 3) -> float:
    times = []
    for _ in range(rounds):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times)


# Records -----------------------------------------------------------------------------------------


def _repeat(
    measure: Callable[..., dict[str, Any]], runs: int, *given: Any, folder: Path
) -> list[dict[str, Any]]:
    """Several runs of a case, each with a folder of its own on the disk, as one record."""
    found = []
    folder.mkdir(parents=True, exist_ok=True)
    for _ in range(runs):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            found.append(measure(*given, Path(place)))
    return [summarize(found) | measured_here()]


def describe(record: dict[str, Any]) -> str:
    """One line on a record."""
    case, maps = record["case"], record["maps"]
    if case == "files":
        return (
            f"{maps}, {record['entities']:,} entities, blocks of {record['columns']}: step "
            f"{record['ratio_step']:.2f}x, all {record['ratio_seconds']:.2f}x of memory's time, "
            f"peak 1/{record['ratio_peak']:.1f} ({record['peak_bytes_files'] / 2**20:.0f} MiB), "
            f"{record['build_microseconds']:.2f} us a triple to build"
        )
    if case == "plan":
        return (
            f"{maps} plan: {record['bytes_counted']:.0f} bytes and "
            f"{record['microseconds_counted']:.2f} us a triple (sorted: "
            f"{record['bytes_sorted']:.0f}, {record['microseconds_sorted']:.2f})"
        )
    if case == "command":
        return (
            f"{record['said']}\ntook: memory {record['peak_bytes'] / 1e9:.2f} GB, time "
            f"{record['wall_seconds']:.0f} s ({record['seconds']:.0f} s of processors)"
        )
    numbers = ", ".join(f"{record[name]:.2g}" for name in ("read", "build", "draw", "copy"))
    return f"READ, BUILD, DRAW, COPY = {numbers}\nENTRY = {record['entry']}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures the cases and writes the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cases = ("files", "plan", "costs", "command")
    add = parser.add_argument
    add("--only", nargs="+", choices=cases, default=cases[:3], help="cases (all but the command)")
    add("--maps", nargs="+", choices=MAPS, default=MAPS, help="(all)")
    add("--entities", type=integer(100), default=ENTITIES, help=f"({ENTITIES})")
    add("--triples", type=integer(100), default=TRIPLES, help=f"({TRIPLES})")
    add("--width", type=integer(2), default=WIDTH, help=f"real columns ({WIDTH})")
    add("--command-entities", type=integer(100), default=COMMAND_ENTITIES, help="of the command")
    add("--command-triples", type=integer(100), default=COMMAND_TRIPLES, help="of the command")
    add("--memory", default="6GB", help="of the command (6GB)")
    add_results_option(parser, "scale_propagation.jsonl")
    add_runs(parser)
    options = parser.parse_args(arguments)
    needed = ("threads", "hardware")
    store = CellStore(options.results, ("case", "maps", "entities"), needed)
    with report_errors(parser, "cases that were measured are kept"):
        store.check()
        run_cells(list(_cells(options)), store, threads=torch.get_num_threads(), again=True)
        for record in store.records():
            print(describe(record))


def _cells(options: argparse.Namespace) -> Iterator[Cell]:
    size = options.entities, options.triples
    for maps in options.maps if "files" in options.only else ():
        key = {"case": "files", "maps": maps, "entities": size[0]}
        columns = max(1, COLUMNS[maps] * options.width // WIDTH)
        of = maps, *size, options.width, STEPS, columns
        yield Cell(key, _repeat, (measure_ways, options.runs, *of))
    for maps in options.maps if "plan" in options.only else ():
        key = {"case": "plan", "maps": maps, "entities": size[0]}
        yield Cell(key, _repeat, (measure_plan, options.runs, maps, *size))
    if "costs" in options.only:
        sizes = size[0], 10 * size[0]
        key = {"case": "costs", "maps": "all", "entities": size[0]}
        yield Cell(key, _repeat, (measure_costs, 1, sizes))
    if "command" in options.only:
        of_command = options.command_entities, options.command_triples, options.width
        key = {"case": "command", "maps": "identity", "entities": options.command_entities}
        yield Cell(key, _repeat, (measure_command, 1, *of_command, options.memory))
