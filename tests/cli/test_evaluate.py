import contextlib
import io
import json
import typing

import numpy as np
import pytest

from sheafprop.cli import evaluate, training_commands
from sheafprop.cli.main import main
from sheafprop.data import write_triples
from sheafprop.pretrained.sheaf_model import SheafModel
from sheafprop.ranking import PROTOCOLS
from sheafprop.training.sheaf_completion import SheafCompletion
from tests.cli.commands import failing, output, table
from tests.cli.test_main import fit
from tests.distributed.rank_pool import pool
from tests.pretrained.models import FACTS, sheaf_model
from tests.toy import write_folder


@pytest.mark.parametrize("mode", ["semi-inductive", "fully-inductive"])
def test_evaluate_gives_the_numbers_of_test(tmp_path, capsys, mode):
    folder, group = write_folder(tmp_path / "ring", mode), tmp_path / "runs"
    assert fit(folder, group, "--seed_everything=3", mode=mode) == 0
    run = group / "rotate"
    assert main(["test", "--run", str(run)]) == 0
    capsys.readouterr()
    expected = {
        (row["method"], row["protocol"], name): value
        for row in json.loads((run / "metrics.json").read_text())["test"]
        for name, value in row["metrics"].items()
    }
    done = output(capsys, "evaluate", "--run", run)
    got = table(done.out)
    found = {(r.method, r.protocol, r.metric): r.value for r in got.itertuples()}
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, rel=1e-12), key
    assert "protocol:   full" in done.err
    merged = table(output(capsys, "evaluate", "--run", run, "--protocol", "merged").out)
    assert "selected on half of the test" in set(merged["mark"])
    # The model of the run is ready to be extended.
    assert SheafModel.load(run).settings["iterations"] in (1, 4)


@pytest.mark.parametrize("near", ["weight", "share", "frequency", "teleport"])
def test_evaluate_marks_what_test_marks(tmp_path, capsys, near):
    """Which weight of proximity validation selected is in the record of the run alone."""
    mode = "fully-inductive"
    folder, group = write_folder(tmp_path / "ring", mode), tmp_path / "runs"
    fixed = {"peers": 0.0, "weight": 0.2, "share": 0.2, "frequency": 0.1, "teleport": 0.2}
    options = [
        '--model.protocols=["full","merged"]',
        '--model.episodes={"num_steps": 2, "num_random": 2}',
        "--model.proximity=" + json.dumps(fixed | {near: "auto"}),
    ]
    assert fit(folder, group, *options, mode=mode) == 0
    run = group / "rotate"
    assert main(["test", "--run", str(run)]) == 0
    capsys.readouterr()
    rows = json.loads((run / "metrics.json").read_text())["test"]
    expected = {row["method"]: row.get("mark") for row in rows if row["protocol"] == "merged"}
    got = table(output(capsys, "evaluate", "--run", run, "--protocol", "merged").out)
    found = {row.method: row.mark or None for row in got.itertuples()}
    assert found == expected
    asked = near in ("weight", "teleport")
    assert (found["RotatE + episodes + proximity"] is not None) is asked


def test_every_protocol_can_be_asked_for():
    hints = typing.get_type_hints(SheafCompletion.__init__)
    (named, _) = typing.get_args(hints["protocols"])
    text = training_commands._HELP["test"]
    assert typing.get_args(named) == evaluate._PROTOCOLS == tuple(PROTOCOLS)
    assert f"protocols: {', '.join(PROTOCOLS)}" in text


def test_evaluate_ranks_triples_of_a_file(tmp_path, capsys, facts):
    grown = sheaf_model("transe").extend(FACTS)
    grown.save(tmp_path / "grown")
    write_triples(tmp_path / "test.tsv", [("n0", "far", "a3"), ("a2", "skip", "n1")])
    words = ["evaluate", tmp_path / "grown", "--test", tmp_path / "test.tsv"]
    got = table(output(capsys, *words, "--protocol", "full").out)
    values = dict(zip(got["metric"], got["value"], strict=True))
    ranks = []
    for head, relation, tail in [("n0", "far", "a3"), ("a2", "skip", "n1")]:
        for frame, side, true in (
            (grown.predict_tails(head, relation, 99), "tail", tail),
            (grown.predict_heads(relation, tail, 99), "head", head),
        ):
            ranks.append(list(frame[side]).index(true) + 1)
    assert values["mrr"] == pytest.approx(np.mean([1 / rank for rank in ranks]))
    strict = table(output(capsys, *words, "--protocol", "strict").out)
    assert dict(zip(strict["metric"], strict["value"], strict=True))["mrr_strict"] == (
        pytest.approx(values["mrr"])  # nothing is tied here
    )
    assert "'merged' is defined for runs" in failing(capsys, *words, "--protocol", "merged")


@pytest.mark.parametrize(
    ("content", "printed"),
    [
        (b"{[:", "run.yaml is not valid YAML"),
        (b"\xff\x00", "run.yaml: the configuration cannot be read"),
        (b"", "run.yaml is not the configuration of a run"),
        (b"data: [1]", "run.yaml is not the configuration of a run: see 'data'"),
        (b"model: rotate", "run.yaml is not the configuration of a run: see 'model'"),
        (b"seed_everything: abc", "run.yaml is not the configuration of a run: see 'seed_every"),
    ],
)
def test_a_run_without_a_configuration_is_named(tmp_path, capsys, content, printed):
    (tmp_path / "run.yaml").write_bytes(content)
    assert printed in failing(capsys, "evaluate", "--run", tmp_path)


