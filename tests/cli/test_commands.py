"""What holds for every command."""

import errno
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from sheafprop.cli.main import main
from sheafprop.data import build_dataset, write_triples
from sheafprop.kge import build_model
from sheafprop.pretrained.sheaf_model import SheafModel
from sheafprop.pretrained.stored_model import StoredModel
from sheafprop.query import Query
from tests.cli.commands import failing, output
from tests.pretrained.models import ADRIFT, FACTS, sheaf_model


def test_messages_stay_short_whatever_the_labels_are(tmp_path, capsys, model):
    long = "x" * 3_000_000
    write_triples(tmp_path / "label.tsv", [(long, "next", "a1")])
    write_triples(tmp_path / "relation.tsv", [("a0", long, "a1"), ("a0", "next", "n")])
    (tmp_path / "query.txt").write_text(f"via(next, {long})")
    for words in (
        ["score", model, tmp_path / "label.tsv"],
        ["evaluate", model, "--test", tmp_path / "label.tsv"],
        ["extend", model, tmp_path / "relation.tsv", "--out", tmp_path / "a"],
        ["predict", model, "--head", long, "--relation", "next"],
        ["explain", model, "--entity", long],
        ["answer", model, "--queries", tmp_path / "query.txt"],
    ):
        assert len(failing(capsys, *words)) < 500, words[0]
    words = ["extend", model, tmp_path / "relation.tsv", "--out", tmp_path / "a"]
    # It names the file, too.
    most = 500 + len(str(tmp_path))
    assert len(output(capsys, *words, "--on-unknown-relation", "drop").err) < most
    words = ["extend", model, tmp_path / "label.tsv", "--out", tmp_path / "b"]
    output(capsys, *words)
    more = [(long, "next", "a2"), ("y" * 3_000_000, "next", "z" * 3_000_000)]
    write_triples(tmp_path / "more.tsv", more)
    words = ["extend", tmp_path / "b", tmp_path / "more.tsv", "--out", tmp_path / "c"]
    assert len(output(capsys, *words).err) < 1000
    folder = tmp_path / "data"
    folder.mkdir()
    write_triples(folder / "train.txt", [(long, "r" * 3_000_000, "a"), ("a", "s", long)])
    write_triples(folder / "inference.txt", [(long, "t" * 3_000_000, "b"), ("a", "s", long)])
    assert len(output(capsys, "inspect", folder).out) < 3000


def test_odd_labels_go_through_every_command_as_they_are(tmp_path, capsys, model):
    labels = ["New York, NY", "<http://dbpedia.org/resource/x.y>", "O'Brien", '"q"', "NA", "null"]
    labels += ["nan", "1.0", "007", " padded ", "via(next, a0)", "\\", "日本"]
    facts = [(label, "next", f"a{i % 12}") for i, label in enumerate(labels)]
    write_triples(tmp_path / "new.tsv", facts)
    output(capsys, "extend", model, tmp_path / "new.tsv", "--out", tmp_path / "grown")
    grown = SheafModel.load(tmp_path / "grown")
    assert list(grown.labels()[12:]) == labels
    assert grown.facts().to_numpy().tolist()[-len(facts) :] == [list(fact) for fact in facts]
    text = {"dtype": str, "keep_default_na": False}
    for kind in ("tsv", "csv", "json", "parquet"):
        place = tmp_path / f"scores.{kind}"
        output(capsys, "score", tmp_path / "grown", tmp_path / "new.tsv", "--out", place)
        read = {
            "tsv": lambda p: pd.read_csv(p, sep="\t", quoting=3, **text),
            "csv": lambda p: pd.read_csv(p, **text),
            "json": lambda p: pd.DataFrame(json.loads(p.read_text())),
            "parquet": pd.read_parquet,
        }[kind](place)
        assert read[["head", "relation", "tail"]].to_numpy().tolist() == [list(f) for f in facts]
    for label in labels:
        words = ["predict", tmp_path / "grown", "--relation", "next", "--head", label, "-k", 1]
        lines = output(capsys, *words, "--include-known").out.splitlines()
        assert lines[1].split("\t")[0] == label
    queries = [str(Query.entity(label).via("next")) for label in labels]
    (tmp_path / "q.txt").write_text("\n".join(queries))
    words = ["answer", tmp_path / "grown", "--queries", tmp_path / "q.txt", "-k", 1]
    lines = output(capsys, *words).out.splitlines()[1:]
    assert [line.split("\t")[1] for line in lines] == [fact[2] for fact in facts]


