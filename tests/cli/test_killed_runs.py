"""Runs that are killed at any moment go on from their last validation to the same end."""

import json
import os
import random

import torch

from tests.cli.test_main import SMALL
from tests.forked import python
from tests.toy import write_folder

KILLS = int(os.environ.get("SHEAFPROP_KILLS", "10"))
EPOCHS, INTERVAL = 60, 2
OPTIONS = [
    *SMALL,
    f"--trainer.max_epochs={EPOCHS}",
    f"--trainer.check_val_every_n_epoch={INTERVAL}",
    "--data.mode=semi-inductive",
]


def run(words, journal, **when):
    """The exit status of a command that may kill itself."""
    job = {"words": words, "journal": str(journal)} | when
    done = python("-m", "tests.cli.killed_runs", json.dumps(job))
    assert done.returncode in (0, -9), done.stderr[-2000:]
    return done.returncode


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
            # In epochs, so that the speed of the machine does not decide how many runs are killed.
            yield {"epoch": rng.randint(1, 8), "delay": rng.uniform(0, 0.004)}


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
    journal = tmp_path / "journal"
    assert run([*fit, "whole"], journal) == 0
    whole = group / "whole"
    waiting = list(moments())
    while waiting or (group / f"killed{number}").exists():
        folder = group / f"killed{number}"
        resumable = (folder / "checkpoints" / "last.ckpt").exists()
        words = ["fit", "--resume", str(folder)] if resumable else [*fit, folder.name]
        if not resumable and folder.exists():
            folder.rename(folder.with_name(f"early{killed}"))
        when = waiting.pop(0) if waiting else {}
        if run(words, journal, **when) == -9:
            killed += 1
            check_nothing_but_the_last_interval_is_lost(folder, journal)
            continue
        finished += 1
        number += 1
        assert results(folder) == results(whole)
        for name in ("model/model.safetensors", "model/facts.npy", "report.md"):
            got, want = ((place / name).read_bytes() for place in (folder, whole))
            assert got == want or name == "report.md", name
        assert not list(folder.rglob(".sheafprop-*"))
    assert finished >= 1
    assert killed >= 0.7 * KILLS
