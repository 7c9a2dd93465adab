"""The chapter on extending a model, run as it is printed."""

import re
import shlex
import subprocess
from pathlib import Path

import pandas as pd

from sheafprop import SheafModel
from sheafprop.cli.main import main

TEXT = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
CHAPTER = TEXT.split("## Extend a trained model\n")[1].split("\n## ")[0]


def blocks(kind):
    return re.findall(rf"```{kind}\n(.*?)```", CHAPTER, flags=re.DOTALL)


def test_the_walk_through_runs_as_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    quickstart = ["--config", "experiment/umls_rotate", "--run.group", "runs/quickstart"]
    assert main(["fit", *quickstart, "--config", "logger/csv", "--trainer.max_epochs", "1"]) == 0
    (shell,) = blocks("sh")
    for line in shell.splitlines():
        if line.startswith("sheafprop "):
            assert main(shlex.split(line, comments=True)[1:]) == 0
        else:
            subprocess.run(["bash", "-c", line], check=True)
    extended = SheafModel.load("extended")
    assert "gene_therapy" in extended.labels()
    assert len((tmp_path / "vectors.txt").read_text().splitlines()) == extended.num_entities + 1
    (code,) = blocks("py")
    scope = {}
    exec(compile(code, "README.md", "exec"), scope)
    printed = capsys.readouterr().out
    assert "exact solution" in printed
    assert f"--query '{scope['query']}'" in shell
    answers = extended.answer(scope["query"], k=3)
    assert printed.count(scope["query"]) == len(answers)
    pd.testing.assert_frame_equal(scope["larger"].answer(scope["query"], k=3), answers)
    pd.testing.assert_frame_equal(
        scope["larger"].predict_tails("gene_therapy", "treats"),
        extended.predict_tails("gene_therapy", "treats"),
    )
    assert "gene_therapy" not in SheafModel.load("smaller").labels()
