"""The verbs of our own parser, run in this process on small models and files."""

import errno
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from sheafprop.cli.import_model import _PARAMETERS
from sheafprop.cli.main import _OWN_VERBS, main
from sheafprop.data import build_dataset, write_triples
from sheafprop.kge import build_model
from sheafprop.pretrained.sheaf_model import SheafModel
from sheafprop.pretrained.stored_model import StoredModel
from sheafprop.query import Query
from tests.cli.test_main import fit
from tests.pretrained.models import ADRIFT, FACTS, sheaf_model, stored_model
from tests.toy import write_folder


@pytest.fixture
def model(tmp_path):
    return sheaf_model("rotate").save(tmp_path / "model")


@pytest.fixture
def facts(tmp_path):
    write_triples(tmp_path / "facts.tsv", FACTS)
    return tmp_path / "facts.tsv"


def output(capsys, *words):
    assert main([str(word) for word in words]) == 0
    return capsys.readouterr()


def failing(capsys, *words):
    assert main([str(word) for word in words]) == 1
    told = capsys.readouterr()
    assert "Traceback" not in told.err
    return told.err


def table(text):
    return pd.read_csv(StringIO(text), sep="\t", keep_default_na=False)


def test_extend_gives_a_model_that_predicts(tmp_path, capsys, model, facts):
    done = output(capsys, "extend", model, facts, "--out", tmp_path / "grown")
    assert done.out.strip() == str(tmp_path / "grown")
    assert "3 vectors are the exact solution" in done.err
    expected = SheafModel.load(model).extend(FACTS)
    assert torch.equal(SheafModel.load(tmp_path / "grown").vectors(), expected.vectors())
    words = ["--head", "n0", "--relation", "next", "-k", "4"]
    got = table(output(capsys, "predict", tmp_path / "grown", *words).out)
    pd.testing.assert_frame_equal(
        got, expected.predict_tails("n0", "next", 4), check_dtype=False, atol=1e-12
    )
    words = ["--tail", "n0", "--relation", "next", "-k", "99", "--include-known"]
    got = table(output(capsys, "predict", tmp_path / "grown", *words).out)
    assert list(got.columns) == ["head", "relation", "tail", "score", "origin", "known"]
    assert len(got) == expected.num_entities


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
    told = output(capsys, *[named.get(word, word) for word in words]).err
    grown = SheafModel.load(tmp_path / "grown")
    distinct = len(set(FACTS))
    assert grown.num_facts == SheafModel.load(model).num_facts + distinct
    assert f"{2 * len(FACTS) - distinct} facts repeat an earlier one" in told
    expected = output(capsys, "score", tmp_path / "grown", facts).out
    assert output(capsys, "score", "--run", tmp_path / "grown", facts).out == expected
    assert len(table(expected)) == len(FACTS)


def test_extend_scales_new_vectors_unless_told_not_to(tmp_path, capsys, model, facts):
    exact = SheafModel.load(model).extend(facts, normalize_output=False)
    for words, unit in (([], True), (["--no-normalize-output"], False)):
        out = tmp_path / str(unit)
        told = output(capsys, "extend", model, facts, "--out", out, *words).err
        assert ("scaled to the length" in told) is unit
        grown = SheafModel.load(out)
        lengths = torch.linalg.vector_norm(grown.vectors()[-3:], dim=-1)
        # Three float32 rows: each was divided by its length, so is one up to rounding.
        assert bool(((lengths - 1).abs() < 1e-5).all()) is unit
        assert unit or torch.equal(grown.vectors(), exact.vectors())


def test_a_place_that_is_taken_is_told_before_any_work(tmp_path, capsys, model, facts):
    facts.write_text("no triple at all")
    told = failing(capsys, "extend", model, facts, "--out", model)
    assert "--overwrite" in told
    told = failing(capsys, "extend", model, facts, "--out", facts, "--overwrite")
    assert "it is a file" in told
    words = ["import", "pykeen", tmp_path / "nowhere", "--out", model]
    assert "--overwrite" in failing(capsys, *words)


@pytest.mark.parametrize("report", ["folder", "facts.tsv/report.json", "grown"])
def test_a_report_that_cannot_be_written_leaves_no_model(
    tmp_path, monkeypatch, capsys, model, facts, report
):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    words = ["extend", model, facts, "--out", "grown", "--report", report]
    assert report in failing(capsys, *words)
    assert not Path("grown").is_dir()


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
    assert len(output(capsys, *words, "--on-unknown-relation", "drop").err) < 500
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


