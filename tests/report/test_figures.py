import os
import warnings
from io import BytesIO

import pytest
from matplotlib.image import imread

from sheafprop.files import StorageError
from sheafprop.report.figures import draw_reliability, hits_by_iteration
from tests.report.records import curve, record


def lines_of(axis):
    return [line for line in axis.lines if line.get_marker() != "*"]


def stars_of(axis):
    return [
        (line.get_xdata()[0], line.get_ydata()[0])
        for line in axis.lines
        if line.get_marker() == "*"
    ]


def test_draws_every_line_and_the_choice(tmp_path, drawn):
    points = curve(8, 0.6, ("mixed", "random"), (0.5, 0.9))
    runs = [record("a", points=points), record("b", seed=1, points=curve(4, 0.5))]
    assert hits_by_iteration(runs, tmp_path / "curve.png") is True
    assert imread(tmp_path / "curve.png").shape[2] in (3, 4)
    assert [path.name for path in tmp_path.iterdir()] == ["curve.png"]

    (figure,) = drawn
    hits, mrr = figure.axes
    assert len(lines_of(hits)) == len(lines_of(mrr)) == 5
    looks = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in lines_of(hits)}
    assert len(looks) == 5
    # a: mixed, 0.9, 8 iterations; b: the same setting, on its own curve.
    chosen = [
        next(
            point
            for point in run["selection"]["curve"]
            if (point["start"], point["step_size"], point["iterations"]) == ("mixed", 0.9, 8)
        )
        for run in runs
    ]
    assert stars_of(hits) == [(8, pytest.approx(100 * point["hits@10"])) for point in chosen]
    assert stars_of(mrr) == [(8, pytest.approx(point["mrr"])) for point in chosen]
    (part,) = figure.subfigs
    assert part.get_suptitle() == "umls (semi-inductive): validation, full"
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert [text for text in texts if text] == [
        *("run", "a", "b"),
        *("start", "mixed", "random"),
        *("step size", "0.5", "0.9"),
        "chosen on validation",
    ]


@pytest.mark.parametrize("counts", [(0, 1, 2, 64), (1,), (0,), (3,), (0, 8192)])
def test_any_iteration_counts(tmp_path, drawn, counts):
    points = [point for point in curve() if point["iterations"] == 4]
    points = [point | {"iterations": count} for count in counts for point in points]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert hits_by_iteration([record(points=points)], tmp_path / "c.png")
    axis = drawn[0].axes[0]
    low, high = axis.get_xlim()
    assert low < min(counts) <= max(counts) < high
    assert 1 <= len(axis.get_xticks()) <= 10
    assert list(lines_of(axis)[0].get_xdata()) == list(counts)


@pytest.mark.parametrize("level", [0.02, 0.43, 0.99])
def test_small_differences_look_small(tmp_path, drawn, level):
    points = curve()
    for number, point in enumerate(points):
        point["hits@10"] = level + 0.0008 * number
        point["mrr"] = level - 0.001 * number
    hits_by_iteration([record(points=points)], tmp_path / "c.png")
    for axis, scale in zip(drawn[0].axes, (100, 1), strict=True):
        low, high = axis.get_ylim()
        assert high - low >= 0.1 * scale - 1e-9
        assert low >= -0.011 * scale
        assert high <= 1.011 * scale
        y = lines_of(axis)[0].get_ydata()
        assert low <= min(y) <= max(y) <= high


def test_the_start_without_propagation_is_a_point_of_every_line_of_that_start(tmp_path, drawn):
    points = [p for p in curve(8, 0.6, ("mixed", "random"), (0.5, 0.9)) if p["iterations"]]
    run = record(points=points)
    first = [p | {"iterations": 0, "hits@10": 0.11, "mrr": 0.07} for p in points[:1]]
    run["selection"]["unpropagated"] = first
    hits_by_iteration([run], tmp_path / "c.png")
    hits, mrr = drawn[0].axes
    for axis, value in ((hits, 11), (mrr, 0.07)):
        at_zero = [line for line in lines_of(axis) if line.get_xdata()[0] == 0]
        assert len(at_zero) == 2
        assert [line.get_ydata()[0] for line in at_zero] == pytest.approx([value] * 2)
        assert axis.get_xlabel() == "iterations (0: the start, not propagated)"
    assert stars_of(hits)[0][0] == 8


def test_nothing_to_draw_writes_nothing(tmp_path):
    empty, missing = record(points=[]), record()
    del missing["selection"]
    assert hits_by_iteration([empty, missing], tmp_path / "c.png") is False
    assert list(tmp_path.iterdir()) == []


def test_defaults_are_not_marked_as_chosen(tmp_path, drawn):
    run = record()
    run["selection"]["on"] = "defaults"
    hits_by_iteration([run], tmp_path / "c.png")
    assert stars_of(drawn[0].axes[0]) == []


def test_missing_metrics_leave_their_panel_empty(tmp_path, drawn):
    points = curve()
    for point in points:
        del point["mrr"]
    hits_by_iteration([record(points=points)], tmp_path / "c.png")
    hits, mrr = drawn[0].axes
    assert len(lines_of(hits)[0].get_xdata()) == 8
    assert len(lines_of(mrr)[0].get_xdata()) == 0


def test_names_of_any_letters(tmp_path, drawn):
    runs = [record("_größe $x^$ 漢字"), record("plain"), record("w", dataset="$y^$_v1")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hits_by_iteration(runs, tmp_path / "c.png")
    (figure,) = drawn
    assert "_größe $x^$ 漢字" in [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(figure.subfigs) == 2


def test_many_runs_keep_their_own_colours(tmp_path, drawn):
    hits_by_iteration([record(f"run {i}", seed=i) for i in range(12)], tmp_path / "c.png")
    assert len({tuple(line.get_color()) for line in lines_of(drawn[0].axes[0])}) == 12


def test_a_failed_write_leaves_the_old_picture(tmp_path, monkeypatch):
    path = tmp_path / "c.png"
    path.write_bytes(b"old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"c\.png"):
        hits_by_iteration([record()], path)
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["c.png"]


def test_reliability_has_a_panel_for_each_table(drawn):
    rows = [
        {"lower": 0.0, "upper": 0.1, "count": 40.0, "predicted": 0.05, "observed": 0.1},
        {"lower": 0.6, "upper": 0.7, "count": 3.0, "predicted": 0.65, "observed": 0.3},
    ]
    part = {"expected_calibration_error": 0.0721, "table": rows}
    report = {"num_triples": 9, "links": part, "answers": part | {"table": rows[:1]}}
    assert imread(BytesIO(draw_reliability(report))).shape[2] in (3, 4)
    first, second = drawn[0].axes
    assert first.get_title() == "links: expected calibration error 0.0721"
    assert first.lines[1].get_xydata().tolist() == [[0.05, 0.1], [0.65, 0.3]]
    small, large = sorted(first.collections[0].get_sizes())
    assert small < large
    assert second.collections[0].get_offsets().tolist() == [[0.05, 0.1]]
