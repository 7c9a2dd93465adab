import json

import pytest

from sheafprop.data import write_triples
from sheafprop.pretrained.sheaf_model import SheafModel
from tests.cli.commands import failing, output, table
from tests.pretrained.models import FACTS
from tests.pretrained.test_calibration import HELD, QUERIES


def test_a_calibrated_model_gives_probabilities(tmp_path, capsys, model):
    grown = SheafModel.load(model).extend(FACTS)
    grown.save(tmp_path / "grown")
    write_triples(tmp_path / "held.tsv", HELD)
    (tmp_path / "q.txt").write_text("\n".join(QUERIES))
    words = ["calibrate", tmp_path / "grown", tmp_path / "held.tsv", "--out", tmp_path / "fine"]
    more = ("--report", tmp_path / "report.json", "--picture", tmp_path / "held.png")
    done = output(capsys, *words, "--queries", tmp_path / "q.txt", *more)
    assert (tmp_path / "held.png").read_bytes().startswith(b"\x89PNG")
    assert done.out == f"{tmp_path / 'fine'}\n"
    assert done.err.startswith(f"calibrated on {len(HELD)} triples\nlinks: expected calibration")
    assert "answers: expected calibration error" in done.err
    found = json.loads((tmp_path / "report.json").read_text())
    shown = f"links: expected calibration error {found['links']['expected_calibration_error']:.4f}"
    assert shown in done.err
    want, _ = grown.calibrate(HELD, QUERIES)
    asked = ["answer", tmp_path / "fine", "--query", QUERIES[0]]
    got = table(output(capsys, *asked, "-k", 4).out)
    expected = want.answer(QUERIES[0], 4)
    assert got["probability"].tolist() == pytest.approx(expected["probability"].tolist())
    bound = float(got["probability"].iloc[0])
    some = table(output(capsys, *asked, "-k", 4, "--min-probability", bound).out)
    assert len(some) == int((got["probability"] >= bound).sum())
    words = ["predict", tmp_path / "fine", "--head", "n0", "--relation", "far"]
    assert "probability" in table(output(capsys, *words).out)
    # Other scores have no calibration.
    assert "probability" not in table(output(capsys, *words, "--proximity", 0.3).out)


@pytest.mark.parametrize("place", ["held.tsv/below.png", "fine/held.png"])
def test_a_picture_without_a_place_leaves_no_model(tmp_path, capsys, model, place):
    write_triples(tmp_path / "held.tsv", HELD)
    SheafModel.load(model).extend(FACTS).save(tmp_path / "grown")
    words = ["calibrate", tmp_path / "grown", tmp_path / "held.tsv", "--out", tmp_path / "fine"]
    before = sorted(tmp_path.rglob("*"))
    more = ["--report", tmp_path / "report.json", "--picture", tmp_path / place]
    assert place.partition("/")[0] in failing(capsys, *words, *more)
    assert sorted(tmp_path.rglob("*")) == before


def test_what_cannot_be_calibrated_on_is_named(tmp_path, capsys, model):
    loaded = SheafModel.load(model)
    write_triples(tmp_path / "known.tsv", loaded.facts().to_numpy().tolist()[:5])
    words = ["calibrate", model, tmp_path / "known.tsv", "--out", tmp_path / "fine"]
    assert "at least two triples that are not facts" in failing(capsys, *words)
    assert not (tmp_path / "fine").exists()