def test_extend_options(tmp_path, capsys, model, facts):
    (tmp_path / "more.csv").write_text("subject,object,x,predicate\na0,q,1,next\n")
    words = ["--columns", "0,3,1", "--header", "--report", tmp_path / "r.json"]
    output(capsys, "extend", model, tmp_path / "more.csv", "--out", tmp_path / "b", *words)
    assert json.loads((tmp_path / "r.json").read_text())["new_entities"] == 1
    write_triples(tmp_path / "unheard.tsv", [("a0", "unheard", "z"), ("a0", "next", "z")])
    bad = ["extend", model, tmp_path / "unheard.tsv", "--out", tmp_path / "c"]
    assert "'unheard' (1 fact)" in failing(capsys, *bad)
    assert not (tmp_path / "c").exists()
    assert "1 fact dropped" in output(capsys, *bad, "--on-unknown-relation", "drop").err
    assert "overwrite" in failing(capsys, "extend", model, facts, "--out", tmp_path / "c")
    again = ["extend", model, facts, "--out", tmp_path / "c", "--overwrite", "--seed", 3]
    output(capsys, *again, "--propagation", "selected")
    assert SheafModel.load(tmp_path / "c").num_sections == 3


@pytest.mark.parametrize("kind", ["tsv", "csv", "json", "parquet"])
def test_tables_come_in_every_format(tmp_path, capsys, model, facts, kind):
    expected = SheafModel.load(model).extend(FACTS)
    expected.save(tmp_path / "grown")
    place = tmp_path / f"scores.{kind}"
    done = output(capsys, "score", tmp_path / "grown", facts, "--out", place)
    assert done.out == ""
    read = {
        "tsv": lambda: table(place.read_text()),
        "csv": lambda: pd.read_csv(place),
        "json": lambda: pd.read_json(place),
        "parquet": lambda: pd.read_parquet(place),
    }[kind]()
    pd.testing.assert_frame_equal(read, expected.score(FACTS), check_dtype=False, atol=1e-12)
    if kind != "parquet":
        text = output(capsys, "score", tmp_path / "grown", facts, "--format", kind).out
        assert text == place.read_text()
    else:
        words = ["score", tmp_path / "grown", facts, "--format", kind]
        assert "--out" in failing(capsys, *words)
    assert "no format 'xls'" in failing(
        capsys, "score", tmp_path / "grown", facts, "--out", tmp_path / "x.xls"
    )


@pytest.fixture
def standard_input():
    """Puts bytes where a verb reads standard input."""
    kept = os.dup(0)

    def give(content):
        read, write = os.pipe()
        os.write(write, content)
        os.close(write)
        os.dup2(read, 0)
        os.close(read)

    yield give
    os.dup2(kept, 0)
    os.close(kept)


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
        told = output(capfd, "export", "model", "--out", place, "--format", kind).out
        assert told == Path("vectors").read_text()
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


def test_labels_that_differ_only_in_case_or_white_space_are_told(tmp_path, capsys, model):
    wide = "\uff21\uff14"  # in the width of Chinese characters
    labels = ["A0", " a1", "new", "New", "a3", wide, "fresh"]
    write_triples(tmp_path / "new.tsv", [(label, "next", "a2") for label in labels])
    told = output(capsys, "extend", model, tmp_path / "new.tsv", "--out", tmp_path / "grown").err
    said = "entities that differ from another only in case, white space, Unicode form or hidden "
    pairs = f"characters: 4 ('A0' and 'a0', ' a1' and 'a1', 'New' and 'new', '{wide}' and 'a4')"
    assert f"new {said}{pairs}; labels are taken literally" in told
    assert "A0" in SheafModel.load(tmp_path / "grown").labels()
    assert f"\n{said}{pairs}\n" in output(capsys, "inspect", tmp_path / "grown").out
    write_triples(tmp_path / "new.tsv", [("a0", "Next", "fresh"), ("a0", "next", "Fresh")])
    text = output(capsys, "inspect", tmp_path / "new.tsv").out
    assert f"\n{said}characters: 1 ('Fresh' and 'fresh')\n" in text
    assert f"\n{said.replace('entities', 'relations')}characters: 1 ('next' and 'Next')\n" in text
    words = ["extend", model, tmp_path / "new.tsv", "--out", tmp_path / "again"]
    assert "'Next' (1 fact) (did you mean 'next'?)" in failing(capsys, *words)
    words.append("--on-unknown-relation=drop")
    write_triples(tmp_path / "new.tsv", [("a0", "next", "fresh"), ("a0", "next", "a1")])
    assert "differ" not in output(capsys, *words).err


