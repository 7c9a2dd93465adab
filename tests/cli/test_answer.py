import pandas as pd

from sheafprop.pretrained.sheaf_model import SheafModel
from tests.cli.commands import failing, output, table


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
    (tmp_path / "q.txt").write_text("via(next, a0)\n\nvia(nxt, a0)\n")
    told = failing(capsys, "answer", model, "--queries", tmp_path / "q.txt")
    assert "line 3, via(nxt, a0)" in told
    assert "did you mean 'next'" in told
    (tmp_path / "q.txt").write_text("\n \n")
    assert "no query" in failing(capsys, "answer", model, "--queries", tmp_path / "q.txt")
    (tmp_path / "q.txt").write_bytes(b"\xff\x00")
    assert "cannot be read" in failing(capsys, "answer", model, "--queries", tmp_path / "q.txt")
    assert "cannot be read" in failing(capsys, "answer", model, "--queries", tmp_path / "nowhere")
    assert "at least 1" in failing(capsys, "answer", model, "--query", "via(next, a0)", "-k", 0)
