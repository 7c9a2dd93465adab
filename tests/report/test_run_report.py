import os

import pytest

from sheafprop.files import StorageError
from sheafprop.report.run_report import write_report
from tests.report.records import entry, record, scores


def report(folder, *records):
    path = write_report(folder, records)
    assert path == folder / "report.md"
    return path.read_text("utf-8")


def section(text, title):
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_everything_has_its_place(tmp_path):
    text = report(tmp_path, record())
    assert text.startswith("# RotatE on umls (semi-inductive)\n")
    titles = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    assert titles == ["Results", "Protocols", "Selection", "Data", "Runs", "Time and memory"]
    assert "```text\nprotocol:   full: Filtered ranking of all.\nties: " in text
    assert "never across protocols" in section(text, "Results")
    selection = section(text, "Selection")
    assert (
        "8 configurations tried on validation (best `mrr` under `full`, 206 triples)" in selection
    )
    assert "start mixed, step size 0.9, iterations 8, num sections 9, normalize output yes" in (
        selection
    )
    assert "](hits_by_iteration.png)" in selection
    assert (tmp_path / "hits_by_iteration.png").stat().st_size > 1000
    assert "| rotate | 61.0 s | 3.0 s | 0.2 s | 7 min 12 s | 1.50 GiB | 2 cores, 23 GiB |" in (
        section(text, "Time and memory")
    )
    assert {path.name for path in tmp_path.iterdir()} == {"report.md", "hits_by_iteration.png"}


def test_nothing_of_the_data_is_hidden(tmp_path):
    run = record()
    run["data"] |= {"house_check": {"odd": 7}, "teapots": 1418}
    data = section(report(tmp_path, run), "Data")
    for line in (
        "| train | 101 | 46 | 3,651 | 0 | 2 |",
        "| new (free) entities in the inference graph | 34 |",
        "| test triples, in the inference graph | 247 |",
        "| teapots | 1,418 |",
        "- dropped triples (unknown relation): observed: 3; test: 1",
        r"- unknown relations: part\|of: 4",
        r"triples: 2; entities: 1; examples: (a_1, part\|of, größe), (b, is, a_1)",
        "- components without a known entity (unanchored): 3",
        "- free entities without a triple (isolated): 1",
        "- triples in two sets: none",
        "- house check: odd: 7",
        "- note: semi-inductive split of all 6529 triples with seed 0",
    ):
        assert line in data


def test_missing_parts_are_said_to_be_missing(tmp_path):
    bare = {"format": 1, "run": {"name": "bare"}}
    text = report(tmp_path, bare)
    for sentence in (
        "The test triples have not been ranked yet.",
        "No selection was recorded.",
        "There is no validation curve.",
        "No summary of the data was recorded.",
    ):
        assert sentence in text
    assert "hits_by_iteration.png" not in text
    assert [path.name for path in tmp_path.iterdir()] == ["report.md"]


def test_defaults_are_not_called_a_choice(tmp_path):
    run = record(points=[])
    run["selection"] |= {"on": "defaults", "tried": 0, "note": "There are no validation triples."}
    selection = section(report(tmp_path, run), "Selection")
    assert "No settings were selected on validation; defaults were used: start mixed" in selection
    assert "There are no validation triples." in selection
    assert "configuration" not in selection


def test_a_choice_on_the_training_graph_and_on_a_part_is_said(tmp_path):
    run = record()
    run["selection"] |= {"on": "training graph", "count": 500, "available": 3352}
    selection = section(report(tmp_path, run), "Selection")
    assert "tried on training entities that are treated as new (best" in selection
    assert "500 triples drawn from 3,352" in selection


def test_selected_weights_of_proximity_stand_with_the_choice(tmp_path):
    run = record()
    run["selection"]["proximity"] = {
        "search": {"weight": 0.3, "share": "auto", "peers": 0.0},
        "episodes": False,
        "on": "validation",
        "count": 7,
        "chosen": {"share": 0.6},
        "curve": [{"share": 0.6, run["selection"]["metric"]: 0.61}],
    }
    selection = section(report(tmp_path, run), "Selection")
    assert "Proximity: share 0.6, selected on 7 validation triples among 1 setting (" in selection
    run["selection"]["proximity"]["search"]["share"] = 0.6
    run["selection"]["proximity"]["curve"] = []
    assert "Proximity" not in section(report(tmp_path, run), "Selection")


def test_the_validation_value_of_every_run_is_shown(tmp_path):
    runs = [record("wide", seed=1), record("narrow", seed=2)]
    runs[0]["selection"] |= {"metric": "hits@3", "value": 0.5721}
    runs[1]["selection"] |= {"metric": "mrr", "value": None}
    lines = section(report(tmp_path, *runs), "Selection").splitlines()
    (wide,) = (line for line in lines if line.startswith("- **wide**"))
    (narrow,) = (line for line in lines if line.startswith("- **narrow**"))
    assert "(best `hits@3` 0.572 under `full`" in wide
    assert "(best `mrr` under `full`" in narrow