def test_json_has_all_digits_and_nothing_but_json(tmp_path, capsys, facts):
    grown = sheaf_model("transe").extend(FACTS)
    grown.save(tmp_path / "grown")
    words = ["explain", tmp_path / "grown", "--entity", "a1", "--format", "json"]
    rows = json.loads(output(capsys, *words).out)
    assert [row["energy"] for row in rows] == grown.explain("a1")["energy"].tolist()
    # A relation that no fact was trained for has no usual energy to compare with.
    base = stored_model("transe")
    stored = replace(base, residual_variance=torch.zeros_like(base.residual_variance))
    SheafModel(stored).save(tmp_path / "bare")
    words[1:4] = [tmp_path / "bare", "--entity", "a0"]
    rows = json.loads(output(capsys, *words).out, parse_constant=pytest.fail)
    assert {row["ratio"] for row in rows} == {None}


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


def test_odd_labels_go_through_every_verb_as_they_are(tmp_path, capsys, model):
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


def test_queries_from_a_file(tmp_path, capsys, model):
    (tmp_path / "q.tsv").write_text("a0\tnext\t?\n?\tfar\ta1\na2\tskip\t?\n")
    got = table(output(capsys, "predict", model, "--queries", tmp_path / "q.tsv", "-k", 2).out)
    loaded = SheafModel.load(model)
    expected = pd.concat(
        [
            loaded.predict_tails("a0", "next", 2),
            loaded.predict_heads("far", "a1", 2),
            loaded.predict_tails("a2", "skip", 2),
        ],
        ignore_index=True,
    )
    pd.testing.assert_frame_equal(got, expected, check_dtype=False, atol=1e-12)
    (tmp_path / "q.tsv").write_text("a0\tnext\ta1\n")
    assert "query 1 needs '?'" in failing(capsys, "predict", model, "--queries", tmp_path / "q.tsv")


def test_answer(tmp_path, capsys, model):
    query, loaded = "and(via(next, a0), via(far, a6))", SheafModel.load(model)
    expected = loaded.answer(query, 4)
    got = table(output(capsys, "answer", "--run", model, "--query", query, "-k", 4).out)
    pd.testing.assert_frame_equal(got, expected, check_dtype=False, atol=1e-12)
    path = ["answer", model, "--query", "via(far, via(next, a0))", "-k", 4]
    for words, prior in ((path, False), ([*path, "--prior"], True)):
        expected = loaded.answer(path[3], 4, prior=prior)
        pd.testing.assert_frame_equal(
            table(output(capsys, *words).out), expected, check_dtype=False, atol=1e-12
        )
    words = ["answer", model, "--query", query, "-k", 999, "--explain"]
    got = table(output(capsys, *words).out)
    assert len(got) == 2 * loaded.num_entities
    assert list(got.columns[-2:]) == ["edge", "edge_energy"]
    queries = [query, "via(inverse(skip), a1)"]
    (tmp_path / "q.txt").write_text("\ufeff" + "\r\n\n".join(queries))
    batch = ["answer", model, "--queries", tmp_path / "q.txt", "-k", 2]
    expected = loaded.answer(queries, 2)
    for kind in ("json", "csv", "parquet", "tsv"):
        place = tmp_path / f"a.{kind}"
        assert output(capsys, *batch, "--out", place).out == ""
        read = {"json": pd.read_json, "csv": pd.read_csv, "parquet": pd.read_parquet}
        got = read[kind](place) if kind in read else table(place.read_text())
        pd.testing.assert_frame_equal(got, expected, check_dtype=False, atol=1e-12)
    repeated = ["--query", queries[0], "--query", queries[1], "-k", 2]
    assert output(capsys, "answer", model, *repeated).out == place.read_text()


