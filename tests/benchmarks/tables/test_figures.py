import pytest
from benchmarks.tables import figures
from matplotlib.figure import Figure


@pytest.fixture
def drawn(monkeypatch):
    """The figures as they were when they were written."""
    found = []
    monkeypatch.setattr(figures, "write_picture", lambda figure, path: found.append(figure))
    return found


def cell(dataset, model):
    return {
        "dataset": dataset,
        "model": model,
        "preset": "best",
        "protocol": "full",
        "seed": 0,
        "start": "mixed",
        "iterations": 4,
        "hits@10": 0.5,
        "validation_curve": [("mixed", 1, 0.50), ("mixed", 4, 0.504), ("mixed", 16, 0.49)],
    }


def texts(figure: Figure):
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def test_a_legend_explains_what_any_panel_shows(drawn, tmp_path):
    # The paper has no figures of the last family.
    cells = [cell("fb237_v1", "rotate"), cell("nell_v1", "rotate"), cell("nell_v2", "se")]
    assert figures.completion_by_version(cells, tmp_path / "v.png")
    assert figures.completion_by_iteration(cells, tmp_path / "i.png")
    by_version, by_iteration = map(texts, drawn)
    assert {"RotatE", "RotatE, the paper's figure", "SE"} <= set(by_version)
    assert by_iteration == ["RotatE", "SE", "chosen on validation"]
    low, high = drawn[1].axes[0].get_ylim()
    assert high - low >= 10 - 1e-9
    drawn[1].draw_without_rendering()
    assert "4" in [label.get_text() for label in drawn[1].axes[0].get_xticklabels()]
