import struct

import pytest
from benchmarks.tables.figures import hits_by_ratio
from benchmarks.tables.query_tables import query_curves, query_report, query_summary

from sheafprop.query import CONJUNCTIVE
from sheafprop.report.published import published_rows
from sheafprop.report.tables import NOTHING

TYPES = (*CONJUNCTIVE, "2u", "up")


def cell(ratio, model, preset="best", seed=0, macro=0.4, micro=0.2, types=TYPES):
    records = []
    for averaging, value in (("macro", macro), ("micro", micro)):
        for number, kind in enumerate(types):
            record = {"ratio": ratio, "model": model, "preset": preset, "seed": seed}
            record |= {"type": kind, "averaging": averaging, "hits@10": value + number / 100}
            record |= {"queries": 1000, "seconds": 2.0, "config_hash": f"{ratio}{model}{seed}"}
            record |= {"commit": "abc", "iterations": 3, "train_seconds": 60.0}
            record |= {"validation_hits@10": 0.25}
            records.append(record)
    return records


def tables(text):
    """The rows of every table by their first cell, with the header as its key."""
    found = []
    for part in text.split("\n\n"):
        if part.startswith("|"):
            header, _, *rows = (
                [cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines()
            )
            found.append((header, {row[0]: row[1:] for row in rows}))
    return found


def test_the_summary_keeps_averagings_apart():
    records = cell("550", "rotate") + cell("106", "rotate", macro=0.6, micro=0.5)
    (macro_header, macro), (micro_header, micro) = tables(query_summary(records))
    assert macro_header == ["ratio, macro", "106", "550"]
    assert micro_header == ["ratio, micro", "106", "550"]
    assert macro["RotatE, best"] == ["63.0", "43.0"]
    assert micro["RotatE, best"] == ["53.0", "23.0"]
    # The paper's models are averaged over pairs of query and answer, the others over queries.
    assert macro["NodePiece-QE w/ GNN (published, paper)"] == ["33.7", "11.9"]
    assert "NodePiece-QE w/ GNN (published, paper)" not in micro
    assert micro["RotatE (published, paper)"] == ["33.1", "8.0"]
    assert micro["TransE (published, paper)"][1] == "15.5"
    assert "RotatE (published, paper)" not in macro
    assert next(iter(micro)) == "RotatE, best"


def test_seeds_are_averaged_and_the_heuristic_counts_once():
    records = cell("550", "rotate", seed=0, macro=0.3) + cell("550", "rotate", seed=1, macro=0.5)
    records += cell("550", "edge-type heuristic", preset="none", macro=0.1)
    _, macro = tables(query_summary(records))[0]
    assert macro["RotatE, best"] == ["43.0 ± 10.0"]
    assert macro["edge-type heuristic (mean rank of ties)"] == ["13.0"]
    assert "edge-type heuristic (expectation over ties)" not in macro


def test_the_heuristic_is_shown_under_both_conventions_for_ties():
    records = cell("550", "edge-type heuristic", preset="none", macro=0.1)
    records = [r | {"expected_hits@10": r["hits@10"] + 0.25} for r in records]
    for table in (tables(query_summary(records))[0], tables(query_report(records))[2]):
        mean = table[0].index("mean of 7") - 1 if "mean of 7" in table[0] else 0
        rows = {name: cells[mean] for name, cells in table[1].items()}
        assert rows["edge-type heuristic (mean rank of ties)"] == "13.0"
        assert rows["edge-type heuristic (expectation over ties)"] == "38.0"


def test_results_of_an_older_configuration_stay_beside_those_of_the_new_one():
    old = [r | {"config_hash": "x", "commit": "old"} for r in cell("550", "rotate", macro=0.25)]
    other = cell("106", "rotate", macro=0.3)
    rows = dict(tables(query_summary(old + other + cell("550", "rotate", macro=0.5)))[0][1])
    assert rows["RotatE, best"] == ["33.0", "53.0"]
    assert rows["RotatE, best at commit old"] == [NOTHING, "28.0"]


def test_the_variant_without_prior_is_named():
    rows = tables(query_summary(cell("550", "rotate", preset="no-prior", macro=0.25)))[0][1]
    assert rows["RotatE, best without prior"] == ["28.0"]


def test_a_mean_needs_all_types():
    records = cell("550", "rotate", types=("1p", "2p")) + cell("550", "rotate", "paper")
    report = query_report(records)
    header, rows = next(table for table in tables(report) if table[0][0] == "macro")
    assert header == ["macro", *CONJUNCTIVE, "mean of 7", "2u", "up"]
    assert rows["RotatE, best"] == ["40.0", "41.0", *[NOTHING] * 8]
    assert rows["RotatE, paper"][:9] == [*[f"{40 + n}.0" for n in range(7)], "43.0", "47.0"]


def test_the_report_says_what_was_run():
    text = query_report(cell("550", "rotate"))
    header, rows = tables(text)[-1]
    row = dict(zip(header[1:], rows["RotatE, best, seed 0"], strict=True))
    assert row["iterations"] == "3"
    assert row["training"] == "60 s"
    assert row["ranking"] == "18 s"
    assert row["queries"] == "9,000"


def test_tuned_hyperparameters_stand_in_a_table_of_their_own():
    records = cell("550", "rotate")
    tried = [
        {"lr": 0.1, "scale": 2.0, "tuned transductively": 0.4, "tuned on pi and ip": 0.1},
        {"lr": 0.03, "scale": 4.0, "tuned transductively": 0.3, "tuned on pi and ip": 0.2},
    ]
    for name, micro in (("tuned transductively", 0.1), ("tuned on pi and ip", 0.3)):
        records += [r | {"tried": tried} for r in cell("550", "rotate", name, micro=micro)]
    assert "tuned" not in query_summary(records)
    header, rows = tables(query_report(records))[-1]
    assert header == ["cell", "lr", "scale", "iterations", *CONJUNCTIVE, "mean of 7"]
    first = rows["550, RotatE, seed 0, tuned transductively"]
    second = rows["550, RotatE, seed 0, tuned on pi and ip"]
    assert (first[:3], first[-1]) == (["0.1", "2", "3"], "13.0")
    assert (second[:3], second[-1]) == (["0.03", "4", "3"], "33.0")


def test_published_rows_say_how_they_are_averaged():
    rows = {row["method"]: row for row in published_rows("queries", "paper", "550")}
    micro = {name for name, row in rows.items() if row["averaging"] == "micro"}
    assert micro == {"RotatE", "SE", "TransE", "TransR"}
    assert rows["NodePiece-QE"]["averaging"] == "macro"


def test_the_figure_is_drawn(tmp_path):
    path = tmp_path / "queries.png"
    assert not hits_by_ratio([], path)
    assert not path.exists()
    assert hits_by_ratio(cell("550", "rotate") + cell("106", "transe"), path)
    content = path.read_bytes()
    width, height = struct.unpack(">II", content[16:24])
    assert content.startswith(b"\x89PNG")
    assert width > height > 500


@pytest.mark.parametrize("averaging", ["macro", "micro"])
def test_the_figure_shows_a_line_for_every_method(tmp_path, monkeypatch, averaging):
    lines = []
    from matplotlib.axes import Axes

    plot = Axes.plot

    def watched(self, x, y, **style):
        lines.append((style["label"], list(y)))
        return plot(self, x, y, **style)

    monkeypatch.setattr(Axes, "plot", watched)
    hits_by_ratio(cell("550", "rotate") + cell("300", "rotate"), tmp_path / "a.png")
    expected = {"macro": 0.4, "micro": 0.2}[averaging]
    drawn = [y for label, y in lines if label == "RotatE, best"]
    # A panel for each type; one of both averagings begins with the value of its 1p.
    assert len(drawn) == 2 * len(CONJUNCTIVE)
    assert [100 * expected] * 2 in drawn


def test_learning_curves_are_in_the_order_of_training():
    common = {"model": "rotate", "preset": "best", "seed": 0, "length": 20000, "iterations": 2}
    records = [
        common | {"ratio": ratio, "steps": steps, "seconds": 1800.4, "micro": 0.2, "macro": 0.398}
        for ratio, steps in (("113", 5000), ("106", 20000), ("106", 1250))
    ]
    lines = query_curves(records).splitlines()
    assert lines[2:] == [
        "| 106 | RotatE, best, seed 0 | 1,250 of 20,000 | 1,800 s | 2 | 39.8 | 20.0 |",
        "| 106 | RotatE, best, seed 0 | 20,000 of 20,000 | 1,800 s | 2 | 39.8 | 20.0 |",
        "| 113 | RotatE, best, seed 0 | 5,000 of 20,000 | 1,800 s | 2 | 39.8 | 20.0 |",
    ]