def test_queries_that_fail(tmp_path, capsys, model):
    told = failing(capsys, "answer", model, "--query", "via(next, A0)")
    assert "did you mean 'a0'" in told
    assert "position 10: expected" in failing(capsys, "answer", model, "--query", "via(next a0)")
    (tmp_path / "q.txt").write_text("via(next, a0)\nvia(nxt, a0)\n")
    told = failing(capsys, "answer", model, "--queries", tmp_path / "q.txt")
    assert "query 2, via(nxt, a0)" in told
    assert "did you mean 'next'" in told
    (tmp_path / "q.txt").write_text("\n \n")
    assert "no query" in failing(capsys, "answer", model, "--queries", tmp_path / "q.txt")
    (tmp_path / "q.txt").write_bytes(b"\xff\x00")
    assert "cannot be read" in failing(capsys, "answer", model, "--queries", tmp_path / "q.txt")
    assert "cannot be read" in failing(capsys, "answer", model, "--queries", tmp_path / "nowhere")
    assert "at least 1" in failing(capsys, "answer", model, "--query", "via(next, a0)", "-k", 0)


def test_explain(tmp_path, capsys, model):
    got = table(output(capsys, "explain", model, "--entity", "a0").out)
    assert list(got["energy"]) == sorted(got["energy"], reverse=True)
    got = table(output(capsys, "explain", model, "--triple", "a0", "next", "a5").out)
    assert list(got.iloc[0][:3]) == ["a0", "next", "a5"]
    base = stored_model("transe")
    SheafModel(replace(base, facts=base.facts[:0])).save(tmp_path / "bare")
    done = output(capsys, "explain", tmp_path / "bare", "--entity", "a0")
    assert len(done.out.splitlines()) == 1
    assert "no fact of 'a0'" in done.err


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
    assert "'merged' is defined for runs" in failing(capsys, *words, "--protocol", "merged")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"{[:", "run.yaml is not valid YAML"),
        (b"\xff\x00", "run.yaml: the configuration cannot be read"),
        (b"", "run.yaml is not the configuration of a run"),
        (b"data: [1]", "run.yaml is not the configuration of a run: see 'data'"),
        (b"model: rotate", "run.yaml is not the configuration of a run: see 'model'"),
        (b"seed_everything: abc", "run.yaml is not the configuration of a run: see 'seed_every"),
    ],
)
def test_a_run_without_a_configuration_is_named(tmp_path, capsys, content, told):
    (tmp_path / "run.yaml").write_bytes(content)
    assert told in failing(capsys, "evaluate", "--run", tmp_path)


def test_a_model_is_no_run(tmp_path, capsys, model):
    assert "--test FILE without --run" in failing(capsys, "evaluate", "--run", model)


def test_parquet_files_are_read_as_others_are(tmp_path, capsys, model):
    place, words = tmp_path / "f.parquet", ["extend", model, tmp_path / "f.parquet", "--out"]
    assert "No such file" in failing(capsys, *words, tmp_path / "x")
    place.mkdir()
    assert "Is a directory" in failing(capsys, *words, tmp_path / "x")
    place.rmdir()
    frame = pd.DataFrame({"to": ["a1"], "n": [7.0], "by": ["next"], "from": ["new"]})
    frame.to_parquet(place)
    assert "--columns" in failing(capsys, *words, tmp_path / "x")
    assert "4 columns" in failing(capsys, *words, tmp_path / "x", "--columns", "0,1,9")
    told = failing(capsys, *words, tmp_path / "x", "--columns", "3,1,0")
    assert "type float, the first in row 0: 'new', 7.0, 'a1'" in told
    output(capsys, *words, tmp_path / "y", "--columns", "3,2,0")
    assert SheafModel.load(tmp_path / "y").facts().iloc[-1].tolist() == ["new", "next", "a1"]
    frame[:0].to_parquet(place)
    assert "no triple" in failing(capsys, *words, tmp_path / "x", "--columns", "3,2,0")


