"""The command, and the commands that it names, run in this process on a small graph."""

import gzip
import json
import random
import shlex
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from sheafprop.cli.main import main
from sheafprop.cli.split import fit_command
from sheafprop.data import read_triples, split_graph, write_triples
from tests.cli.commands import failing, output, scrambled

MODES = ["semi-inductive", "fully-inductive"]
SHORT = [
    *("--config", "logger/csv", "--trainer.max_epochs", "1", "--trainer.accelerator", "cpu"),
    *("--trainer.enable_progress_bar", "false", "--model.hidden_channels", "8"),
    *("--model.propagation.iterations", "[1,2]", "--model.propagation.settings.num_random", "2"),
]


def wheel(size=60, prefix="n"):
    return [
        (f"{prefix}{i}", f"r{k}", f"{prefix}{(i + k) % size}")
        for i in range(size)
        for k in (1, 2, 5)
    ]


@pytest.fixture
def graph(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_triples(tmp_path / "graph.tsv", wheel())
    return tmp_path / "graph.tsv"


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def follow_next(printed, capsys):
    """Trains by the command that was printed and tests the run; returns its test record."""
    (line,) = (line for line in printed.splitlines() if line.startswith("next: "))
    words = shlex.split(line.removeprefix("next: sheafprop "))
    assert main([*words, *SHORT, "--run.group", "runs"]) == 0
    assert main(["test", "--run", "runs/rotate"]) == 0
    capsys.readouterr()
    with open("runs/rotate/metrics.json") as file:
        return json.load(file)


@pytest.mark.parametrize("mode", MODES)
def test_split_fit_and_test_in_a_row(graph, tmp_path, capsys, mode):
    printed = output(capsys, "split", "graph.tsv", "--out", "my split", "--mode", mode, "--seed", 3)
    split = split_graph(wheel(), mode, seed=3)
    command = "sheafprop fit --config experiment/folder --data.root 'my split' --data.mode"
    assert printed.out == f"{split.summary()}\nnext: {command} {mode}\n"
    assert printed.err == ""
    split.save(tmp_path / "from_python")
    assert contents(tmp_path / "my split") == contents(tmp_path / "from_python")
    record = follow_next(printed.out, capsys)
    assert record["data"]["mode"] == mode
    assert record["data"]["notes"] == []
    assert record["data"]["test_triples"] == len(split.test)
    assert record["data"]["free_entities"] == split.report["new_entities"]
    assert record["selection"]["on"] == "validation"
    assert record["training"]["epochs"] == 1


def test_lines_in_any_order_in_any_files_give_equal_files(graph, tmp_path, capsys):
    rows = [*wheel(), *wheel()[:4]]
    random.Random(0).shuffle(rows)
    lines = ["\t".join(row) + "\n" for row in rows]
    (tmp_path / "one.tsv.gz").write_bytes(gzip.compress("".join(lines[:70]).encode()))
    (tmp_path / "two.tsv").write_text("".join(lines[70:]))
    scrambled(tmp_path / "x.csv.gz", rows)
    reading = ["--columns", "from,kind,to"]
    for mode in MODES:
        options = ["--mode", mode, "--max-triples", 150, "--new-fraction", 0.3]
        output(capsys, "split", "graph.tsv", "--out", f"{mode}/a", *options)
        printed = output(capsys, "split", "one.tsv.gz", "two.tsv", "--out", f"{mode}/b", *options)
        assert "  4 duplicates removed\n" in printed.out
        output(capsys, "split", "x.csv.gz", "--out", f"{mode}/c", *options, *reading)
        found = [contents(tmp_path / mode / name) for name in "abc"]
        assert found[1] == found[2]
        record, copied = (json.loads(files.pop("split.json")) for files in found[:2])
        assert (record["graph"].pop("copies"), copied["graph"].pop("copies")) == (0, 4)
        assert record == copied
        del found[2]["split.json"]
        assert found[0] == found[1] == found[2]


def test_options_arrive(graph, tmp_path, capsys):
    options = {
        "new_fraction": 0.2,
        "observed_fraction": 0.6,
        "valid_fraction": 0.2,
        "max_triples": 140,
        "seed": -4,
    }
    words = [str(w) for k, v in options.items() for w in (f"--{k.replace('_', '-')}", v)]
    output(capsys, "split", "graph.tsv", "--out", "out", "--mode", "semi-inductive", *words)
    record = json.loads((tmp_path / "out" / "split.json").read_text())
    assert record["mode"] == "semi-inductive"
    assert {key: record[key] for key in options} == options


@pytest.mark.parametrize("prefix", ["", "q"])
def test_ids_stay_labels_until_the_test(graph, tmp_path, capsys, prefix):
    """Relations have the names of entities; where these are no numbers, options say so."""
    rows = [tuple(f"{prefix}{n}" for n in (i, k, (i + k) % 60)) for i in range(60) for k in (1, 2)]
    write_triples(tmp_path / "ids.tsv", rows)
    words = ["split", "ids.tsv", "--out", "out", "--mode", "semi-inductive"]
    if prefix:
        assert "--columns 0,1,2" in failing(capsys, *words)
        assert not (tmp_path / "out").exists()
        words += ["--columns", "0,1,2"]
    printed = output(capsys, *words).out
    assert printed.endswith(" --data.columns 0,1,2 --data.header no\n") == bool(prefix)
    record = follow_next(printed, capsys)
    assert record["data"]["test_triples"] == len(split_graph(rows, "semi-inductive").test)


def test_a_first_line_that_looks_like_a_header_is_read_as_a_triple(graph, tmp_path, capsys):
    rows = [*wheel(prefix="x"), ("head", "relation", "tail"), ("head", "r1", "x3")]
    rows += [("tail", f"r{k}", f"x{i}") for k in (1, 2) for i in range(3)]
    for seed in range(9):
        words = ["--out", f"out{seed}", "--mode", "semi-inductive", "--seed", seed]
        write_triples(tmp_path / "g.tsv", rows)
        printed = output(
            capsys, "split", "g.tsv", *words, "--header", "no", "--columns", "0,1,2"
        ).out
        folder = tmp_path / f"out{seed}"
        is_first = any(p.read_text().startswith("head\trelation\t") for p in folder.glob("*.txt"))
        assert ("--data.header no" in printed) == is_first
        if is_first:
            follow_next(printed, capsys)
            return
    raise AssertionError("no seed puts the triple first")


def test_a_first_line_that_would_be_skipped_is_noticed(graph, tmp_path):
    split = split_graph(wheel(prefix="x"), "semi-inductive")
    rows = [["head", "relation", "tail"], *split.test.tolist()]
    odd = replace(split, test=np.array(rows, dtype=object))
    assert len(read_triples(odd.save(tmp_path / "odd") / "inference_test.txt")) == len(rows) - 1
    assert fit_command(tmp_path / "odd", odd).endswith(" --data.columns 0,1,2 --data.header no")
    assert fit_command(split.save(tmp_path / "even"), split).endswith("--data.mode semi-inductive")


def test_refused_calls_change_no_file(graph, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.txt").write_text("a\tr\tb\n")
    words = ["split", "graph.tsv", "--mode", "fully-inductive", "--out"]
    output(capsys, *words, "split")
    before = contents(tmp_path)
    assert "'split' exists" in failing(capsys, *words, "split").replace(f"{tmp_path}/", "")
    assert "exists" in failing(capsys, *words, "mine")
    assert "not a split that sheafprop wrote" in failing(capsys, *words, "mine", "--overwrite")
    assert "it is a file" in failing(capsys, *words, "graph.tsv", "--overwrite")
    inner = ["split", "split/train.txt", "--out", "split", "--mode", "semi-inductive"]
    assert "lies in the folder that --out would replace" in failing(capsys, *inner, "--overwrite")
    for more, message in (
        (["--new-fraction", 1.5], "'new_fraction' must be between 0 and 1 (got 1.5)"),
        (["--observed-fraction", 0.95], "must not exceed 1"),
        (["--max-triples", 0], "'max_triples' must be an integer of at least 1 (got 0)"),
        (["--max-triples", 3], "cannot be split"),
        (["--valid-fraction", 0.2], "no test triple is left"),
    ):
        assert message in failing(capsys, *words, "new", *more)
        assert message in failing(capsys, *words, "split", "--overwrite", *more)
    assert "cannot be read" in failing(capsys, "split", "nowhere.tsv", *words[2:], "new")
    for wrong in (["--out", "new"], ["--mode", "semi-inductive"], ["--out", "-", *words[2:4]]):
        with pytest.raises(SystemExit) as stop:
            main(["split", "graph.tsv", *wrong])
        assert stop.value.code == 2
    assert contents(tmp_path) == before
    output(capsys, *words, "split", "--overwrite", "--seed", 1)
    after = contents(tmp_path)
    assert after.keys() == before.keys()
    assert after["split/train.txt"] != before["split/train.txt"]
    assert after["graph.tsv"] == before["graph.tsv"]


def test_labels_that_look_alike_are_reported(graph, tmp_path, capsys):
    write_triples(tmp_path / "g.tsv", [*wheel(), ("N7", "r1", "n9"), ("n8", "r1", "N7")])
    printed = output(capsys, "split", "g.tsv", "--out", "out", "--mode", "semi-inductive")
    assert "note: entities that differ from another only in case" in printed.out
    assert printed.out.count("'N7'") == 1


def test_a_dash_is_standard_input(graph, tmp_path, capsys, standard_input):
    words = ["--mode", "semi-inductive", "--out"]
    want = output(capsys, "split", "graph.tsv", *words, "a").out
    standard_input(graph.read_bytes())
    assert output(capsys, "split", "-", *words, "b").out == want.replace("root a", "root b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_help_imports_no_torch(tmp_path):
    code = (
        "import sys\nfrom sheafprop.cli.main import main\n"
        "assert main(['--help']) == 0\n"
        "try:\n    main(['split', '--help'])\nexcept SystemExit:\n    pass\n"
        "assert not {'torch', 'pandas'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "sheafprop split graph.tsv --out my_split --mode fully-inductive" in done.stdout
    assert done.stdout.count("usage: sheafprop split") == 1


def test_test_triples_are_in_no_other_file(graph, tmp_path, capsys):
    for mode in MODES:
        output(capsys, "split", "graph.tsv", "--out", mode, "--mode", mode)
        files = {p.stem: p for p in (tmp_path / mode).glob("*.txt")}
        rows = {
            name: {tuple(row) for row in read_triples(path, columns=(0, 1, 2), header=False)}
            for name, path in files.items()
        }
        assert len(rows) == 5
        test = rows.pop("inference_test")
        assert test
        assert all(test.isdisjoint(other) for other in rows.values())
        train, inference = (
            {end for head, _, tail in rows[name] for end in (head, tail)}
            for name in ("train", "inference")
        )
        assert train.isdisjoint(inference) == (mode == "fully-inductive")
