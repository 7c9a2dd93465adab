"""Runs in another folder, with their data in another order, and on other data."""

import json
import shutil

import pytest
import yaml

from sheafprop.cli.main import main
from sheafprop.inductive.propagation_search import PropagationSearch
from tests.cli.test_main import SMALL
from tests.toy import parts, write_folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    place = tmp_path_factory.mktemp("finished")
    data = write_folder(place / "ring")
    words = [f"--data.root={data}", "--data.mode=semi-inductive", f"--run.group={place / 'runs'}"]
    assert main(["fit", *SMALL, *words, "--model.kge=se", "--run.name=first"]) == 0
    assert main(["test", "--run", str(place / "runs" / "first")]) == 0
    return place / "runs" / "first"


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "elsewhere" / "second")


def record(run):
    return json.loads((run / "metrics.json").read_text())


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_same_figures(found, expected):
    """Ranks may not change; their means are sums in another order."""
    for a, b in zip(found, expected, strict=True):
        assert (a["method"], a["protocol"]) == (b["method"], b["protocol"])
        assert a["metrics"] == pytest.approx(b["metrics"], rel=1e-9)


def test_a_copy_is_tested_and_goes_on_without_the_original(finished, run, monkeypatch):
    data = yaml.safe_load((run / "run.yaml").read_text())["data"]["root"]
    away = finished.parent.parent / "away"
    before = contents(finished)
    finished.rename(away)
    finished.write_text("not a folder")  # nothing can be written or made there
    try:
        assert main(["test", "--run", str(run)]) == 0
        assert_same_figures(
            record(run)["test"], json.loads((away / "metrics.json").read_text())["test"]
        )
        assert main(["validate", "--run", str(run)]) == 0
        assert main(["evaluate", "--run", str(run), "--out", str(run.parent / "table.csv")]) == 0
        assert main(["fit", "--resume", str(run), "--trainer.max_epochs=4"]) == 0
        assert finished.read_text() == "not a folder"
    finally:
        finished.unlink()
        away.rename(finished)
    assert contents(finished) == before
    stored = yaml.safe_load((run / "run.yaml").read_text())
    assert stored["data"]["root"] == data
    logger = stored["trainer"]["logger"]
    logger = logger[0] if isinstance(logger, list) else logger
    assert logger["init_args"]["save_dir"].startswith(str(run))
    assert len(list((run / "csv").iterdir())) > len(list((finished / "csv").iterdir()))
    assert record(run)["run"]["name"] == "second"
    assert "| second |" in (run / "report.md").read_text()


def test_a_copy_that_goes_on_keeps_its_best_score_and_leaves_the_original(finished, run, recwarn):
    before = contents(finished)
    assert main(["fit", "--resume", str(run), "--trainer.max_epochs=5", "--model.lr=1e-9"]) == 0
    assert not [w for w in recwarn if "dirpath has changed" in str(w.message)]
    assert contents(finished) == before
    assert record(run)["training"]["best_epoch"] == record(finished)["training"]["best_epoch"]


def reordered(folder, order):
    """The same data: the lines of every file in another order."""
    write_folder(folder)
    for file in folder.glob("*.txt"):
        file.write_text("\n".join(order(file.read_text().split("\n")[:-1])) + "\n")
    return folder


@pytest.mark.parametrize(
    "order",
    [
        lambda lines: lines[::-1],
        lambda lines: sorted(lines, key=lambda line: line.split("\t")[1][::-1]),
        lambda lines: lines[1:2] + lines[:1] + lines[2:],
    ],
    ids=["reversed", "by relation", "two lines"],
)
def test_the_order_of_lines_changes_no_result(run, tmp_path, capsys, order):
    data = reordered(tmp_path / "ring", order)
    before, table = record(run), tmp_path / "table.csv"
    assert main(["evaluate", "--run", str(run), "--out", str(table)]) == 0
    own = table.read_text()
    assert main(["test", "--run", str(run), f"--data.root={data}", "--reselect"]) == 0
    assert_same_figures(record(run)["test"], before["test"])
    assert record(run)["selection"]["chosen"] == before["selection"]["chosen"]
    words = ["evaluate", "--run", str(run), "--data.root", str(data), "--out", str(table)]
    assert main(words) == 0
    for a, b in zip(own.split("\n"), table.read_text().split("\n"), strict=True):
        assert a.split(",")[:-2] == b.split(",")[:-2]
        if a and not a.startswith("method"):
            assert float(a.split(",")[-2]) == pytest.approx(float(b.split(",")[-2]), rel=1e-9)
    assert main(["fit", "--resume", str(run), "--trainer.max_epochs=3", f"--data.root={data}"]) == 0


def test_a_test_takes_the_stored_choice_and_repeats_the_search_on_request(run, monkeypatch):
    before, calls, select = record(run), [], PropagationSearch.select

    def watched(self, *arguments, **options):
        calls.append(options)
        return select(self, *arguments, **options)

    monkeypatch.setattr(PropagationSearch, "select", watched)
    assert main(["test", "--run", str(run)]) == 0
    assert not calls
    assert record(run)["selection"] == before["selection"]
    assert record(run)["seconds"]["select"] == before["seconds"]["select"]
    assert_same_figures(record(run)["test"], before["test"])
    assert main(["test", "--run", str(run), "--reselect"]) == 0
    assert len(calls) == 1
    # Another search that is asked for is done.
    assert main(["test", "--run", str(run), "--model.propagation.iterations=[3]"]) == 0
    assert len(calls) == 2
    assert record(run)["selection"]["chosen"]["iterations"] == 3


