"""The way from one file of facts to predictions in a large graph, command by command.

Synthetic facts, whose relations shift an entity's number, with a share of random tails. The
commands are those of docs/scale.md, each in a process of its own: wall time, processor time, and
the most anonymous memory, imports included (what is mapped from files is left out). A command that
is finished is not played again, so an interrupted walk goes on.
"""

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cells import Cell, CellStore, add_results_option, run_cells
from benchmarks.command_line import integer, report_errors
from benchmarks.measuring import measured_here
from sheafprop.report.tables import markdown_table

ENTITIES, TRIPLES, RELATIONS = 5_000_000, 20_000_000, 50
#: New entities, and the share of an epoch that is trained.
NEW, SHARE = 10_000, 0.01
_PIECE = 500_000
_INTERVAL = 0.05


def write_facts(path: Path, entities: int, triples: int) -> None:
    """Writes the facts as lines of head, relation and tail."""
    rng = np.random.default_rng(0)
    with path.open("w", encoding="utf-8") as file:
        for first in range(0, triples, _PIECE):
            size = min(_PIECE, triples - first)
            head = rng.integers(0, entities, size)
            relation = rng.integers(0, RELATIONS, size)
            shifted = (head + 1 + 7 * relation + rng.integers(0, 3, size)) % entities
            skewed = (rng.random(size) ** 3 * entities).astype(np.int64)
            tail = np.where(rng.random(size) < 0.8, shifted, skewed)
            rows = zip(head.tolist(), relation.tolist(), tail.tolist(), strict=True)
            file.write("".join(f"Q{h}\tP{r}\tQ{t}\n" for h, r, t in rows))


def commands(entities: int, memory: str) -> dict[str, list[str]]:
    """The commands by name, to be given in one folder, in this order."""
    model = "runs/graph/rotate"
    return {
        "split": [
            *("split", "facts.tsv", "--out", "graph", "--mode", "semi-inductive"),
            *("--new-fraction", f"{min(0.2, NEW / entities)}"),
        ],
        "fit": [
            *("fit", "--config", "experiment/folder", "--data.root", "graph"),
            *("--data.mode", "semi-inductive", "--model.optimizer", "rowwise_adagrad"),
            *("--model.sparse", "true", "--model.num_candidates", "1024"),
            *("--trainer.max_epochs", "1", "--trainer.limit_train_batches", f"{SHARE}"),
            *("--model.propagation.max_triples", "100", "--config", "logger/csv"),
        ],
        "propagate": [
            *("propagate", "graph/inference.txt", "--model", model),
            *("--memory", memory, "--out", "vectors"),
        ],
        "extend": ["extend", model, "graph/inference.txt", "--out", "larger"],
        "predict": ["predict", "larger", "--queries", "queries.tsv", "--out", "predictions.tsv"],
        "explain": ["explain", "larger", "--entity", "NEW"],
    }


def play(command: Sequence[str], folder: Path, threads: int) -> dict[str, Any]:
    """Runs a command in a folder: its times and the most anonymous memory that it held.

    Raises:
        RuntimeError: If it fails; its last words are in the message.
    """
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    most = 0
    with (folder / "output.txt").open("w+") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": str(threads)},
        )
        while process.poll() is None:
            most = max(most, _anonymous(process.pid))
            time.sleep(_INTERVAL)
        output.seek(0)
        said = output.read()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {said[-2000:]}")
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "wall_seconds": round(time.perf_counter() - begin, 1),
        "seconds": round(used, 1),
        "peak_bytes": most,
        # Without where it was run.
        "said": said.replace(f"{folder}{os.sep}", "")[-1000:],
    }


def _anonymous(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    for line in status.splitlines():
        if line.startswith("RssAnon:"):
            return 1024 * int(line.split()[1])
    return 0


def play_step(
    name: str, work: Path, entities: int, triples: int, memory: str, threads: int, folder: Path
) -> list[dict[str, Any]]:
    """Plays one step of the walk in the folder ``work``."""
    work.mkdir(parents=True, exist_ok=True)
    if name == "facts":
        begin = time.process_time()
        write_facts(work / "facts.tsv", entities, triples)
        return [{"seconds": round(time.process_time() - begin, 1)} | _measured(threads)]
    if name == "predict":
        _write_queries(work)
    command = commands(entities, memory)[name]
    if name == "explain":
        command[-1] = _new_entity(work)
    whole = [str(Path(sys.executable).with_name("sheafprop")), *command]
    found = play(whole, work, threads)
    return [{"command": " ".join(["sheafprop", *command])} | found | _measured(threads)]


def _measured(threads: int) -> dict[str, Any]:
    return {"threads": threads} | measured_here()


def _new_entity(work: Path) -> str:
    with (work / "graph" / "inference_test.txt").open(encoding="utf-8") as file:
        return file.readline().split("\t")[0]


def _write_queries(work: Path, most: int = 100) -> None:
    """Heads and relations of test triples whose ends were seen, with the tail left to be found."""
    seen = set()
    with (work / "graph" / "inference.txt").open(encoding="utf-8") as file:
        for line in file:
            seen.add(line.split("\t")[0])
    kept: list[str] = []
    with (work / "graph" / "inference_test.txt").open(encoding="utf-8") as file:
        for line in file:
            head, relation, _ = line.split("\t")
            if head in seen and len(kept) < most:
                kept.append(f"{head}\t{relation}\t?\n")
    (work / "queries.tsv").write_text("".join(kept), encoding="utf-8")


def walk_table(records: Sequence[dict[str, Any]]) -> str:
    """The commands of the largest walk that is stored, with their cost, as Markdown."""
    size = max(r["triples"] for r in records)
    rows = [
        [f"`{r['command']}`", f"{r['seconds']:,.0f} s", f"{r['peak_bytes'] / 1e9:.1f} GB"]
        for r in records
        if r["triples"] == size and "command" in r
    ]
    return markdown_table(["command", "CPU time", "memory"], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Plays the walk and prints what each step took."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("folder", type=Path, help="where the files of the walk lie, some 20 GB for the whole size")
    add("--entities", type=integer(1000), default=ENTITIES, help=f"({ENTITIES})")
    add("--triples", type=integer(1000), default=TRIPLES, help=f"({TRIPLES})")
    add("--memory", default="6GB", help="of propagate (6GB)")
    add("--threads", type=integer(1), default=1, help="of each command (1)")
    add_results_option(parser, "large_graph.jsonl")
    options = parser.parse_args(arguments)
    store = CellStore(options.results, ("step", "entities", "triples"), ("threads", "hardware"))
    names = ["facts", *commands(options.entities, options.memory)]
    size = {"entities": options.entities, "triples": options.triples}
    work = options.folder.resolve()
    with report_errors(parser, "steps that were played are kept"):
        store.check()
        for name in names:
            of = name, work, *size.values(), options.memory, options.threads
            run_cells([Cell({"step": name} | size, play_step, of)], store, threads=options.threads)
        for record in store.records():
            peak = record.get("peak_bytes")
            memory = "" if peak is None else f", {peak / 1e9:.2f} GB"
            print(f"{record['step']}: {record['seconds']:.0f} s of processors{memory}")