def test_some_runs_are_not_tested_yet(tmp_path):
    fresh = record("fresh", seed=1)
    del fresh["test"]
    results = section(report(tmp_path, record(), fresh), "Results")
    assert "Not tested yet: fresh." in results
    assert "RotatE + sheaf propagation" in results


def test_equal_boxes_and_data_are_shown_once(tmp_path):
    runs = [record("a"), record("b", seed=1), record("c", seed=2)]
    text = report(tmp_path, *runs)
    assert text.startswith(f"# {tmp_path.name}: 3 runs on umls (semi-inductive)")
    assert text.count("Filtered ranking of all.") == 1
    assert text.count("| train | 101 |") == 1
    runs[2]["data"]["train_entities"] = 99
    runs[2]["protocols"]["full"] = "other box"
    text = report(tmp_path, *runs)
    assert text.count("| train | 101 |") == text.count("| train | 99 |") == 1
    assert "`full` (a, b)" in text
    assert "`full` (c)\n\n```text\nother box\n```" in text


def test_a_protocol_without_box_is_described(tmp_path):
    run = record()
    run["protocols"] = {}
    assert "`full`: Filtered ranking against all entities, as PyKEEN reports it. Its" in (
        report(tmp_path, run)
    )


def test_published_figures_stand_under_their_own_protocol_only(tmp_path):
    run = record(dataset="fb237_v1", mode="fully-inductive")
    run["test"] = [
        entry("RotatE + sheaf propagation", 0.6),
        entry("RotatE + sheaf propagation", 0.6, "merged", "selected on half of the test"),
    ]
    rows = section(report(tmp_path, run), "Published figures")
    assert "| TransE + harmonic extension | fb237_v1 | full | 50.5 |" in rows
    assert "sampled50" not in rows
    assert "merged" not in rows  # a marked figure is not compared
    assert "NBFNet" not in rows  # recalled, not looked up
    semi = record(dataset="fb237_v1", mode="semi-inductive")
    assert "Published figures" not in report(tmp_path, semi)


@pytest.mark.parametrize("first", [True, False])
def test_one_marked_entry_ends_the_comparison_of_its_protocol(tmp_path, first):
    """A baseline that is not marked does not bring the comparison back."""
    run = record(dataset="fb237_v1", mode="fully-inductive")
    marked = entry("RotatE + sheaf propagation", 0.6, "merged", "selected on half of the test")
    plain = entry("edge-type heuristic", 0.3, "merged")
    run["test"] = [marked, plain] if first else [plain, marked]
    assert "Published figures" not in report(tmp_path, run)
    run["test"] = [plain, entry("RotatE + sheaf propagation", 0.6)]
    rows = section(report(tmp_path, run), "Published figures")
    assert "| merged |" in rows
    assert "| full |" in rows


def test_strata_stand_below_the_results(tmp_path):
    run = record()
    assert "half-link" not in report(tmp_path, run)
    run["test"][3]["strata"] = {"half-link observed": {"count": 41} | scores(0.5)}
    results = section(report(tmp_path, run), "Results")
    assert "**By what the observed graph knows of the true answer**" in results
    assert "| `full` | half-link observed |" in results
    assert "| queries | 41 |" in results
    assert "| RotatE + sheaf propagation | 50.0 (0.300) |" in results


def test_settings_are_explained_where_they_appear(tmp_path):
    run = record()
    run["selection"]["chosen"] |= {"prototype_share": 0.33, "teleport": 0.0, "normalization": None}
    selection = section(report(tmp_path, run), "Selection")
    for term in ("start mixed: ", "sections: ", "prototype share: ", "teleport: ", "row normal"):
        assert selection.count(term) == 1
    assert "normalization none" in selection
    assert "start random: " not in selection
    bare = {"format": 1, "run": {"name": "bare"}}
    assert "sections: " not in report(tmp_path, bare)


def test_every_setting_has_an_explanation(tmp_path):
    from sheafprop.inductive.propagation_settings import PropagationSettings

    for start in ("mixed", "random", "prototype", "zeros"):
        run = record()
        settings = PropagationSettings(start=start)
        run["selection"]["chosen"] = settings.to_dict() | {"num_sections": settings.num_sections}
        selection = section(report(tmp_path, run), "Selection")
        lines = [line for line in selection.splitlines() if line.startswith("- ")]
        assert len(lines) == len(run["selection"]["chosen"])


def test_no_record():
    with pytest.raises(ValueError, match="at least one record"):
        write_report(".", [])


def test_a_failed_write_leaves_the_old_report(tmp_path, monkeypatch):
    (tmp_path / "report.md").write_text("old")

    def refuse(source, target):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(StorageError, match="report"):
        write_report(tmp_path, [record(points=[])])
    assert (tmp_path / "report.md").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["report.md"]