WRITING = {
    "extend": ["extend", "MODEL", "FACTS", "--out", "new"],
    "extend, report": ["extend", "MODEL", "FACTS", "--out", "MODEL", "--overwrite"],
    "remove": ["remove", "MODEL", "--entity", "a0", "--out", "new"],
    "score": ["score", "MODEL", "RING", "--out", "new.tsv"],
    "predict": ["predict", "MODEL", "--head", "a0", "--relation", "next", "--out", "new.json"],
    "answer": ["answer", "MODEL", "--query", "via(next, a0)", "--out", "new.parquet"],
    "explain": ["explain", "MODEL", "--entity", "a0", "--out", "new.csv"],
    "export": ["export", "MODEL", "--out", "new.npy"],
    "export, text": ["export", "MODEL", "--out", "new.txt"],
    "inspect": ["inspect", "FACTS", "--figure", "new.png"],
}


@pytest.mark.parametrize("place", ["open", "os.replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS])
@pytest.mark.parametrize("case", sorted(WRITING))
def test_a_disk_that_refuses_is_reported_in_a_line(
    tmp_path, monkeypatch, capsys, model, facts, case, number, place
):
    write_triples(tmp_path / "ring.tsv", [("a0", "next", "a1")])
    named = {"MODEL": "model", "FACTS": "facts.tsv", "RING": "ring.tsv"}
    words = [named.get(word, word) for word in WRITING[case]]
    monkeypatch.chdir(tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}

    def refuse(*arguments):
        raise OSError(number, os.strerror(number))

    if place == "open":
        monkeypatch.setattr("sheafprop.files.open", refuse, raising=False)
    else:
        monkeypatch.setattr(os, "replace", refuse)
    printed = failing(capsys, *words)
    assert "cannot be written" in printed
    assert len(printed.splitlines()) <= 2
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize(
    "words",
    [
        ["extend", "model", "facts.tsv", "--out", "new"],
        ["remove", "model", "--entities", "facts.tsv", "--out", "new"],
        ["score", "model", "facts.tsv"],
        ["predict", "model", "--queries", "facts.tsv"],
        ["answer", "model", "--queries", "facts.tsv"],
        ["explain", "model", "--entity", "a0"],
        ["export", "model", "--out", "new.npy"],
        ["inspect", "facts.tsv"],
        ["import", "pyg", "facts.tsv", "--out", "new", "--entities", "e", "--relations", "r"],
    ],
    ids=lambda words: words[0],
)
def test_what_cannot_be_read_is_reported_in_a_line(
    tmp_path, monkeypatch, capsys, model, facts, words
):
    # Tests may run as root, whom no permission stops.
    def refuse(path, *arguments, **options):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.chdir(tmp_path)
    for name in ("read_bytes", "read_text", "open"):
        monkeypatch.setattr(Path, name, refuse)
    monkeypatch.setattr("sheafprop.pretrained.model_folder.open", refuse, raising=False)
    printed = failing(capsys, *words)
    assert "ermission denied" in printed
    assert len(printed.splitlines()) <= 2
    assert not (tmp_path / "new").exists()


def test_what_serves_models_leaves_out_what_only_training_needs():
    code = (
        "import sys, sheafprop.pretrained\n"
        "slow = {'lightning', 'torchmetrics', 'wandb', 'pykeen', 'matplotlib.pyplot'}\n"
        "assert not slow & set(sys.modules), slow & set(sys.modules)\n"
        "from sheafprop import RankMetrics\n"
        "assert 'torchmetrics' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_examples_can_be_pasted_after_the_first_run(tmp_path, monkeypatch, capsys):
    pytest.importorskip("pykeen")
    train = build_dataset(dataset="pykeen", name="umls", seed=0).load().train
    kge = build_model(
        "rotate", num_nodes=train.num_nodes, num_relations=train.num_relations, hidden_channels=4
    )
    stored = StoredModel.from_training(kge, train.entities, train.relations, train.triples)
    SheafModel(stored).save(tmp_path / "runs/umls/rotate/model")
    monkeypatch.chdir(tmp_path)
    write_triples("new_facts.tsv", [("gene_therapy", "treats", "virus")])
    main(["--help"])
    examples = capsys.readouterr().out
    for name in ("predict", "answer", "explain", "inspect"):
        with pytest.raises(SystemExit):
            main([name, "--help"])
        examples += capsys.readouterr().out
    lines = re.findall(r"sheafprop (\w+ runs/umls/rotate .*)", examples)
    done = {shlex.split(line)[0] for line in lines if output(capsys, *shlex.split(line)).out}
    assert done == {"extend", "predict", "answer", "explain", "inspect"}


def test_a_reader_that_stops_is_no_error(tmp_path):
    sheaf_model("transe").extend(FACTS + ADRIFT).save(tmp_path / "m")
    script = (
        f"{sys.executable} -m sheafprop.cli.main predict {tmp_path / 'm'} --head a0 "
        "--relation next | true; echo ${PIPESTATUS[0]}"
    )
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env=os.environ, check=True
    )
    assert done.stdout.strip() == "0"
    assert "Traceback" not in done.stderr
