"""How every command reads files: one set of options, and labels of any kind."""

import gzip
import json
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import yaml

from sheafprop.cli.command_parser import CommandParser
from sheafprop.cli.main import main
from sheafprop.data import write_triples
from sheafprop.pretrained.sheaf_model import SheafModel
from tests.cli.test_main import fit
from tests.cli.test_verbs import failing, output, table
from tests.pretrained.models import sheaf_model
from tests.toy import write_folder


@pytest.fixture
def model(tmp_path):
    return sheaf_model("rotate").save(tmp_path / "model")


def scrambled(path, rows):
    """Triples as a compressed CSV file with more columns, another order and a header."""
    lines = ["weight,to,from,kind", *(f"1,{t},{h},{r}" for h, r, t in rows)]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


READ = {
    "extend": ["extend", "MODEL", "FILE", "--out", "OUT"],
    "score": ["score", "MODEL", "FILE"],
    "predict": ["predict", "MODEL", "--queries", "FILE"],
    "evaluate": ["evaluate", "MODEL", "--test", "FILE", "--filter", "FILE"],
    "inspect": ["inspect", "FILE"],
    "import": [
        *("import", "arrays", "--model", "transe", "--vectors", "VECTORS", "--out", "OUT"),
        *("--relation-vectors", "STEPS", "--entities", "E", "--relations", "R", "--facts", "FILE"),
    ],
}


@pytest.fixture
def command(tmp_path, model):
    loaded = SheafModel.load(model)
    np.save(tmp_path / "v.npy", np.random.default_rng(0).normal(size=(loaded.num_entities, 4)))
    np.save(tmp_path / "s.npy", np.zeros((len(loaded.relations), 4)))
    (tmp_path / "e.txt").write_text("\n".join(loaded.labels()))
    (tmp_path / "r.txt").write_text("\n".join(loaded.relations))
    named = {
        "MODEL": model,
        "OUT": tmp_path / "out",
        "VECTORS": tmp_path / "v.npy",
        "STEPS": tmp_path / "s.npy",
        "E": tmp_path / "e.txt",
        "R": tmp_path / "r.txt",
    }
    return lambda name, file, *more: (
        [named.get(w, file if w == "FILE" else w) for w in READ[name]] + [*more]
    )


@pytest.mark.parametrize("name", sorted(READ))
def test_every_command_takes_the_reading_options(tmp_path, capsys, command, name):
    rows = [("a0", "next", "a1"), ("a2", "skip", "a4"), ("a1", "next", "a2")]
    if name == "predict":
        rows = [(h, r, "?") for h, r, _ in rows]
    file = scrambled(tmp_path / "f.csv.gz", rows)
    told = failing(capsys, *command(name, file))
    assert "line 1: expected 3 comma-separated fields" in told
    assert "--columns" in told
    more = ["--overwrite"] if name in ("extend", "import") else []
    for words in (
        ["--columns", "from,kind,to"],
        ["--columns", "2,3,1", "--header"],
        ["--columns=2,3,1", "--header", "yes", "--delimiter", ",", "--input-format", "csv"],
    ):
        output(capsys, *command(name, file, *words, *more))
    tabs = tmp_path / "f.csv"
    tabs.write_text("".join("\t".join(row) + "\n" for row in rows))
    output(capsys, *command(name, tabs, "--input-format", "tsv", *more))
    # A header of usual names needs no option, and a swapped order is named.
    tabs.write_text("tail,relation,head\n" + "".join(f"{t},{r},{h}\n" for h, r, t in rows))
    output(capsys, *command(name, tabs, *more))


@pytest.mark.parametrize("name", ["inspect", "import", "evaluate"])
def test_every_command_reports_lookalikes(tmp_path, capsys, command, name):
    if name == "import":
        labels = (tmp_path / "e.txt").read_text().split("\n")
        (tmp_path / "e.txt").write_text("\n".join([*labels[:-1], labels[0] + "\u200b"]))
    rows = [("a0", "next", "a1"), ("a\u00ad0", "next", "a1")]
    write_triples(tmp_path / "f.tsv", rows[:1] if name != "inspect" else rows)
    words = command(name, tmp_path / "f.tsv")
    if name == "evaluate":
        write_triples(tmp_path / "filter.tsv", rows)
        words[-1] = tmp_path / "filter.tsv"
    done = output(capsys, *words)
    assert "entities that differ from another only in case" in done.err + done.out


