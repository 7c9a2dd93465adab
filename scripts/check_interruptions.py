#!/usr/bin/env python
"""Kills and refuses commands at random moments, and checks what they leave behind.

``fit``, ``fit --resume``, ``test``, ``tune``, ``extend`` and ``import`` are killed (SIGKILL) on a
small graph, and given options that cannot hold. What a command writes must be as before or
complete, and the next command must work. By hand:

    python scripts/check_interruptions.py               # 20 of each
    python scripts/check_interruptions.py --kills 2 --only test extend
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

import sheafprop.cli.lightning
import sheafprop.cli.study
from sheafprop.cli.main import main as sheafprop
from sheafprop.pretrained.sheaf_model import SheafModel

OPTIONS = [
    "--config=experiment/folder",
    "--config=logger/csv",
    "--data.mode=semi-inductive",
    "--trainer.max_epochs=6",
    "--trainer.check_val_every_n_epoch=2",
    "--trainer.accelerator=cpu",
    "--trainer.enable_progress_bar=false",
    "--model.hidden_channels=8",
    "--model.propagation.iterations=[1,4]",
    "--model.propagation.settings.num_random=2",
    "--model.episodes.num_steps=12",
    "--model.episodes.batch_size=8",
    "--model.episodes.num_random=2",
    "--model.proximity.weight=0.3",
]
SPACE = "model.lr: {type: float, low: 0.01, high: 0.1, log: true}\n"


class Check(AssertionError):
    """Something that an interrupted command must not leave."""


def write_data(folder: Path) -> Path:
    """Places on a ring, some of which are new."""
    folder.mkdir(parents=True)
    steps = {"next": 1, "skip": 2, "far": 7}
    triples = [(f"a{i}", r, f"a{(i + s) % 24}") for i in range(24) for r, s in steps.items()]
    new = {f"a{i}" for i in range(3, 24, 4)}
    files: dict[str, list[tuple[str, str, str]]] = {}
    for number, triple in enumerate(triples):
        if not {triple[0], triple[2]} & new:
            name = "train" if number % 10 else "valid"
        else:
            name = ("inference_valid", "inference_test", *["inference"] * 3)[number % 5]
        files.setdefault(name, []).append(triple)
    for name, rows in files.items():
        (folder / f"{name}.txt").write_text("".join("\t".join(row) + "\n" for row in rows))
    return folder


def run(words: list[str], delay: float | None = None) -> int:
    """The exit status of a command in a process of its own, -9 where it was killed in time.

    Args:
        words: The command.
        delay (float, optional): Seconds after which it is killed.
    """
    process = os.fork()
    if process == 0:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        status = 3
        with contextlib.suppress(BaseException):
            status = sheafprop(words)
        os._exit(status)
    end = None if delay is None else time.perf_counter() + delay
    while end is not None and time.perf_counter() < end:
        if (done := os.waitpid(process, os.WNOHANG))[0]:
            return os.waitstatus_to_exitcode(done[1])
        time.sleep(0.002)
    if end is not None:
        os.kill(process, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def duration(words: list[str]) -> float:
    """Seconds that a command takes, which must succeed."""
    begin = time.perf_counter()
    succeed(words)
    return time.perf_counter() - begin


def succeed(words: list[str]) -> None:
    if (status := run(words)) != 0:
        raise Check(f"exit status {status} of sheafprop {' '.join(words)}")


def contents(folder: Path) -> dict[str, str]:
    """The files of a folder, without those that a killed process was about to write, and logs."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".sheafprop-" not in str(path) and "csv" not in path.parts
    }


def figures(run_folder: Path) -> list[dict]:
    """The figures of a test, whose record must be whole."""
    record = json.loads((run_folder / "metrics.json").read_text())
    return [entry["metrics"] | {"method": entry["method"]} for entry in record["test"]]


