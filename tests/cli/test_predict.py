import re

import numpy as np
import pandas as pd
import pytest

from sheafprop.data import read_triples, write_triples
from sheafprop.pretrained.sheaf_model import SheafModel
from tests.cli.commands import failing, output, table
from tests.pretrained.models import sheaf_model


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
    assert "q.tsv, line 1: a query needs '?'" in failing(
        capsys, "predict", model, "--queries", tmp_path / "q.tsv"
    )


def test_no_model_and_unknown_labels_exit_with_one(tmp_path, capsys, model):
    printed = failing(capsys, "predict", model, "--head", "A0", "--relation", "next")
    assert "query 1: 1 of the given labels" in printed
    assert "did you mean 'a0'" in printed
    assert "skip" not in printed
    printed = failing(capsys, "predict", model, "--head", "a0", "--relation", " Next")
    assert "differ from known ones only in case, white space" in printed
    printed = failing(capsys, "predict", tmp_path / "x", "--head", "A0", "--relation", "next")
    assert "There is no model" in printed
    model.rename(tmp_path / "between")
    (tmp_path / "group" / "first").mkdir(parents=True)
    (tmp_path / "between").rename(tmp_path / "group" / "first" / "model")
    printed = failing(capsys, "predict", tmp_path / "group", "--head", "a0", "--relation", "next")
    assert f"name one, such as '{tmp_path / 'group' / 'first'}'" in printed


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
    printed = failing(capsys, *words)
    for part in (
        "2 queries of 11",
        "q.tsv, line 5; ",
        "q.tsv, line 11); in the first, ",
        "'A0' (did you mean 'a0'?)",
        "--skip-unknown",
    ):
        assert part in printed
    done = output(capsys, *words, "--skip-unknown")
    assert "skipped 2 queries of 11" in done.err
    assert "q.tsv, line 11)" in done.err
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


def test_predictions_as_n_triples_come_back(tmp_path, capsys, model):
    place = tmp_path / "found.nt"
    words = ["predict", model, "--head", "a0", "--relation", "far", "-k", 3]
    shown = table(output(capsys, *words).out)
    output(capsys, *words, "--out", place)
    with pytest.warns(UserWarning, match="triples of blank nodes"):
        triples = read_triples(place)
    assert triples.tolist() == shown[["head", "relation", "tail"]].to_numpy().tolist()
    scores = re.findall(r'<urn:sheafprop:score> "(.*?)"\^\^', place.read_text())
    assert list(map(float, scores)) == pytest.approx(shown["score"].tolist())
    assert output(capsys, *words, "--format", "ntriples").out == place.read_text()
    assert "take tsv, csv, json, parquet" in failing(
        capsys, "explain", model, "--entity", "a0", "--out", place
    )