def test_fit_takes_the_reading_options_and_every_later_command_keeps_them(tmp_path, capsys):
    write_folder(tmp_path / "plain", "semi-inductive")
    for file in (tmp_path / "plain").iterdir():
        rows = [line.split("\t") for line in file.read_text().splitlines()]
        (tmp_path / "mine").mkdir(exist_ok=True)
        scrambled(tmp_path / "mine" / f"{file.stem}.csv.gz", rows)
    capsys.readouterr()
    assert fit(tmp_path / "mine", tmp_path / "runs") == 1
    assert "train.csv.gz, line 1: expected 3" in capsys.readouterr().err
    assert fit(tmp_path / "plain", tmp_path / "runs", "--run.name=want") == 0
    options = ["--columns", "from,kind,to", "--run.name=got"]
    assert fit(tmp_path / "mine", tmp_path / "runs", *options) == 0
    for name in ("want", "got"):
        assert main(["test", "--run", str(tmp_path / "runs" / name)]) == 0
    want, got = (
        json.loads((tmp_path / "runs" / n / "metrics.json").read_text()) for n in ("want", "got")
    )
    assert got["test"] == want["test"]
    stored = yaml.safe_load((tmp_path / "runs" / "got" / "run.yaml").read_text())["data"]
    assert stored["columns"] == "from,kind,to"
    output(capsys, "evaluate", "--run", tmp_path / "runs" / "got", "--protocol", "full")
    # By the names of the configuration too.
    options = ["--data.columns=2,3,1", "--data.header=yes", "--run.name=again"]
    assert fit(tmp_path / "mine", tmp_path / "runs", *options) == 0


@pytest.mark.parametrize("name", ["2e3", "null"])
def test_folders_that_look_like_numbers(tmp_path, monkeypatch, name):
    write_folder(tmp_path / name, "semi-inductive")
    monkeypatch.chdir(tmp_path)
    assert fit(name, "runs", f"--run.name={name}") == 0
    stored = yaml.safe_load((tmp_path / "runs" / name / "run.yaml").read_text())
    assert stored["data"]["root"] == str(tmp_path / name)
    assert main(["test", "--run", f"runs/{name}"]) == 0


def test_inspect_skips_files_without_triples_and_names_them(tmp_path, capsys):
    folder = write_folder(tmp_path / "data", "semi-inductive")
    (folder / "entity2id.txt").write_text("2\na0\t0\na1\t1\n")
    (folder / "train2id.txt").write_text("2\n0 1 0\n1 0 0\n")
    (folder / "README.txt").write_text("All triples, by hand.\n")
    told = output(capsys, "inspect", folder).out
    assert "no triples in README.txt, entity2id.txt, train2id.txt: skipped" in told
    assert json.loads(output(capsys, "inspect", folder, "--json").out)["skipped"] == [
        "README.txt",
        "entity2id.txt",
        "train2id.txt",
    ]
    # A file that does hold triples, or is one of the parts, is not skipped for a fault.
    (folder / "more.txt").write_text("a0\tnext\ta1\na1 next a2\n")
    assert "more.txt, line 2" in failing(capsys, "inspect", folder)
    (folder / "more.txt").unlink()
    (folder / "valid.txt").write_text("a1 next a2\n")
    assert "valid.txt, line 1" in failing(capsys, "inspect", folder)


def test_values_may_begin_with_a_dash(tmp_path, capsys):
    grown = sheaf_model("rotate").extend([("-alpha-1", "next", "a0"), ("-b", "skip", "a2")])
    grown.save(tmp_path / "m")
    rows = table(
        output(capsys, "predict", tmp_path / "m", "--head", "-alpha-1", "--relation", "next").out
    )
    assert set(rows["head"]) == {"-alpha-1"}
    done = output(capsys, "explain", tmp_path / "m", "--triple", "-alpha-1", "next", "-b")
    assert table(done.out).iloc[0][["head", "tail"]].tolist() == ["-alpha-1", "-b"]
    output(capsys, "explain", "--entity", "-b", tmp_path / "m")
    output(capsys, "answer", tmp_path / "m", "--query", "via(next, -alpha-1)", "-k", "2")