def test_inspect(tmp_path, capsys):
    folder = tmp_path / "data"
    folder.mkdir()
    write_triples(
        folder / "train.txt",
        [("a", "likes", "b"), ("a", "likes", "b"), ("b", "liked_by", "a"), ("c", "likes", "c")],
    )
    write_triples(
        folder / "inference.txt",
        [("a", "likes", "n"), ("m", "new", "o"), ("b", "likes", "a"), ("a", "likes", "b")],
    )
    text = output(capsys, "inspect", folder, "--figure", tmp_path / "f.png").out
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    found = json.loads(output(capsys, "inspect", folder, "--json").out)
    train = found["files"]["train.txt"]
    assert train == {
        "triples": 4,
        "entities": 3,
        "relations": 2,
        "duplicates": 1,
        "self_loops": 1,
        "pairs_in_both_directions": 1,
        "components": 2,
        "largest_components": [2, 1],
    }
    assert found["graph"] == {
        "known_entities": 2,
        "new_entities": 3,
        "components": 2,
        "components_without_anchor": 1,
        "anchors_of_largest": [2, 0],
        "components_by_anchors": {"0": 1, "2": 1},
    }
    assert found["unseen_relations"] == {"inference.txt": {"new": 1}}
    overlaps = {row["what"]: row["count"] for row in found["overlaps"]}
    assert overlaps == {"triples": 1, "pairs in swapped order": 2, "entity labels": 2}
    inverse = {(row["relation"], row["inverse"]) for row in found["inverse_relations"]}
    assert ("liked_by", "likes") in inverse
    assert found["relations"] == {"likes": 6, "liked_by": 1, "new": 1}
    assert sum(found["degrees"].values()) == 6
    for word in (
        "duplicates: 1",
        "self loops: 1",
        "looks like the inverse",
        "without anchor: 1",
        "components by anchors: 1 with 0, 1 with 2",
        "triples of a relation: 'likes': 6, 'liked_by': 1, 'new': 1; 3 relations in all, 2 with a",
        "2 entity labels in both train.txt and inference.txt",
        "1 triple in both train.txt and inference.txt",
    ):
        assert word in text
    swaps = [(f"{a}{i}", f"r{i}", f"{b}{i}") for i in range(7) for a, b in ("xy", "yx")]
    write_triples(tmp_path / "symmetric.txt", swaps)
    text = output(capsys, "inspect", tmp_path / "symmetric.txt").out
    assert text.count("looks symmetric: 100 % of its pairs") == 5
    assert "\nand 2 more such pairs of relations (--json has all)\n" in text
    one = output(capsys, "inspect", folder / "train.txt").out
    assert "triples: 4" in one
    (tmp_path / "none").mkdir()
    assert "no file of triples" in failing(capsys, "inspect", tmp_path / "none")
    assert "cannot be read" in failing(capsys, "inspect", tmp_path / "nowhere.txt")
    (folder / "inference.txt").write_text("\n")
    assert "inference.txt\n  triples: 0\n" in output(capsys, "inspect", folder).out
    (folder / "train.txt").write_text("")
    assert "all 2 files are empty" in failing(capsys, "inspect", folder)
    (tmp_path / "x.csv").write_text('object,predicate,subject\n"b, c",likes,a\n')
    words = ["inspect", tmp_path / "x.csv", "--columns", "2,1,0", "--header", "--json"]
    assert json.loads(output(capsys, *words).out)["relations"] == {"likes": 1}


def test_evaluate_counts_what_it_drops_or_extends_by(tmp_path, capsys, model):
    write_triples(tmp_path / "t.tsv", [("a0", "next", "a1"), ("a5", "far", "n"), ("u", "far", "n")])
    write_triples(tmp_path / "f.tsv", [("n", "next", "a2"), ("a5", "far", "n")])
    words = ["evaluate", model, "--test", tmp_path / "t.tsv", "--on-unknown-entity"]
    assert "2 of 3 triples affected" in failing(capsys, *words, "error")
    told = output(capsys, *words, "drop")
    assert "1 evaluated, 2 dropped" in told.err
    assert "2 triples dropped, as 2 entities have no vector (first: 'n')" in told.err
    rows = {
        (row["protocol"], row["metric"]): row["value"] for row in table(told.out).to_dict("records")
    }
    assert float(rows["full", "dropped"]) == 2
    # Twelve entities: no query has 49 candidates.
    assert float(rows["sampled50", "few_candidates_50"]) == 2
    told = output(capsys, *words, "extend", "--facts", tmp_path / "f.tsv").err
    assert "2 evaluated, 1 dropped" in told
    assert "1 fact left out of the extension" in told
    for wrong in (["extend"], ["drop", "--facts", tmp_path / "f.tsv"]):
        with pytest.raises(SystemExit):
            main([str(word) for word in [*words, *wrong]])
    assert "needs --facts FILE" in capsys.readouterr().err


