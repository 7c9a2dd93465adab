import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import yaml

from sheafprop.cli.command_parser import CommandParser, report_warnings
from sheafprop.cli.main import _OWN, main
from sheafprop.data import write_triples
from sheafprop.pretrained.sheaf_model import SheafModel
from tests.cli.commands import READ, failing, output, scrambled, table
from tests.cli.test_main import fit
from tests.pretrained.models import FACTS, sheaf_model
from tests.toy import write_folder


@pytest.mark.parametrize(
    "words",
    [
        ["extend", "MODEL", "FACTS", "FACTS", "--out", "OUT"],
        ["extend", "MODEL", "--out", "OUT", "FACTS", "FACTS"],
        ["extend", "--run", "MODEL", "FACTS", "FACTS", "--out", "OUT"],
        ["extend", "FACTS", "--out", "OUT", "--run", "MODEL", "FACTS"],
    ],
)
def test_a_model_and_its_files_in_any_order(tmp_path, capsys, model, facts, words):
    named = {"MODEL": model, "FACTS": facts, "OUT": tmp_path / "grown"}
    printed = output(capsys, *[named.get(word, word) for word in words]).err
    grown = SheafModel.load(tmp_path / "grown")
    distinct = len(set(FACTS))
    assert grown.num_facts == SheafModel.load(model).num_facts + distinct
    assert f"{2 * len(FACTS) - distinct} facts repeat an earlier one" in printed
    expected = output(capsys, "score", tmp_path / "grown", facts).out
    assert output(capsys, "score", "--run", tmp_path / "grown", facts).out == expected
    assert len(table(expected)) == len(FACTS)


@pytest.mark.parametrize(
    "words",
    [
        ["predict", "MODEL", "--head", "a0", "--relation", "next"],
        ["score", "MODEL", "RING"],
        ["answer", "MODEL", "--query", "via(next, a0)", "--format", "json"],
        ["explain", "MODEL", "--entity", "a0", "--format", "csv"],
        ["evaluate", "MODEL", "--test", "RING"],
    ],
    ids=lambda words: words[0],
)
def test_a_dash_is_standard_output(tmp_path, monkeypatch, capsys, model, words):
    write_triples(tmp_path / "ring.tsv", [("a0", "next", "a1")])
    words = [{"MODEL": "model", "RING": "ring.tsv"}.get(word, word) for word in words]
    monkeypatch.chdir(tmp_path)
    assert output(capsys, *words, "--out", "-").out == output(capsys, *words).out
    assert not Path("-").exists()


@pytest.mark.parametrize("place", ["-", "/dev/stdout"])
def test_standard_output_holds_nothing_but_what_was_asked(
    tmp_path, monkeypatch, capfd, model, facts, place
):
    monkeypatch.chdir(tmp_path)
    for kind in ("tsv", "word2vec"):
        output(capfd, "export", "model", "--out", "vectors", "--format", kind)
        printed = output(capfd, "export", "model", "--out", place, "--format", kind).out
        assert printed == Path("vectors").read_text()
    words = ["extend", "model", "facts.tsv", "--out", "grown", "--report", place]
    assert json.loads(output(capfd, *words).out)["new_entities"] == 3
    for words in (
        ["export", "model", "--out", place, "--format", "npy"],
        ["export", "model", "--out", place],
        ["extend", "model", "facts.tsv", "--out", place],
        ["import", "pykeen", "x", "--out", place],
        ["inspect", "facts.tsv", "--figure", place],
    ):
        with pytest.raises(SystemExit):
            main(words)
    assert not Path("-").exists()


def test_a_dash_is_standard_input(tmp_path, monkeypatch, capsys, standard_input, model, facts):
    monkeypatch.chdir(tmp_path)
    write_triples(tmp_path / "ring.tsv", [("a0", "next", "a1")])
    (tmp_path / "queries.txt").write_text("via(next, a0)\n")
    for words, name in (
        (["score", "model"], "ring.tsv"),
        (["inspect"], "ring.tsv"),
        (["answer", "model", "--queries"], "queries.txt"),
    ):
        expected = output(capsys, *words, name).out
        standard_input(Path(name).read_bytes())
        assert output(capsys, *words, "-").out == expected.replace(name, "stdin")
    standard_input(b"")
    assert "holds no triple" in failing(capsys, "extend", "model", "-", "--out", "grown")


