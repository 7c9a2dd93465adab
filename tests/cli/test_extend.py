import json
from pathlib import Path

import pandas as pd
import pytest
import torch

from sheafprop.data import write_triples
from sheafprop.files import StorageError
from sheafprop.pretrained.sheaf_model import SheafModel
from tests.cli.commands import failing, output, table
from tests.pretrained.models import FACTS
from tests.pretrained.test_graph_scorer import with_episodes


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


def test_extend_scales_new_vectors_unless_switched_off(tmp_path, capsys, model, facts):
    exact = SheafModel.load(model).extend(facts, normalize_output=False)
    for words, unit in (([], True), (["--no-normalize-output"], False)):
        out = tmp_path / str(unit)
        printed = output(capsys, "extend", model, facts, "--out", out, *words).err
        assert ("scaled to the norm" in printed) is unit
        grown = SheafModel.load(out)
        lengths = torch.linalg.vector_norm(grown.vectors()[-3:], dim=-1)
        # Three float32 rows: each was divided by its length, so is one up to rounding.
        assert bool(((lengths - 1).abs() < 1e-5).all()) is unit
        assert unit or torch.equal(grown.vectors(), exact.vectors())


def test_a_place_that_is_taken_is_reported_before_any_work(tmp_path, capsys, model, facts):
    facts.write_text("no triple at all")
    printed = failing(capsys, "extend", model, facts, "--out", model)
    assert "--overwrite" in printed
    printed = failing(capsys, "extend", model, facts, "--out", facts, "--overwrite")
    assert "it is a file" in printed
    words = ["import", "pykeen", tmp_path / "nowhere", "--out", model]
    assert "--overwrite" in failing(capsys, *words)


@pytest.mark.parametrize("report", ["folder", "facts.tsv/report.json", "grown", "grown/r.json"])
@pytest.mark.parametrize("command", ["extend", "calibrate"])
def test_a_report_that_cannot_be_written_leaves_no_model(
    tmp_path, monkeypatch, capsys, model, facts, report, command
):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    SheafModel.load(model).extend(FACTS).save("before")
    write_triples("held.tsv", [("a0", "far", "a3"), ("a2", "skip", "a1"), ("a4", "far", "a1")])
    given = {"extend": [model, facts], "calibrate": ["before", "held.tsv"]}[command]
    before = sorted(tmp_path.rglob("*"))
    told = failing(capsys, command, *given, "--out", "grown", "--report", report)
    assert report in told
    assert told.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("command", ["extend", "calibrate"])
def test_a_model_that_cannot_be_written_leaves_no_report(
    tmp_path, monkeypatch, capfd, model, facts, command
):
    def refuse(*_, **__):
        raise StorageError("'grown' cannot be written")

    monkeypatch.chdir(tmp_path)
    write_triples("held.tsv", [("a0", "far", "a3"), ("a2", "skip", "a1"), ("a4", "far", "a1")])
    given = {"extend": [model, facts], "calibrate": [model, "held.tsv"]}[command]
    before = sorted(tmp_path.rglob("*"))
    words = [command, *given, "--out", "grown", "--report"]
    with monkeypatch.context() as patch:
        patch.setattr(SheafModel, "save", refuse)
        assert "'grown' cannot be written" in failing(capfd, *words, "r.json")
    assert sorted(tmp_path.rglob("*")) == before
    # Standard output holds the report alone.
    assert json.loads(output(capfd, *words, "-").out)
    assert not Path("-").exists()


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


