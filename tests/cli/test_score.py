import sys

import pandas as pd
import pytest

from sheafprop.cli.main import main
from sheafprop.data import write_triples
from sheafprop.pretrained.sheaf_model import SheafModel
from tests.cli.commands import failing, output, table
from tests.pretrained.models import FACTS


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


def test_unknown_labels_are_skipped_where_asked(tmp_path, capsys, model):
    rows = [("a0", "next", "a1"), ("zz", "next", "a1"), ("a2", "zz", "a1"), ("a2", "skip", "a4")]
    write_triples(tmp_path / "f.tsv", rows)
    words = ["score", model, tmp_path / "f.tsv"]
    assert "Skip them with skip_unknown=True (--skip-unknown)" in failing(capsys, *words)
    done = output(capsys, *words, "--skip-unknown")
    place = f"{tmp_path / 'f.tsv'}, line"
    said = f"note: skipped 2 triples of 4 with an unknown label ({place} 2; {place} 3)\n"
    assert done.err == said
    known = SheafModel.load(model).score([rows[0], rows[3]])
    pd.testing.assert_frame_equal(table(done.out), known, check_dtype=False, atol=1e-12)
    write_triples(tmp_path / "f.tsv", rows[1:3])
    assert "no triple is left" in failing(capsys, *words, "--skip-unknown")


def test_a_terminal_shows_six_digits_and_files_all(tmp_path, monkeypatch, capsys, model):
    write_triples(tmp_path / "f.tsv", [("a0", "next", "a1"), ("a2", "skip", "a4")])
    words = ["score", model, tmp_path / "f.tsv"]
    scores = table(output(capsys, *words).out)["score"].tolist()
    assert max(len(str(score)) for score in scores) > 12
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    shown = table(output(capsys, *words).out)
    assert shown["score"].tolist() == [float(f"{score:.6g}") for score in scores]
    assert shown["head"].tolist() == ["a0", "a2"]
    for more in (["--out", tmp_path / "s.tsv"], ["--format", "csv"]):
        text = output(capsys, *words, *more).out or (tmp_path / "s.tsv").read_text()
        assert all(str(score) in text for score in scores)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("score", "'ratio' is the energy divided by its mean in training for that relation"),
        ("explain", "'ratio' is the energy divided by its mean in training for that relation"),
        ("answer", "The 'truth' of an answer, from 0 to 1, is that of its best derivation"),
    ],
)
def test_help_says_what_the_columns_are(capsys, command, said):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert said in " ".join(capsys.readouterr().out.split())