def test_labels_stay_literal_in_tables(tmp_path, capsys):
    labels = ['"quoted"', "New York, NY", "NA", "1.0", "O'Brien"]
    grown = sheaf_model("transe").extend([(label, "next", "a1") for label in labels])
    grown.save(tmp_path / "grown")
    words = ["predict", tmp_path / "grown", "--relation", "next", "--tail", "a1", "-k", 99]
    lines = output(capsys, *words, "--include-known").out.splitlines()
    assert set(labels) <= {line.split("\t")[0] for line in lines}
    odd = grown.extend([("a\tb", "next", "a1")])
    odd.save(tmp_path / "odd")
    words[1] = tmp_path / "odd"
    words.append("--include-known")
    assert "--format csv" in failing(capsys, *words)
    assert '"a\\tb"' in output(capsys, *words, "--format", "json").out


@pytest.mark.parametrize("name", sorted(_OWN))
def test_every_command_has_help_with_an_example_and_needs_no_torch(name):
    code = (
        "import sys\nfrom sheafprop.cli.main import main\n"
        f"try:\n    main(['{name}', '--help=all'])\n"
        "except SystemExit as stop:\n    assert stop.code == 0\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"example:\n  sheafprop {name} " in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["predict", "m", "--head", "a"],
        ["predict", "m", "--head", "a", "--tail", "b", "--relation", "r"],
        ["predict", "m", "--queries", "q", "--relation", "r"],
        ["explain", "m"],
        ["explain", "m", "--run", "m", "--entity", "a"],
        ["predict", "--head", "a", "--relation", "r"],
        ["answer", "m"],
        ["answer", "--query", "via(r, a)"],
        ["answer", "m", "--run", "m", "--query", "via(r, a)"],
        ["answer", "m", "--query", "via(r, a)", "--queries", "f"],
        ["evaluate"],
        ["evaluate", "m"],
        ["evaluate", "--run", "m", "--test", "f"],
        ["evaluate", "--run", "m", "--filter", "f"],
        ["evaluate", "m", "--test", "f", "--data.root", "d"],
        ["extend", "m"],
        ["extend", "m", "f", "--out", "o", "--columns", "0,1"],
        ["extend", "m", "f", "--out", "o", "--columns", "a,b,"],
        ["extend", "m", "f", "--out", "o", "--header=maybe"],
        ["extend", "m", "f", "--out", "o", "--columns", "0,1,1"],
        ["extend", "--run", "m", "--out", "o"],
        ["extend", "f", "--out", "o"],
        ["remove", "m", "--out", "o"],
        ["remove", "m", "--entity", "a"],
        ["score", "--run", "m"],
        ["score", "", "f"],
        ["import", "pykeen", "--out", "x"],
        ["score"],
    ],
)
def test_calls_that_make_no_sense_exit_with_two(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert "usage: sheafprop" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(READ))
def test_every_command_takes_the_reading_options(tmp_path, capsys, command, name):
    rows = [("a0", "next", "a1"), ("a2", "skip", "a4"), ("a1", "next", "a2")]
    if name == "predict":
        rows = [(h, r, "?") for h, r, _ in rows]
    file = scrambled(tmp_path / "f.csv.gz", rows)
    printed = failing(capsys, *command(name, file))
    assert "line 1: expected 3 comma-separated fields" in printed
    assert "--columns" in printed
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


def test_what_was_reported_is_not_warned_of_again_where_once_is_enough(capsys):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", DeprecationWarning)  # of libraries
        for once in (True, False):
            with report_warnings(once=once):
                warnings.warn(f"said (once: {once})", stacklevel=1)
            warnings.warn(f"said (once: {once})", stacklevel=1)
    assert [str(warning.message) for warning in caught] == ["said (once: False)"]
    assert capsys.readouterr().err.count("note: said") == 2