class Interruptions:
    """The cases, each of which is given a moment between 0 and 1 of a command's duration.

    Args:
        place (Path): An empty folder.
    """

    def __init__(self, place: Path):
        self.place = place
        self.data = write_data(place / "ring")
        self.fit_words = ["fit", *OPTIONS, f"--data.root={self.data}", f"--run.group={place}"]
        self.whole = place / "whole"
        self.seconds = {"fit": duration([*self.fit_words, "--run.name=whole"])}
        self.seconds["test"] = duration(["test", "--run", str(self.whole)])
        self.figures = figures(self.whole)
        self.number = 0
        (place / "facts.tsv").write_text("new\tnext\ta0\nnew\tskip\ta1\n")
        (place / "space.yaml").write_text(SPACE)
        self.tune_words = [
            *["tune", *OPTIONS, f"--data.root={self.data}", f"--run.group={place}"],
            *["--trainer.max_epochs=2", "--model.episodes=null", "--model.proximity=null"],
            *["--space", str(place / "space.yaml"), "--trials=2", "--run.name"],
        ]

    def fresh(self, original: Path | None = None) -> Path:
        """A new place, with a copy of a run or a model if one is named."""
        self.number += 1
        path = self.place / f"copies{self.number}" / "run"
        path.parent.mkdir()
        return path if original is None else Path(shutil.copytree(original, path))

    def killed(self, name: str, words: list[str], moment: float) -> bool:
        """Whether a command was killed at a moment of what it takes, or ended before."""
        if name not in self.seconds:
            self.seconds[name] = duration([*words[:-1], str(self.fresh())])
        begin = time.perf_counter()
        status = run(words, moment * self.seconds[name])
        if status not in (0, -signal.SIGKILL):
            raise Check(f"exit status {status} of sheafprop {' '.join(words)}")
        if status == 0:  # the first one may have compiled loops
            self.seconds[name] = min(self.seconds[name], time.perf_counter() - begin)
        return status != 0

    def fit(self, moment: float) -> bool:
        """A run is not there, can be gone on with, or is complete."""
        folder = self.fresh()
        words = [*self.fit_words[:-1], f"--run.group={folder.parent}", f"--run.name={folder.name}"]
        was_killed = self.killed("fit", words, moment)
        self._go_on(folder, words)
        return was_killed

    def _go_on(self, folder: Path, words: list[str]) -> None:
        if (folder / "checkpoints" / "last.ckpt").exists():
            succeed(["fit", "--resume", str(folder)])
        else:
            shutil.rmtree(folder, ignore_errors=True)
            succeed(words)
        self._is_whole(folder)

    def _is_whole(self, folder: Path) -> None:
        """The same weights, choice and figures as without an interruption."""
        name = "model/model.safetensors"
        if (folder / name).read_bytes() != (self.whole / name).read_bytes():
            raise Check(f"{folder} has other weights than {self.whole}")
        succeed(["test", "--run", str(folder)])
        if figures(folder) != self.figures:
            raise Check(f"{folder} has other figures than {self.whole}")

    def resume(self, moment: float) -> bool:
        """The model and record of before stay whole until those of the longer run are there."""
        folder = self.fresh(self.whole)
        words = ["fit", "--resume", str(folder), "--trainer.max_epochs=10"]
        before = contents(folder / "model")
        if "resume" not in self.seconds:
            copy = self.fresh(self.whole)
            self.seconds["resume"] = duration([*words[:2], str(copy), words[3]])
            self.longer = contents(copy / "model")["model.safetensors"]
        was_killed = self.killed("resume", words, moment)
        found = contents(folder / "model") if (folder / "model").exists() else before
        if found != before and found["model.safetensors"] != self.longer:
            raise Check(f"{folder}/model is neither that of before nor the new one")
        json.loads((folder / "metrics.json").read_text())
        succeed(["test", "--run", str(folder)])
        succeed(words)
        if contents(folder / "model")["model.safetensors"] != self.longer:
            raise Check(f"{folder} has other weights than a run that was not interrupted")
        return was_killed

    def test(self, moment: float) -> bool:
        """Every file is that of before or that of a test which came to its end."""
        folder = self.fresh(self.whole)
        record = json.loads((folder / "metrics.json").read_text())
        record.pop("test")
        (folder / "metrics.json").write_text(json.dumps(record))
        before = contents(folder)
        was_killed = self.killed("test", ["test", "--run", str(folder)], moment)
        after = contents(folder)
        written = {"metrics.json", "report.md", "hits_by_iteration.png"}
        if {k: v for k, v in after.items() if k not in written} != {
            k: v for k, v in before.items() if k not in written
        }:
            raise Check(f"test has changed other files of {folder} than {sorted(written)}")
        if json.loads((folder / "metrics.json").read_text()).get("test") and (
            figures(folder) != self.figures
        ):
            raise Check(f"{folder} has other figures than {self.whole}")
        succeed(["test", "--run", str(folder)])
        if figures(folder) != self.figures:
            raise Check(f"{folder} has other figures than {self.whole}")
        return was_killed

    def tune(self, moment: float) -> bool:
        """A study goes on to as many trials as were asked for."""
        folder = self.fresh()
        words = [*self.tune_words[:-1], f"--run.group={folder.parent}", "--run.name", folder.name]
        if "tune" not in self.seconds:
            other = self.fresh()
            again = [*self.tune_words[:-1], f"--run.group={other.parent}", "--run.name", "run"]
            self.seconds["tune"] = duration(again)
        was_killed = self.killed("tune", words, moment)
        if (folder / "tune.yaml").exists():
            succeed(["tune", "--resume", str(folder), "--trials=2"])
        else:
            shutil.rmtree(folder, ignore_errors=True)
            succeed(words)
        trials = json.loads((folder / "study.json").read_text())
        if sum(trial["value"] is not None for trial in trials) < 2:
            raise Check(f"{folder} has not two finished trials: {trials}")
        return was_killed

    def extend(self, moment: float) -> bool:
        """The new model is not there or complete."""
        folder = self.fresh()
        words = ["extend", str(self.whole), str(self.place / "facts.tsv"), "--out", str(folder)]
        was_killed = self.killed("extend", words, moment)
        if folder.exists():
            SheafModel.load(folder)
        succeed([*words, *(["--overwrite"] if folder.exists() else [])])
        if SheafModel.load(folder).num_entities != SheafModel.load(self.whole).num_entities + 1:
            raise Check(f"{folder} is not extended by one entity")
        return was_killed

    def imports(self, moment: float) -> bool:
        """Likewise."""
        names = {"entities": ["u", "v", "w"], "relations": ["r"]}
        for name, labels in names.items():
            (self.place / f"{name}.txt").write_text("\n".join(labels) + "\n")
        (self.place / "uvw.tsv").write_text("u\tr\tv\nv\tr\tw\n")
        np.save(self.place / "x.npy", np.eye(3, 4, dtype=np.float32))
        np.save(self.place / "r.npy", np.ones((1, 4), dtype=np.float32))
        folder = self.fresh()
        words = ["import", "arrays", "--model", "transe"]
        words += ["--vectors", str(self.place / "x.npy")]
        words += ["--relation-vectors", str(self.place / "r.npy")]
        for name in names:
            words += [f"--{name}", str(self.place / f"{name}.txt")]
        words += ["--facts", str(self.place / "uvw.tsv"), "--out", str(folder)]
        was_killed = self.killed("import", words, moment)
        if folder.exists():
            SheafModel.load(folder)
        succeed([*words, *(["--overwrite"] if folder.exists() else [])])
        if SheafModel.load(folder).num_entities != 3:
            raise Check(f"{folder} has not three entities")
        return was_killed

    def refused(self, rng: random.Random) -> None:
        """A command that cannot be done changes no file."""
        run_folder, model = self.fresh(self.whole), self.fresh(self.whole / "model")
        wrong = rng.choice(["--model.kge=se", "--model.hidden_channels=5", "--data.root=nowhere"])
        facts = self.place / "wrong.tsv"
        facts.write_text("new\tunheard\ta0\n" if rng.random() < 0.5 else "only two\n")
        cases: list[list[str]] = [
            [*self.fit_words, f"--run.group={run_folder.parent}", wrong.replace("se", "x"), "--x"],
            ["fit", "--resume", str(run_folder), "--trainer.max_epochs=9", wrong],
            ["test", "--run", str(run_folder), wrong],
            ["tune", "--resume", str(run_folder)],
            ["extend", str(model), str(facts), "--out", str(model), "--overwrite"],
            ["import", "pyg", str(facts), "--out", str(model), "--overwrite"],
        ]
        for words in cases:
            before = contents(run_folder.parent) | contents(model.parent)
            if run(words) in (0, -signal.SIGKILL):
                raise Check(f"sheafprop {' '.join(words)} was not refused")
            if contents(run_folder.parent) | contents(model.parent) != before:
                raise Check(f"a file was changed by sheafprop {' '.join(words)}")

    def cases(self) -> dict[str, Callable[[float], bool]]:
        return {
            "fit": self.fit,
            "resume": self.resume,
            "test": self.test,
            "tune": self.tune,
            "extend": self.extend,
            "import": self.imports,
        }


def moments(rng: random.Random, count: int) -> Iterator[float]:
    """Moments in equal parts of a command's duration, so that none of them is left out."""
    for number in rng.sample(range(count), count):
        yield (number + rng.random()) / count


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--kills", type=int, default=20, help="of each command (20)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (0)")
    parser.add_argument("--only", nargs="+", help="commands to kill (all), or 'refused'")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # threads do not survive a fork
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        check = Interruptions(Path(folder))
        for name, case in check.cases().items():
            if options.only and name not in options.only:
                continue
            kills = sum(case(moment) for moment in moments(rng, options.kills))
            print(f"{name}: {options.kills} moments, killed {kills} times", flush=True)
        if not options.only or "refused" in options.only:
            for _ in range(options.kills):
                check.refused(rng)
            print(f"refused: {options.kills} times each", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