def test_inspect_a_model(tmp_path, capsys, model, facts):
    output(capsys, "extend", model, facts, "--out", tmp_path / "run" / "model")
    told = output(capsys, "inspect", tmp_path / "run").out
    for word in (
        "method: RotatE",
        "entities: 15",
        "origins: trained: 12, extended: 3",
        "relations: 3",
        "iterations: 5",
        f"triples: {36 + len(set(FACTS))}",
    ):
        assert word in told
    grown = SheafModel.load(tmp_path / "run")
    found = json.loads(output(capsys, "inspect", tmp_path / "run" / "model", "--json").out)
    assert found["model"]["origins"] == {"trained": 12, "extended": 3}
    assert found["model"]["chosen_propagation"] == grown.settings
    rows = table(output(capsys, "inspect", tmp_path / "run", "--relations").out)
    assert rows.set_index("relation")["triples"].to_dict() == found["relations"]
    assert found["relations"] == grown.facts()["relation"].value_counts().to_dict()
    assert "is a model" in failing(capsys, "inspect", tmp_path / "run", "--header")
    # Relations that no fact has are the model's too.
    base = stored_model("transe", settings=None)
    SheafModel(replace(base, facts=base.facts[:0])).save(tmp_path / "bare")
    assert "None" not in output(capsys, "inspect", tmp_path / "bare").out
    rows = table(output(capsys, "inspect", tmp_path / "bare", "--relations").out)
    assert rows.to_numpy().tolist() == [["next", 0], ["skip", 0], ["far", 0]]
    assert "facts\n  triples: 0\n" in output(capsys, "inspect", tmp_path / "bare").out


def test_export_and_import_arrays(tmp_path, capsys, model):
    loaded = SheafModel.load(model)
    done = output(capsys, "export", model, "--out", tmp_path / "v.npy")
    assert len(done.out.splitlines()) == 2
    np.save(tmp_path / "phase.npy", loaded.kge.rel_emb.weight.detach().float().numpy())
    (tmp_path / "relations.txt").write_text("\n".join(loaded.relations.labels) + "\n")
    write_triples(tmp_path / "train.tsv", loaded.facts().to_numpy().tolist())
    words = ["--model", "rotate", "--vectors", tmp_path / "v.npy", "--relation-vectors"]
    words += [tmp_path / "phase.npy", "--entities", tmp_path / "v.npy.labels.json"]
    words += ["--relations", tmp_path / "relations.txt", "--facts", tmp_path / "train.tsv"]
    output(capsys, "import", "arrays", *words, "--out", tmp_path / "again")
    again = SheafModel.load(tmp_path / "again")
    assert again.labels() == loaded.labels()
    expected = loaded.predict_tails("a0", "next", 5)
    pd.testing.assert_frame_equal(again.predict_tails("a0", "next", 5), expected, atol=1e-5)
    assert "needs --vectors" in failing(
        capsys, "import", "arrays", "--out", tmp_path / "x", *words[6:]
    )
    told = failing(capsys, "import", "arrays", "--out", tmp_path / "x", *words[:4], *words[6:])
    assert "{--vectors: [12, 8], --relation-vectors: [3, 4]} (got {--vectors: [12, 8]})" in told


@pytest.mark.parametrize("name", ["transe", "rotate", "transr", "se"])
def test_safetensors_go_out_and_come_back(tmp_path, capsys, name):
    loaded = sheaf_model(name, dtype=torch.float32)
    loaded.save(tmp_path / "model")
    output(capsys, "export", tmp_path / "model", "--out", tmp_path / "v.safetensors")
    state = {k: v for k, v in loaded.kge.state_dict().items() if k != "node_emb.weight"}
    save_file(state, tmp_path / "relations.safetensors")
    (tmp_path / "relations.json").write_text(json.dumps(loaded.relations.labels))
    write_triples(tmp_path / "train.tsv", loaded.facts().to_numpy().tolist())
    words = ["import", "arrays", "--model", name, "--out", tmp_path / "again"]
    words += ["--vectors", tmp_path / "v.safetensors", "--facts", tmp_path / "train.tsv"]
    words += ["--entities", tmp_path / "v.safetensors.labels.json"]
    words += ["--relations", tmp_path / "relations.json"]
    for option, (parameter, _) in _PARAMETERS.items():
        if parameter in state:
            key = f"{tmp_path}/relations.safetensors:{parameter}"
            words += [f"--{option.replace('_', '-')}", key]
    output(capsys, *words)
    again = SheafModel.load(tmp_path / "again")
    assert torch.equal(again.vectors(), loaded.vectors())
    assert again.labels() == loaded.labels()
    assert torch.equal(again.extend(FACTS).vectors(), loaded.extend(FACTS).vectors())
    words[words.index("--vectors") + 1] = tmp_path / "relations.safetensors:nothing"
    assert "say which" in failing(capsys, *words, "--overwrite")
    (tmp_path / "v.safetensors").write_bytes(b"cut")
    words[words.index("--vectors") + 1] = tmp_path / "v.safetensors"
    assert "cannot be read as safetensors" in failing(capsys, *words, "--overwrite")
    several = loaded.extend(FACTS, propagation="selected")
    several.save(tmp_path / "several")
    output(capsys, "export", tmp_path / "several", "--out", tmp_path / "v.safetensors")
    assert "a vector for each entity" in failing(capsys, *words, "--overwrite")


