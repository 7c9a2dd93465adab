"""``sheafprop tune`` on a small folder of files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sheafprop.cli import tune
from sheafprop.cli.main import main
from sheafprop.cli.run_folder import RunFolder
from sheafprop.config_files import load_config
from tests.cli.test_main import SMALL as RUN
from tests.toy import write_folder

pytest.importorskip("optuna")


SMALL = [*RUN, "--config=logger/csv", "--data.mode=semi-inductive"]
SPACE = """\
model.lr: {type: float, low: 0.01, high: 0.1, log: true}
model.loss_args: {type: categorical, choices: [{scale: 2.0}, {scale: 5.0}]}
"""


@pytest.fixture
def words(tmp_path):
    return words_of_a_study(tmp_path)


def words_of_a_study(tmp_path):
    folder = write_folder(tmp_path / "ring")
    (tmp_path / "space.yaml").write_text(SPACE)
    return [
        "tune",
        *SMALL,
        f"--data.root={folder}",
        f"--space={tmp_path / 'space.yaml'}",
        f"--run.group={tmp_path}",
        "--run.name=study",
    ]


def trials(tmp_path):
    return json.loads((tmp_path / "study" / "study.json").read_text())


def test_a_study_goes_on_and_its_best_configuration_fits(tmp_path, words, capsys):
    assert main([*words, "--trials=2"]) == 0
    first = trials(tmp_path)
    assert [trial["state"] for trial in first] == ["complete"] * 2
    first_lines = capsys.readouterr().out.splitlines()
    assert first_lines[-3].startswith(f"trial 0: hits@10 {first[0]['value']:.4f} (")
    assert (
        f", hits@10 {max(trial['value'] for trial in first):.4f}; sheafprop fit" in first_lines[-1]
    )
    assert [line for line in first_lines if line.startswith("trial ")] == first_lines[-3:-1]
    assert main(["tune", "--resume", str(tmp_path / "study"), "--trials=3"]) == 0
    # The data once, then a line for each trial and the best one.
    *data, trial, best_line = capsys.readouterr().out.splitlines()
    assert first_lines[1:-3] == data
    assert (trial[:9], best_line[:12]) == ("trial 2: ", "best: trial ")
    found = trials(tmp_path)
    assert found[:2] == first
    assert len({trial["values"]["model.lr"] for trial in found}) == 3
    best = max(found, key=lambda trial: trial["value"])
    config = load_config(str(tmp_path / "study" / "best.yaml"))
    assert config["model"]["lr"] == best["values"]["model.lr"]
    # Choices are taken as a whole, over what the configuration says.
    assert config["model"]["loss_args"].items() >= best["values"]["model.loss_args"].items()
    run = tmp_path / "study" / "trials" / best["run"]
    record = json.loads((run / "metrics.json").read_text())
    curve = record["selection"]["curve"]
    assert best["value"] == max(row[record["selection"]["metric"]] for row in curve)
    assert "test" not in record
    capsys.readouterr()
    more = [f"--config={tmp_path / 'study' / 'best.yaml'}", f"--run.group={tmp_path / 'again'}"]
    assert main(["fit", *more]) == 0
    (again,) = (tmp_path / "again").glob("*/metrics.json")
    assert json.loads(again.read_text())["selection"]["curve"] == curve


@pytest.mark.parametrize(
    "wrong", ["--model.lrr=1", "--trainer.max_epochs=x", "--data.root=nowhere"]
)
def test_a_study_that_cannot_start_leaves_no_folder(tmp_path, words, wrong):
    assert main([*words, wrong, "--trials=1"]) == 1
    assert not (tmp_path / "study").exists()


def test_models_that_the_paper_did_not_search_need_a_space(tmp_path, words, capsys):
    bare = [word for word in words if not word.startswith("--space")]
    assert main([*bare, "--model.kge=pairre", "--trials=1"]) == 1
    assert "no space for 'pairre': give --space FILE" in capsys.readouterr().err
    assert not (tmp_path / "study").exists()


def test_there_must_be_something_to_validate_on(tmp_path, words, capsys):
    for name in ("valid.txt", "inference_valid.txt"):
        (tmp_path / "ring" / name).unlink()
    assert main([*words, "--trials=1"]) == 1
    said = capsys.readouterr()
    assert "chooses on validation triples" in said.err
    assert said.out == ""


def test_without_optuna_it_says_what_to_install(words, monkeypatch, capsys):
    monkeypatch.setattr(tune, "find_spec", lambda name: None)
    assert main(words) == 1
    assert capsys.readouterr().err.strip() == (
        "sheafprop tune: 'sheafprop tune' needs Optuna: pip install 'sheafprop[tune]'"
    )


def test_help_and_a_missing_extra_import_nothing_large():
    code = (
        "import sys\n"
        "sys.modules['optuna'] = None\n"
        "from sheafprop.cli.main import main\n"
        "assert main(['--help']) == 0\n"
        "try:\n    main(['tune', '--help'])\nexcept SystemExit: pass\n"
        "assert not {'torch', 'lightning'} & sys.modules.keys()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--trials" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--config FILE"),
        (["--config", "experiment/folder", "--trials", "0"], "at least 1"),
        (["--config", "experiment/folder", "stray"], "unrecognized argument: stray"),
        (["--resume", "x", "--config", "experiment/folder"], "--config FILE"),
        (
            ["--resume", "x", "--pruner", "none"],
            "keeps its space, configuration, pruner and folder",
        ),
        (["--resume", "x", "--run.name", "y"], "keeps its space, configuration, pruner and folder"),
        (
            ["--resume", "x", "--run.group", "y"],
            "keeps its space, configuration, pruner and folder",
        ),
    ],
)
def test_wrong_words_are_refused(words, message, capsys):
    with pytest.raises(SystemExit):
        main(["tune", *words])
    assert message in capsys.readouterr().err


def test_a_study_that_another_process_works_on_is_left_alone(tmp_path, words, capsys):
    assert main([*words, "--trials=1"]) == 0
    before = (tmp_path / "study" / "study.db").read_bytes()
    place = RunFolder(tmp_path / "study")
    place.lock()
    assert main(["tune", "--resume", str(place.path), "--trials=2"]) == 1
    assert "another process is at work in" in capsys.readouterr().err
    assert (place.path / "study.db").read_bytes() == before
    place.release()
    assert main(["tune", "--resume", str(place.path), "--trials=2"]) == 0


def test_a_study_goes_on_from_another_folder_on_the_same_data(tmp_path, words, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [word.replace(str(tmp_path / "ring"), "ring") for word in words]
    assert "--data.root=ring" in words
    words[-1] = "--run.name=it's #1?"
    (tmp_path / "size.csv").write_text("id,size\na0,1\na1,2\na2,7\na3,4\n")
    (tmp_path / "my.json").write_text('{"ex": "http://example.org/"}')
    words += ["--data.features=size.csv", "--data.prefixes=my.json"]
    assert main([*words, "--trials=1"]) == 0
    study = tmp_path / "it's #1?"
    # Another folder of that name has other data.
    (tmp_path / "there").mkdir()
    write_folder(tmp_path / "there" / "ring", "fully-inductive")
    monkeypatch.chdir(tmp_path / "there")
    assert main(["tune", "--resume", str(study), "--trials=2"]) == 0
    runs = [
        study / "trials" / trial["run"] for trial in json.loads((study / "study.json").read_text())
    ]
    stored = [yaml.safe_load((run / "run.yaml").read_text())["data"] for run in runs]
    for data in [*stored, load_config(str(study / "best.yaml"))["data"]]:
        for name, file in (("root", "ring"), ("features", "size.csv"), ("prefixes", "my.json")):
            assert data[name] == str(tmp_path / file)


def test_studies_of_the_first_version_find_their_data_by_their_trials(tmp_path, words, monkeypatch):
    assert main([*words, "--trials=1"]) == 0
    file = tmp_path / "study" / "tune.yaml"
    stored = yaml.safe_load(file.read_text())
    stored["config"]["data"]["root"] = "ring"
    file.write_text(yaml.safe_dump(stored))
    assert main(["tune", "--resume", str(tmp_path / "study"), "--trials=2"]) == 0
    assert {trial["state"] for trial in trials(tmp_path)} == {"complete"}


@pytest.mark.parametrize("change", ["gone", "other"])
def test_no_trial_is_spent_on_data_that_are_gone_or_others(tmp_path, words, capsys, change):
    assert main([*words, "--trials=1"]) == 0
    before = trials(tmp_path)
    if change == "gone":
        (tmp_path / "ring").rename(tmp_path / "away")
    else:
        with (tmp_path / "ring" / "inference_valid.txt").open("a") as file:
            file.write("a3\tfar\ta4\n")
    assert main(["tune", "--resume", str(tmp_path / "study"), "--trials=2"]) == 1
    said = "does not exist" if change == "gone" else "not those of the trials"
    assert said in capsys.readouterr().err
    assert trials(tmp_path) == before
    assert len(list((tmp_path / "study" / "trials").iterdir())) == 1


def test_a_folder_without_a_study_is_refused(tmp_path, capsys):
    assert main(["tune", "--resume", str(tmp_path)]) == 1
    assert "not the folder of a study" in capsys.readouterr().err
    for content in (b"\xff\xfe", b"space: [", b"config: {}\n"):
        (tmp_path / "tune.yaml").write_bytes(content)
        assert main(["tune", "--resume", str(tmp_path)]) == 1
        assert "does not describe a study" in capsys.readouterr().err


def test_offline_wandb_runs_are_in_the_folders_of_the_trials(tmp_path, words, monkeypatch):
    pytest.importorskip("wandb")
    words = [word.replace("logger/csv", "logger/wandb") for word in words]
    assert main([*words, "--trials=1"]) == 0
    (trial,) = trials(tmp_path)
    run = Path(tmp_path, "study", "trials", trial["run"])
    assert list(run.rglob("run-*.wandb"))
    assert (
        yaml.safe_load((run / "run.yaml").read_text())["model"]["lr"]
        == (trial["values"]["model.lr"])
    )