@pytest.mark.parametrize(
    "words",
    [
        ["predict", "m", "--head", "--relation", "r"],
        ["predict", "m", "--relation", "r", "--head", "--columns=0,1,2"],
        ["predict", "m", "--head", "a", "--relatoin", "r"],
        ["explain", "m", "--triple", "a", "r", "--out", "x"],
        ["predict", "m", "-q", "--head", "a", "--relation", "r"],
    ],
)
def test_what_is_no_value_is_still_an_option(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2


def test_an_option_whose_value_may_be_left_out_takes_no_file():
    parser = CommandParser("x", "y", "z")
    parser.add_argument("files", nargs="*")
    parser.add_file_options()
    for words, files, header in (
        (["--header", "a.tsv"], ["a.tsv"], "yes"),
        (["a.tsv", "--header"], ["a.tsv"], "yes"),
        (["--header", "no", "a.tsv", "b"], ["a.tsv", "b"], "no"),
        (["--header=auto", "no"], ["no"], "auto"),
        (["a"], ["a"], None),
    ):
        options = parser.parse_args(words)
        assert (options.files, options.header) == (files, header)


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-8", "shift_jis"])
def test_rows_come_out_whatever_the_encoding(tmp_path, encoding):
    label = "\u85ac\u30fc\u1e9e"  # no encoding above but UTF-8 holds all of it
    sheaf_model("transe").extend([(label, "next", "a0")]).save(tmp_path / "m")
    code = "from sheafprop.cli.main import main; raise SystemExit(main())"
    words = ["predict", tmp_path / "m", "--head", label, "--relation", "next", "-k", "2"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "1"},
    )
    assert [line.split("\t")[0] for line in done.stdout.decode().splitlines()[1:]] == [label] * 2
    assert (b"the output is UTF-8" in done.stderr) == (encoding != "utf-8")


def queries(model, count, seed=0):
    """Queries of both sides in random order."""
    random = np.random.default_rng(seed)
    labels, kinds = model.labels(), model.relations.labels
    rows = []
    for _ in range(count):
        end, kind = labels[random.integers(len(labels))], kinds[random.integers(len(kinds))]
        rows.append((end, kind, "?") if random.random() < 0.5 else ("?", kind, end))
    return rows


@pytest.mark.parametrize("name", ["rotate", "se"])
def test_queries_come_out_in_the_order_of_the_file(tmp_path, capsys, name):
    model = sheaf_model(name)
    model.save(tmp_path / "m")
    rows = queries(model, 40)
    write_triples(tmp_path / "q.tsv", rows)
    words = ["predict", tmp_path / "m", "--queries", tmp_path / "q.tsv", "-k", "3"]
    got = table(output(capsys, *words, "--include-known").out)
    want = pd.concat(
        [
            model.predict_heads(r, t, 3, include_known=True)
            if h == "?"
            else model.predict_tails(h, r, 3, include_known=True)
            for h, r, t in rows
        ],
        ignore_index=True,
    )
    names = ["head", "relation", "tail", "origin", "known"]
    assert got[names].astype(str).equals(want[names].astype(str))
    # The score of a candidate is taken by its definition in either case; blocks differ.
    assert np.allclose(got["score"], want["score"], rtol=1e-9, atol=1e-9)


def test_queries_with_unknown_labels_are_named_or_skipped(tmp_path, capsys):
    model = sheaf_model("rotate")
    model.save(tmp_path / "m")
    rows = queries(model, 9)
    wrong = [*rows[:4], ("A0", "next", "?"), *rows[4:], ("?", "nxt", "a1")]
    write_triples(tmp_path / "q.tsv", wrong)
    words = ["predict", tmp_path / "m", "--queries", tmp_path / "q.tsv"]
    told = failing(capsys, *words)
    for part in (
        "q.tsv: 2 queries of 11",
        "query 5: ",
        "'A0' (did you mean 'a0'?)",
        "--skip-unknown",
    ):
        assert part in told
    done = output(capsys, *words, "--skip-unknown")
    assert "skipped 2 queries of 11" in done.err
    write_triples(tmp_path / "q.tsv", rows)
    assert output(capsys, *words).out == done.out
    write_triples(tmp_path / "q.tsv", [("x", "next", "?"), ("y", "next", "?")])
    assert "no query is left" in failing(capsys, *words, "--skip-unknown")


def test_many_queries_show_their_progress(monkeypatch, capsys):
    model = sheaf_model("rotate")
    model.predict(
        [(None if h == "?" else h, r, None if t == "?" else t) for h, r, t in queries(model, 5)],
        1,
        progress=True,
    )
    assert "query" in capsys.readouterr().err


def test_labels_of_imports_are_checked(tmp_path, capsys, command):
    write_triples(tmp_path / "f.tsv", [("a0", "next", "a1")])
    words = command("import", tmp_path / "f.tsv")
    labels = (tmp_path / "e.txt").read_text().split("\n")
    (tmp_path / "e.txt").write_bytes(gzip.compress("\n".join(labels).encode()))
    output(capsys, *words)
    (tmp_path / "e.txt").write_text("".join(f"{label}\t{i}\n" for i, label in enumerate(labels)))
    assert "e.txt, line 1: expected one label a line (got a tab" in failing(
        capsys, *words, "--overwrite"
    )
    (tmp_path / "e.txt").write_text("\r\n".join(labels) + "\r\n")
    output(capsys, *words, "--overwrite")
    assert "arrays needs --model" in failing(capsys, *words[:2], *words[4:], "--overwrite")