def other_data(folder, without):
    """Another inference graph for the same training graph."""
    write_folder(folder, without=without)
    rows = [(h.replace("a", "n") if h not in known() else h, r, t) for h, r, t in observed()]
    (folder / "inference.txt").write_text("".join("\t".join(row) + "\n" for row in rows))
    targets = [row for row in rows if row[0].startswith("n")][:2]
    (folder / "inference_test.txt").write_text("".join("\t".join(t) + "\n" for t in targets))
    return folder


def known():
    return {label for h, _, t in parts("semi-inductive")["train"] for label in (h, t)}


def observed():
    return parts("semi-inductive")["observed"]


@pytest.mark.filterwarnings("ignore:.*triples are both")
def test_results_on_other_data_stand_beside_with_the_choice_of_the_run(run, tmp_path, capsys):
    other = other_data(tmp_path / "new graph", without=("valid",))
    before, group = contents(run), contents(run.parent)
    chosen = record(run)["selection"]["chosen"]
    for _ in range(2):
        assert main(["test", "--run", str(run), f"--data.root={other}"]) == 0
        assert "results on other data" in capsys.readouterr().out
    after = contents(run)
    assert {path: after[path] for path in before} == before
    assert {path: path.read_bytes() for path in group} == group
    new = {path.relative_to(run).parts[0] for path in after.keys() - before.keys()}
    assert new == {"on-new graph"}
    found = record(run / "on-new graph")
    assert found["selection"]["chosen"] == chosen
    assert found["run"]["dataset"] == "new graph"
    # Another one of the same name stands beside that.
    other = other_data(tmp_path / "more" / "new graph", without=("valid", "train_valid"))
    assert main(["test", "--run", str(run), f"--data.root={other}"]) == 0
    assert (run / "on-new graph-2" / "report.md").is_file()
    assert main(["test", "--run", str(run), f"--data.root={other}", "--reselect"]) == 1
    assert "no validation triples to choose on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--model.proximity.weight=0.7", "--model.proximity.weight 0.7, where the run has 'auto'"),
        ("--seed_everything=6", "--seed_everything 6, where the run has 0"),
        (
            "--model.propagation.settings.step_size=0.25",
            "--model.propagation.settings.step_size 0.25, where the run has ",
        ),
    ],
)
def test_a_test_with_other_options_than_the_run_says_so(run, capsys, option, said):
    assert not any("where the run has" in box for box in record(run)["protocols"].values())
    assert main(["test", "--run", str(run), option]) == 0
    boxes = record(run)["protocols"]
    assert len(boxes) == 2
    shown = capsys.readouterr().out, (run / "report.md").read_text(), *boxes.values()
    for text in shown:
        assert f"note:       ranked with {said}" in text
    assert all(box.count("where the run has") == box.count("note:") for box in boxes.values())


def write_features(file, scale):
    lines = (f"a{i},{scale * (i % 7)}" for i in range(24))
    file.write_text("\n".join(["id,size", *lines]) + "\n")
    return f"--data.features={file}"


def test_features_are_data_of_a_run(tmp_path, capsys):
    data, run = write_folder(tmp_path / "ring"), tmp_path / "runs" / "own"
    words = [f"--data.root={data}", "--data.mode=semi-inductive", f"--run.group={run.parent}"]
    own, other = (write_features(tmp_path / f"{n}.csv", n) for n in (1.0, -3.5))
    (tmp_path / "few.csv").write_text("id,size\na0,1\na1,2\na2,\nb,4\n")
    assert main(["fit", *SMALL, *words, f"--data.features={tmp_path / 'few.csv'}"]) == 1
    assert "training entities must have features (got 2" in capsys.readouterr().err
    assert not run.parent.exists()  # refused before the training
    assert main(["fit", *SMALL, *words, own, "--run.name=own"]) == 0
    assert main(["test", "--run", str(run)]) == 0
    before = contents(run)
    assert main(["test", "--run", str(run), other]) == 0
    assert "results on other data" in capsys.readouterr().out
    assert {path: contents(run)[path] for path in before} == before
    assert record(run / "on-ring")["keys"] != record(run)["keys"]
    again = ["fit", "--resume", str(run), "--trainer.max_epochs=3"]
    assert main([*again, other]) == 1
    said = capsys.readouterr().err
    assert "'features' differs. Give the file of then with --data.features" in said
    assert {path: contents(run)[path] for path in before} == before
    # The same ones from another place, in another order.
    lines = (tmp_path / "1.0.csv").read_text().splitlines()
    (tmp_path / "moved.csv").write_text("\n".join([lines[0], *lines[:0:-1]]) + "\n")
    assert main([*again, f"--data.features={tmp_path / 'moved.csv'}"]) == 0


def test_test_triples_may_come_after_the_training(tmp_path):
    data = write_folder(tmp_path / "ring", without=("test",))
    words = [f"--data.root={data}", "--data.mode=semi-inductive", f"--run.group={tmp_path}"]
    assert main(["fit", *SMALL, *words, "--run.name=late"]) == 0
    write_folder(data)
    assert main(["test", "--run", str(tmp_path / "late")]) == 0
    assert record(tmp_path / "late")["test"]
