from pathlib import Path

import pytest
import torch
from benchmarks.tables import overview_picture
from matplotlib.image import imread

PICTURE = Path(__file__).parents[3] / "docs" / "overview.png"


def test_the_vector_ends_where_the_facts_agree():
    start, *_, last = overview_picture.propagate()
    places, relations = overview_picture.PLACES, overview_picture.RELATIONS
    france, lyon = (torch.tensor(places[name]) for name in ("France", "Lyon"))
    proposals = [
        france - torch.tensor(relations["city of"]),
        lyon + torch.tensor(relations["north of"]),
    ]
    expected = (proposals[0] + proposals[1]) / 2
    assert torch.dist(start, expected) > 0.5
    torch.testing.assert_close(last, expected, atol=1e-3, rtol=0)


def test_the_picture_of_the_readme_is_the_one_that_the_script_draws(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["overview_picture.py", str(tmp_path / "o.png")])
    overview_picture.main()
    drawn, stored = imread(tmp_path / "o.png"), imread(PICTURE)
    # Fonts and their placement differ between versions of the library; what is drawn does not.
    assert drawn.shape == stored.shape
    assert abs(drawn - stored).mean() < 0.02
    assert PICTURE.stat().st_size < 150_000


def test_the_best_answer_is_named_first(monkeypatch, tmp_path):
    written = []
    text = overview_picture.Axes.text

    def spy(self, x, y, s, **options):
        written.append(s)
        return text(self, x, y, s, **options)

    monkeypatch.setattr(overview_picture.Axes, "text", spy)
    overview_picture.draw_overview(tmp_path / "o.png")
    (ranking,) = (part for part in written if part.startswith("score"))
    assert ranking.splitlines()[1].startswith("1. French")
    scores = [float(line.split()[-1].replace("\u2212", "-")) for line in ranking.splitlines()[1:]]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] == pytest.approx(0, abs=0.5)
