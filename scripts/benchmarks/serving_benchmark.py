"""Counts the predictions that the service of ``examples/serve.py`` gives a second.

Clients that keep their connection open ask for the ten best tails of random heads and relations of
a random model. They are threads of a process of their own, which shares the cores with the service.
"""

import argparse
import json
import runpy
import statistics
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.cells import write_records
from benchmarks.command_line import integer
from benchmarks.measuring import add_runs, measured_here, summarize
from benchmarks.service_benchmark import large_model
from sheafprop.data import Vocabulary
from sheafprop.report.tables import markdown_table

EXAMPLE = Path(__file__).parents[2] / "examples" / "serve.py"
#: Asks for some seconds, and prints the seconds that each answer took.
_CLIENTS = """
import http.client, json, random, sys, threading, time
port, clients, entities, relations, seconds = map(float, sys.argv[1:])
found, errors, end = [], [], time.monotonic() + seconds
def ask(seed):
    draw, link = random.Random(seed), http.client.HTTPConnection("127.0.0.1", int(port))
    while time.monotonic() < end:
        head, relation = draw.randrange(int(entities)), draw.randrange(int(relations))
        begin = time.perf_counter()
        link.request("GET", f"/predict?head=e{head}&relation=r{relation}&k=10")
        answer = link.getresponse()
        if len(json.loads(answer.read())) != 10 or answer.status != 200:
            errors.append(answer.status)
        found.append(time.perf_counter() - begin)
threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(int(clients))]
begin = time.perf_counter()
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps([time.perf_counter() - begin, found, errors]))
"""


def load_service() -> type:
    """The class of the example."""
    return runpy.run_path(str(EXAMPLE), run_name="example")["Service"]


def measure(service: Any, clients: int, seconds: float) -> dict[str, Any]:
    """Answers a second, and how long they take, with so many clients at once."""
    model = service.model
    numbers = (service.server_port, clients, model.num_entities, len(model.relations), seconds)
    words = [sys.executable, "-c", _CLIENTS, *map(str, numbers)]
    whole, times, errors = json.loads(subprocess.check_output(words))
    if errors:
        raise RuntimeError(f"{len(errors)} requests failed, such as with status {errors[0]}")
    cuts = statistics.quantiles(times, n=100)
    return {
        "entities": model.num_entities,
        "clients": clients,
        "answers_per_second": len(times) / whole,
        "median_ms": 1000 * cuts[49],
        "p99_ms": 1000 * cuts[98],
    }


def serving_table(cases: Sequence[dict[str, Any]]) -> str:
    """The cases as Markdown."""
    rows = [
        [f"{c['entities']:,}", str(c["clients"]), f"{c['answers_per_second']:,.0f}",
         f"{c['median_ms']:.1f} ms", f"{c['p99_ms']:.1f} ms"]
        for c in cases
    ]  # fmt: skip
    return markdown_table(["entities", "clients", "answers a second", "median", "99 of 100"], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--entities", nargs="+", type=integer(100), default=[10_000, 100_000])
    add("--clients", nargs="+", type=integer(1), default=[1, 4, 16])
    add("--width", type=int, default=128, help="real numbers of a vector (128)")
    add("--seconds", type=float, default=5.0, help="that each case is asked for (5)")
    add("--json", metavar="FILE", type=Path, help="also write the results there")
    add_runs(parser)
    options = parser.parse_args(arguments)
    cases, serve = [], load_service()
    for number in options.entities:
        entities = Vocabulary((f"e{i}" for i in range(number)), kind="entities")
        service = serve(large_model("rotate", entities, options.width))
        threading.Thread(target=service.serve_forever, daemon=True).start()
        facts = measured_here() | {"model": "rotate", "width": options.width}
        facts["threads"] = torch.get_num_threads()
        for clients in options.clients:
            runs = [measure(service, clients, options.seconds) for _ in range(options.runs)]
            cases.append(summarize(runs) | facts)
        service.shutdown()
        service.server_close()
    print(serving_table(cases))
    if options.json is not None:
        write_records(options.json, cases)