def test_import_pyg(tmp_path, capsys):
    from torch_geometric.nn.kge import TransE

    model = TransE(3, 1, 4)
    torch.save(model.state_dict(), tmp_path / "state.pt")
    (tmp_path / "e.txt").write_text("a\nb\nc\n")
    (tmp_path / "r.txt").write_text("r\n")
    words = ["import", "pyg", tmp_path / "state.pt", "--out", tmp_path / "m"]
    words += ["--entities", tmp_path / "e.txt", "--relations", tmp_path / "r.txt"]
    assert "give kge='transe' or kge='rotate' (--model)" in failing(capsys, *words)
    done = output(capsys, *words, "--model", "transe")
    assert "note: the model scores by the 1-norm" in done.err
    assert SheafModel.load(tmp_path / "m").extend([("n", "r", "a")]).report.solved_exactly == 1


WRITING = {
    "extend": ["extend", "MODEL", "FACTS", "--out", "new"],
    "extend, report": ["extend", "MODEL", "FACTS", "--out", "MODEL", "--overwrite"],
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
def test_a_disk_that_refuses_is_told_in_a_line(
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
    told = failing(capsys, *words)
    assert "cannot be written" in told
    assert len(told.splitlines()) <= 2
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize(
    "words",
    [
        ["extend", "model", "facts.tsv", "--out", "new"],
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
def test_what_cannot_be_read_is_told_in_a_line(tmp_path, monkeypatch, capsys, model, facts, words):
    # Tests may run as root, whom no permission stops.
    def refuse(path, *arguments, **options):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.chdir(tmp_path)
    for name in ("read_bytes", "read_text", "open"):
        monkeypatch.setattr(Path, name, refuse)
    monkeypatch.setattr("sheafprop.pretrained.model_folder.open", refuse, raising=False)
    told = failing(capsys, *words)
    assert "ermission denied" in told
    assert len(told.splitlines()) <= 2
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
    for verb in ("predict", "answer", "explain", "inspect"):
        with pytest.raises(SystemExit):
            main([verb, "--help"])
        examples += capsys.readouterr().out
    lines = re.findall(r"sheafprop (\w+ runs/umls/rotate .*)", examples)
    done = {shlex.split(line)[0] for line in lines if output(capsys, *shlex.split(line)).out}
    assert done == {"extend", "predict", "answer", "explain", "inspect"}


@pytest.mark.parametrize("verb", sorted(_OWN_VERBS))
def test_every_verb_has_help_with_an_example_and_needs_no_torch(verb):
    code = (
        "import sys\nfrom sheafprop.cli.main import main\n"
        f"try:\n    main(['{verb}', '--help=all'])\n"
        "except SystemExit as stop:\n    assert stop.code == 0\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"example:\n  sheafprop {verb} " in done.stdout


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
        ["score", "--run", "m"],
        ["import", "pykeen", "--out", "x"],
        ["score"],
    ],
)
def test_calls_that_make_no_sense_exit_with_two(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert "usage: sheafprop" in capsys.readouterr().err


def test_no_model_and_unknown_labels_exit_with_one(tmp_path, capsys, model):
    told = failing(capsys, "predict", model, "--head", "A0", "--relation", "next")
    assert "did you mean 'a0'" in told
    told = failing(capsys, "predict", tmp_path / "x", "--head", "A0", "--relation", "next")
    assert "There is no model" in told
    model.rename(tmp_path / "between")
    (tmp_path / "group" / "first").mkdir(parents=True)
    (tmp_path / "between").rename(tmp_path / "group" / "first" / "model")
    told = failing(capsys, "predict", tmp_path / "group", "--head", "a0", "--relation", "next")
    assert f"name one, such as '{tmp_path / 'group' / 'first'}'" in told


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
