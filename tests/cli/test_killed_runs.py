"""Runs that are killed at any moment go on from their last validation to the same end."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import torch

from tests.cli.test_main import SMALL
from tests.toy import write_folder

KILLS = int(os.environ.get("SHEAFPROP_KILLS", "20"))
EPOCHS, INTERVAL = 60, 2
OPTIONS = [
    *SMALL,
    f"--trainer.max_epochs={EPOCHS}",
    f"--trainer.check_val_every_n_epoch={INTERVAL}",
    "--data.mode=semi-inductive",
]


class Server:
    """The process that forks the runs."""

    def __init__(self, folder):
        self.folder = folder
        environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.cli.killed_runs"],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def run(self, words, **when):
        job = {"words": words, "journal": str(self.folder / "journal")} | when
        job["output"] = str(self.folder / "output")
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        status = int(self.process.stdout.readline())
        assert status in (0, -9), (self.folder / "output").read_text()[-2000:]
        return status

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(timeout=30)


def moments():
    """When to kill: within training, around the renaming of checkpoints, after training."""
    rng = random.Random(0)
    for number in range(KILLS):
        kind = number % 4
        if kind == 0:
            moment = ("before", "within", "after")[number // 4 % 3]
            yield {"rename": rng.randint(1, 12), "suffix": ".ckpt", "moment": moment}
        elif kind == 1 and number % 8 == 5:
            yield {"rename": rng.randint(1, 3), "suffix": "", "moment": "within"}
        else:
            yield {"delay": rng.uniform(0, 0.6)}


def results(run):
    record = json.loads((run / "metrics.json").read_text())
    for name in ("seconds", "peak_bytes"):
        record.pop(name)
    record["run"].pop("name")
    record["training"].pop("seconds")
    record["selection"].pop("seconds")
    return record


def check_nothing_but_the_last_interval_is_lost(run, journal):
    begun = int(journal.read_text().split()[-1])  # as many epochs were finished
    validated = begun // INTERVAL * INTERVAL
    last = run / "checkpoints" / "last.ckpt"
    if last.exists():
        saved = torch.load(last, weights_only=True)["epoch"] + 1
        assert saved >= validated
    else:
        assert validated == 0


def test_a_killed_run_loses_only_its_last_interval_and_ends_the_same(tmp_path):
    data, group = write_folder(tmp_path / "ring"), tmp_path / "runs"
    fit = ["fit", *OPTIONS, f"--data.root={data}", f"--run.group={group}", "--run.name"]
    killed = finished = number = 0
    with Server(tmp_path) as server:
        assert server.run([*fit, "whole"]) == 0
        whole = group / "whole"
        waiting = list(moments())
        while waiting or (group / f"killed{number}").exists():
            run = group / f"killed{number}"
            resumable = (run / "checkpoints" / "last.ckpt").exists()
            words = ["fit", "--resume", str(run)] if resumable else [*fit, run.name]
            if not resumable and run.exists():
                run.rename(run.with_name(f"early{killed}"))
            when = waiting.pop(0) if waiting else {}
            if server.run(words, **when) == -9:
                killed += 1
                check_nothing_but_the_last_interval_is_lost(run, tmp_path / "journal")
                continue
            finished += 1
            number += 1
            assert results(run) == results(whole)
            for name in ("model/model.safetensors", "model/facts.npy", "report.md"):
                got, want = ((place / name).read_bytes() for place in (run, whole))
                assert got == want or name == "report.md", name
            assert not list(run.rglob(".sheafprop-*"))
    assert finished >= 1
    assert killed >= 0.7 * KILLS