def test_labels_that_differ_only_in_case_or_white_space_are_reported(tmp_path, capsys, model):
    wide = "\uff21\uff14"  # in the width of Chinese characters
    labels = ["A0", " a1", "new", "New", "a3", wide, "fresh"]
    write_triples(tmp_path / "new.tsv", [(label, "next", "a2") for label in labels])
    printed = output(capsys, "extend", model, tmp_path / "new.tsv", "--out", tmp_path / "grown").err
    said = "entities that differ from another only in case, white space, Unicode form or hidden "
    pairs = f"characters: 4 ('A0' and 'a0', ' a1' and 'a1', 'New' and 'new', '{wide}' and 'a4')"
    assert f"new {said}{pairs}; labels are compared literally" in printed
    assert "A0" in SheafModel.load(tmp_path / "grown").labels()
    assert f"\n{said}{pairs}\n" in output(capsys, "inspect", tmp_path / "grown").out
    write_triples(tmp_path / "new.tsv", [("a0", "Next", "fresh"), ("a0", "next", "Fresh")])
    text = output(capsys, "inspect", tmp_path / "new.tsv").out
    assert f"\n{said}characters: 1 ('Fresh' and 'fresh')\n" in text
    said = said.replace("entities", "relations")
    assert f"\n{said}characters: 1 ('next' and 'Next')\n" in text
    words = ["extend", model, tmp_path / "new.tsv", "--out", tmp_path / "again"]
    assert "'Next' (1 fact) (did you mean 'next'?)" in failing(capsys, *words)
    words.append("--on-unknown-relation=drop")
    write_triples(tmp_path / "new.tsv", [("a0", "next", "fresh"), ("a0", "next", "a1")])
    assert "differ" not in output(capsys, *words).err


def test_labels_that_are_equal_as_numbers_are_reported(tmp_path, capsys, model):
    labels = ["7", "1.50", "a0", "x7"]
    write_triples(tmp_path / "one.tsv", [(label, "next", "a2") for label in labels])
    output(capsys, "extend", model, tmp_path / "one.tsv", "--out", tmp_path / "one")
    labels = ["007", "1.5", "x07", "-7", "7.01"]
    write_triples(tmp_path / "two.tsv", [(label, "next", "a2") for label in labels])
    words = ["extend", tmp_path / "one", tmp_path / "two.tsv", "--out", tmp_path / "two"]
    said = "hidden characters, or are equal as numbers: 2 ('007' and '7', '1.5' and '1.50')"
    assert said in output(capsys, *words).err
    assert said in output(capsys, "inspect", tmp_path / "two").out


def test_a_row_whose_fields_are_exchanged_is_named(tmp_path, capsys, model):
    rows = [("x", "next", "a0"), ("next", "y", "a1"), ("x", "skip", "a2"), ("x", "unheard", "a2")]
    place = tmp_path / "f.tsv"
    write_triples(place, rows)
    said = f"{place}, line 2: its first field is a known relation; are the fields exchanged? Leave"
    assert said in failing(capsys, "extend", model, place, "--out", tmp_path / "out")
    more = [("a3", "skip", "a2"), ("a3", "far", "a2")]
    write_triples(place, [("a1", "next", "a0"), ("a1", "a9", "skip"), *more])
    said = f"{place}, line 2: its third field is a known relation; are the fields exchanged?"
    assert said in failing(capsys, "score", model, place)
    queries = [(head, relation, "?") for head, relation, _ in more]
    write_triples(place, [("a1", "next", "?"), ("next", "a9", "?"), *queries])
    said = f"{place}, line 2: its first field is a known relation; are the fields exchanged? Skip"
    assert said in failing(capsys, "predict", model, "--queries", place)
    # Where most rows are such, the order of the columns is what is said.
    write_triples(place, [("next", "a1", "a0"), ("skip", "x", "a0")])
    printed = failing(capsys, "extend", model, place, "--out", tmp_path / "out")
    assert "--columns 1,0,2" in printed
    assert "exchanged" not in printed


def test_parquet_files_are_read_as_others_are(tmp_path, capsys, model):
    place, words = tmp_path / "f.parquet", ["extend", model, tmp_path / "f.parquet", "--out"]
    assert "No such file" in failing(capsys, *words, tmp_path / "x")
    place.mkdir()
    assert "is a folder; give the files in it" in failing(capsys, *words, tmp_path / "x")
    place.rmdir()
    frame = pd.DataFrame({"to": ["a1"], "n": [7.0], "by": ["next"], "from": ["new"]})
    frame.to_parquet(place)
    assert "--columns" in failing(capsys, *words, tmp_path / "x")
    assert "4 columns" in failing(capsys, *words, tmp_path / "x", "--columns", "0,1,9")
    printed = failing(capsys, *words, tmp_path / "x", "--columns", "3,1,0")
    assert "type float, the first in row 0: 'new', 7.0, 'a1'" in printed
    output(capsys, *words, tmp_path / "y", "--columns", "3,2,0")
    assert SheafModel.load(tmp_path / "y").facts().iloc[-1].tolist() == ["new", "next", "a1"]
    frame[:0].to_parquet(place)
    assert "no triple" in failing(capsys, *words, tmp_path / "x", "--columns", "3,2,0")