def test_a_model_is_no_run(tmp_path, capsys, model):
    said = failing(capsys, "evaluate", "--run", model)
    assert "'sheafprop evaluate MODEL --test FILE' ranks" in said


def test_evaluate_counts_what_it_drops_or_extends_by(tmp_path, capsys, model):
    write_triples(tmp_path / "t.tsv", [("a0", "next", "a1"), ("a5", "far", "n"), ("u", "far", "n")])
    write_triples(tmp_path / "f.tsv", [("n", "next", "a2"), ("a5", "far", "n")])
    words = ["evaluate", model, "--test", tmp_path / "t.tsv", "--on-unknown-entity"]
    assert "2 of 3 triples affected" in failing(capsys, *words, "error")
    printed = output(capsys, *words, "drop")
    assert "1 evaluated, 2 dropped" in printed.err
    lines = f"{tmp_path / 't.tsv'}, line 2; {tmp_path / 't.tsv'}, line 3"
    assert f"2 triples dropped, as 2 entities have no vector (first: 'n'; {lines})" in printed.err
    rows = {
        (row["protocol"], row["metric"]): row["value"]
        for row in table(printed.out).to_dict("records")
    }
    assert float(rows["full", "dropped"]) == 2
    # Twelve entities: no query has 49 candidates.
    assert float(rows["sampled50", "few_candidates_50"]) == 2
    printed = output(capsys, *words, "extend", "--facts", tmp_path / "f.tsv").err
    assert "2 evaluated, 1 dropped" in printed
    assert "1 fact left out of the extension" in printed
    assert f"({tmp_path / 'f.tsv'}, line 2)" in printed
    printed = output(capsys, *words, "drop", "--filter", tmp_path / "f.tsv", tmp_path / "t.tsv").err
    assert "4 triples of the filter have a label" in printed
    assert f"{tmp_path / 'f.tsv'}, line 2; {lines})" in printed
    sizes = "".join(f"a{i},{i}\n" for i in range(9))
    (tmp_path / "x.csv").write_text(f"entity,size\n{sizes}u,3\nother,-9999\n")
    printed = output(
        capsys, *words, "extend", "--facts", tmp_path / "f.tsv", "--features", tmp_path / "x.csv"
    ).err
    assert "3 evaluated, 0 dropped" in printed
    assert f"note: {tmp_path / 'x.csv'}, line 12: 'size' is -9999 at 'other'" in printed
    assert "2 entities added from 1 fact and features of 1 before ranking" in printed
    for wrong in (
        ["extend"],
        ["drop", "--facts", tmp_path / "f.tsv"],
        ["drop", "--features", tmp_path / "x.csv"],
    ):
        with pytest.raises(SystemExit):
            main([str(word) for word in [*words, *wrong]])
        assert "needs --facts FILE or --features FILE" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--out", "t.xlsx"], ["--format", "parquet"]])
def test_a_table_that_cannot_be_written_is_refused_before_any_ranking(model, capsys, words):
    rows = ["evaluate", str(model), "--test", "nowhere.tsv"]
    assert main([*rows, *words]) == 1
    said = capsys.readouterr()
    assert ("no format 'xlsx'" in said.err) or ("Parquet is not text" in said.err)
    assert said.out == ""


def _evaluate(ranks, words):
    out, notes = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(notes):
        code = main([str(word) for word in words])
    return code, out.getvalue(), notes.getvalue()


@pytest.mark.parametrize("what", ["model", "run"])
def test_processes_of_torchrun_print_what_one_prints_once(tmp_path, capsys, what):
    ranks = pool(2)
    if what == "run":
        folder, group = write_folder(tmp_path / "ring"), tmp_path / "runs"
        assert fit(folder, group) == 0
        words = ["evaluate", "--run", group / "rotate"]
        words += [part for name in PROTOCOLS for part in ("--protocol", name)]
    else:
        sheaf_model("rotate").extend(FACTS).save(tmp_path / "grown")
        test = [("n0", "far", "a3"), ("u", "skip", "n1"), ("a2", "skip", "n1")]
        write_triples(tmp_path / "test.tsv", test)
        words = ["evaluate", tmp_path / "grown", "--test", tmp_path / "test.tsv"]
        words += ["--on-unknown-entity", "drop", "--timeout", 60]
    capsys.readouterr()
    assert main([str(word) for word in words]) == 0
    one = capsys.readouterr()
    first, second = ranks.run(_evaluate, words)
    assert first == (0, one.out, one.err)
    assert second == (0, "", "")
    # What is wrong is said once, and ends all.
    codes = ranks.run(_evaluate, [*words, "--filter" if what == "model" else "--data.root", "none"])
    assert [code for code, _, _ in codes] == [1, 3]
    assert "none" in codes[0][2]
    assert codes[1][1:] == ("", "")
