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
    own = {"RotatE + sheaf propagation", "SE + sheaf propagation"}
    assert own | {"RotatE, the paper's figure"} <= set(by_version)
    assert by_iteration == ["RotatE", "SE", "chosen on validation"]
    # Panels can be compared, and small differences look small.
    assert {axis.get_ylim() for figure in drawn for axis in figure.axes} == {(0, 100)}
    drawn[1].draw_without_rendering()
    assert "4" in [label.get_text() for label in drawn[1].axes[0].get_xticklabels()]


def test_models_differ_in_colour_and_sources_in_their_lines():
    looks = {
        method: figures._look(method)
        for method in (
            "RotatE, best",
            "RotatE, best without prior",
            "RotatE, paper",
            "RotatE (published, paper)",
            "TransE, best",
            "NodePiece-QE (published, paper)",
            "NodePiece-QE w/ GNN (published, paper)",
            "edge-type heuristic (mean rank of ties)",
            "edge-type heuristic (expectation over ties)",
            "Edge-type Heuristic (published, paper)",
        )
    }
    rotate = [look for method, look in looks.items() if method.startswith("RotatE")]
    assert len({look["color"] for look in rotate}) == 1
    assert len({look["color"] for look in looks.values()}) == 5
    seen = {(look["color"], look["linestyle"], look["markerfacecolor"]) for look in looks.values()}
    assert len(seen) == len(looks)
