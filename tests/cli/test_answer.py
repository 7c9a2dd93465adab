import json

import pandas as pd
import pytest
from matplotlib.image import imread

from sheafprop.cli.main import main
from sheafprop.pretrained.sheaf_model import SheafModel
from tests.cli.commands import failing, output, table
from tests.pretrained.models import FACTS, sheaf_model


def test_answer(tmp_path, capsys, model):
    query, loaded = "and(via(next, a0), via(far, a6))", SheafModel.load(model)
    expected = loaded.answer(query, 4)
    got = table(output(capsys, "answer", "--run", model, "--query", query, "-k", 4).out)
    pd.testing.assert_frame_equal(got, expected, check_dtype=False, atol=1e-12)
    path = ["answer", model, "--query", "via(far, via(next, a0))", "-k", 4]
    for more, prior in (([], False), (["--prior"], True)):
        words = [*path, "--interior", "free", *more]
        expected = loaded.answer(path[3], 4, interior="free", prior=prior)
        pd.testing.assert_frame_equal(
            table(output(capsys, *words).out), expected, check_dtype=False, atol=1e-12
        )
    words = ["answer", model, "--query", query, "-k", 999, "--explain", "--interior", "free"]
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
    printed = failing(capsys, "answer", model, "--query", "via(next, A0)")
    assert "did you mean 'a0'" in printed
    assert "position 10: expected" in failing(capsys, "answer", model, "--query", "via(next a0)")
    (tmp_path / "q.txt").write_text("via(next, a0)\n\nvia(nxt, a0)\n")
    printed = failing(capsys, "answer", model, "--queries", tmp_path / "q.txt")
    assert "line 3, via(nxt, a0)" in printed
    assert "did you mean 'next'" in printed
    (tmp_path / "q.txt").write_text("\n \n")
    assert "no query" in failing(capsys, "answer", model, "--queries", tmp_path / "q.txt")
    (tmp_path / "q.txt").write_bytes(b"\xff\x00")
    assert "cannot be read" in failing(capsys, "answer", model, "--queries", tmp_path / "q.txt")
    assert "cannot be read" in failing(capsys, "answer", model, "--queries", tmp_path / "nowhere")
    assert "at least 1" in failing(capsys, "answer", model, "--query", "via(next, a0)", "-k", 0)


NEGATED = "and(via(far, via(next, a0)), not(via(skip, a6)))"


def test_answers_over_entities_with_their_derivations(tmp_path, capsys, model):
    loaded = SheafModel.load(model)
    words = ["answer", model, "--query", NEGATED, "-k", 3]
    expected = loaded.answer(NEGATED, 3, beam="all", derivations=2)
    got = table(output(capsys, *words, "--beam", "all", "--derivations", 2).out)
    pd.testing.assert_frame_equal(got, expected, check_dtype=False, atol=1e-12)
    assert set(got["interior"]) == {"entities"}
    narrow = table(output(capsys, *words, "--beam", 1).out)
    pd.testing.assert_frame_equal(
        narrow, loaded.answer(NEGATED, 3, beam=1), check_dtype=False, atol=1e-12
    )
    picture = tmp_path / "tree.png"
    nested = json.loads(output(capsys, *words, "--derivations", 2, "--json").out)
    assert nested == loaded.answer(NEGATED, 3, derivations=2).attrs["derivations"]
    assert not picture.exists()
    flat = json.loads(output(capsys, *words, "--picture", picture, "--format", "json").out)
    assert [answer["answer"] for answer in flat] == list(expected["answer"].unique())
    assert imread(picture).shape[2] == 4


def test_a_query_without_answer_says_so(capsys, model):
    got = output(capsys, "answer", model, "--query", "and(a0, a1)")
    assert len(got.out.splitlines()) == 1
    assert got.err == "note: no entity answers these queries\n"
    shown = json.loads(output(capsys, "answer", model, "--query", "and(a0, a1)", "--json").out)
    assert shown == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--interior", "free", "--derivations", 1], "need --interior entities"),
        (["--interior", "free", "--picture", "x.png"], "need --interior entities"),
        (["--explain"], "need --interior free"),
        (["--prior"], "need --interior free"),
        (["--beam", "0"], "a positive number, or all"),
        (["--beam", "some"], "a positive number, or all"),
        (["--interior", "open"], "invalid choice"),
    ],
)
def test_options_belong_to_their_interior(capsys, model, words, message):
    with pytest.raises(SystemExit) as stopped:
        main([str(w) for w in ["answer", model, "--query", "via(next, a0)", *words]])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_an_abstention_says_so(tmp_path, capsys, model):
    held = [("n0", "far", "a4"), ("n1", "next", "a9"), ("a6", "skip", "n2")]
    SheafModel.load(model).extend(FACTS).calibrate(held)[0].save(tmp_path / "calibrated")
    words = ["answer", tmp_path / "calibrated", "--query", "via(skip, n2)"]
    got = output(capsys, *words, "--min-probability", 0.999)
    assert len(got.out.splitlines()) == 1
    wanted = "note: no entity answers these queries with a probability of at least 0.999\n"
    assert got.err == wanted
    assert output(capsys, *words).err == ""


def test_probabilities_and_bounded_queries_are_refused_by_name(capsys, model):
    words = ["answer", model, "--query"]
    printed = failing(capsys, *words, "via(next, a0)", "--min-probability", 0.5)
    assert "needs a calibrated model" in printed
    assert "all entities but some" in failing(capsys, *words, "not(via(next, a0))")


@pytest.mark.parametrize("refused", ["table", "picture"])
def test_table_and_picture_are_both_written_or_neither(tmp_path, capsys, refused):
    loaded = sheaf_model("rotate").extend([("new\tone", "next", "a0")])
    loaded.save(tmp_path / "model")
    (tmp_path / "folder").mkdir()
    place = {"table": "table.tsv", "picture": "tree.png"}
    if refused == "picture":
        place["picture"] = "folder"
    words = ["answer", tmp_path / "model", "--query", "via(inverse(next), a0)", "-k", 99]
    words += ["--out", tmp_path / place["table"], "--picture", tmp_path / place["picture"]]
    # A label with a tab has no place in TSV.
    words += ["--format", "json" if refused == "picture" else "tsv"]
    assert refused == "table" or "folder" in failing(capsys, *words)
    assert refused == "picture" or "--format csv" in failing(capsys, *words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "model"]