def test_features_alone_and_beside_facts_give_vectors(tmp_path, capsys, model, facts):
    lines = ["id\tsize", *(f"a{i}\t{i * i}" for i in range(12)), "n0\t7", "lone\t30"]
    features = tmp_path / "features.tsv"
    features.write_text("\n".join(lines) + "\n")
    words = ["--features", features, "--report", tmp_path / "report.json"]
    done = output(capsys, "extend", model, facts, "--out", tmp_path / "grown", *words)
    assert "2 entities have features, 1 of them no facts" in done.err
    grown = SheafModel.load(tmp_path / "grown")
    expected = SheafModel.load(model).extend(FACTS, features=features)
    assert torch.equal(grown.vectors(), expected.vectors())
    assert json.loads((tmp_path / "report.json").read_text())["from_features_alone"] == 1
    assert "lone" in output(capsys, "predict", tmp_path / "grown", "--head", "lone",
                            "--relation", "next").out  # fmt: skip
    output(capsys, "extend", model, "--features", features, "--out", tmp_path / "alone")
    assert SheafModel.load(tmp_path / "alone").num_facts == SheafModel.load(model).num_facts
    with pytest.raises(SystemExit):
        output(capsys, "extend", model, "--out", tmp_path / "none")
    assert "--features FILE" in capsys.readouterr().err
    features.write_text("id\tsize\nzz\t1\n")
    told = failing(capsys, "extend", model, facts, "--out", tmp_path / "no", *words[:2])
    assert str(features) in told
    assert not (tmp_path / "no").exists()


def test_unknown_relations_are_fitted_or_refused_and_nothing_is_changed(tmp_path, capsys, model):
    facts = [*FACTS, *[(f"a{i}", "over", f"a{(i + 5) % 12}") for i in range(4)]]
    file, out = tmp_path / "more.tsv", tmp_path / "out"
    write_triples(file, facts)
    words = ["extend", model, file, "--out", out, "--on-unknown-relation", "fit"]
    assert "(4 of 4 facts)" in failing(capsys, *words)
    assert not out.exists()
    before = {path.name: path.read_bytes() for path in Path(model).iterdir()}
    assert "--min-facts" in failing(capsys, *words[:3], "--out", model, "--overwrite", *words[5:])
    assert {path.name: path.read_bytes() for path in Path(model).iterdir()} == before
    assert "fit" in failing(capsys, *words[:5], "--min-facts", 3)
    done = output(capsys, *words, "--min-facts", 4, "--report", tmp_path / "report.json")
    assert "1 relation was fitted: 'over' to 4 facts, residual" in done.err
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["fitted_relations"]["over"]["facts"] == 4
    found = table(output(capsys, "predict", out, "--head", "a7", "--relation", "over", "-k", 3).out)
    assert len(found) == 3
    assert "fitted relations: ['over']" in output(capsys, "inspect", out).out


def test_scores_by_vectors_alone_on_request(tmp_path, capsys):
    old, file = tmp_path / "old", tmp_path / "facts.tsv"
    with_episodes().save(old)
    write_triples(file, [(f"a{i}", "over", f"a{(i + 5) % 12}") for i in range(5)])
    words = ["extend", old, file, "--out", tmp_path / "new", "--on-unknown-relation", "fit"]
    assert "--without-episodes" in failing(capsys, *words)
    output(capsys, *words, "--without-episodes")
    assert SheafModel.load(tmp_path / "new").stored().episodes is None
