"""How the commands of the experiments end: one line and an exit status, never a traceback."""

import argparse
import runpy
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
from benchmarks import (
    command_line,
    completion,
    completion_ablations,
    paper_procedure,
    queries,
    training_benchmark,
    transductive,
)
from benchmarks.command_line import integer, report_errors

from sheafprop.errors import DataError

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"
#: The commands with a file of results, and the option that names it.
STORED = {
    "completion": (completion.main, "--results"),
    "ablations": (completion_ablations.main, "--results"),
    "procedure": (paper_procedure.main, "--results"),
    "queries": (queries.main, "--results"),
    "curves": (lambda words: queries.main([*words, "--curve", "4"]), "--results"),
    "transductive": (transductive.main, "--results"),
    "training": (training_benchmark.main, "--results"),
}
REPORTED = ("completion", "ablations", "queries")


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch, tmp_path):
    """No command may get as far as running a cell; there is no data either."""
    monkeypatch.setenv("SHEAFPROP_DATA", str(tmp_path / "no_data"))
    monkeypatch.setattr(command_line, "find_spec", lambda name: True)

    def fail(*_, **__):
        raise AssertionError("a cell was run")

    modules = (completion, completion_ablations, paper_procedure, queries, transductive)
    for module in (*modules, training_benchmark):
        monkeypatch.setattr(module, "run_cells", fail)


def ends(command, words, capsys):
    """Exit status and standard error of a command that cannot go on."""
    with pytest.raises(SystemExit) as stop:
        command(words)
    printed = capsys.readouterr().err
    assert len(printed.strip().splitlines()) >= 1
    assert "Traceback" not in printed
    return stop.value.code, printed


def spoiled(path, kind):
    """A file of results that is none."""
    if kind == "folder":
        path.mkdir()
    elif kind == "under a file":
        (path.parent / "file").write_text("")
        return path.parent / "file" / path.name
    else:
        path.write_text({"not JSON": "[", "a list": "[1]"}.get(kind, kind))
    return path


@pytest.mark.parametrize("kind", ["not JSON", "a list", '{"seed": 0}', "folder", "under a file"])
@pytest.mark.parametrize("name", list(STORED))
def test_results_that_cannot_be_used_are_reported_before_any_work(name, kind, tmp_path, capsys):
    command, option = STORED[name]
    # Learning curves have a file of their own, beside the one that is named.
    path = spoiled(tmp_path / ("query_curves.jsonl" if name == "curves" else "r.jsonl"), kind)
    status, printed = ends(command, [option, str(path.with_name("r.jsonl"))], capsys)
    assert status == 1
    assert path.name in printed or "file" in printed
    advice = {"folder": "Name a file", "under a file": "a file is where a folder is needed"}
    assert advice.get(kind, "another" if kind[0] == "{" else "move it away") in printed


@pytest.mark.parametrize(
    ("name", "other"),
    [pair for pair in product(REPORTED, (*REPORTED, "query_curves")) if pair[0] != pair[1]],
)
def test_results_of_another_experiment_are_reported(name, other, capsys, tmp_path):
    path = ROOT / "scripts" / "results" / f"{other}.jsonl"
    report = ["--report"] if name == "ablations" else ["--report", str(tmp_path / "report")]
    status, printed = ends(STORED[name][0], ["--results", str(path), *report], capsys)
    assert status == 1
    assert f"{other}.jsonl holds results of another experiment: line 1 has no" in printed
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize("name", REPORTED)
@pytest.mark.parametrize("content", [None, ""])
def test_a_report_of_no_results_says_so(name, content, capsys, tmp_path):
    path = tmp_path / "r.jsonl"
    if content is not None:
        path.write_text(content)
    report = ["--report"] if name == "ablations" else ["--report", str(tmp_path / "report")]
    STORED[name][0](["--results", str(path), *report])
    assert capsys.readouterr().out == f"{path} holds no results\n"
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize("name", ["queries", "curves", "transductive"])
def test_data_that_is_not_there_is_reported(name, capsys, tmp_path):
    command, option = STORED[name]
    status, printed = ends(command, [option, str(tmp_path / "new" / "r.jsonl")], capsys)
    assert status == 1
    assert "no_data" in printed or "SHEAFPROP_DATA" in printed
    assert not (tmp_path / "new" / "r.jsonl").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("completion", ["--jobs", "0"]),
        ("completion", ["--threads", "-1"]),
        ("ablations", ["--jobs", "two"]),
        ("curves", ["--curve", "0"]),
        ("transductive", ["--epochs", "0", "--results", "x.jsonl"]),
        ("transductive", ["--epochs", "1"]),
    ],
)
def test_options_out_of_their_range_are_reported(name, words, capsys):
    status, printed = ends(STORED[name][0], words, capsys)
    assert status == 2
    assert "must be an integer of at least 1" in printed or "--epochs needs --results" in printed


@pytest.mark.parametrize("name", ["transductive", "training"])
def test_a_missing_library_is_reported_before_any_work(name, monkeypatch, capsys):
    monkeypatch.setattr(command_line, "find_spec", lambda name: None)
    status, printed = ends(STORED[name][0], [], capsys)
    assert (status, "pip install 'sheafprop[pykeen]'" in printed) == (1, True)


def lightning_stops():
    """What Lightning makes of an interruption from the keyboard."""
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        sys.exit(1)


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.py")), ids=lambda path: path.stem)
def test_every_script_explains_itself_from_any_folder(script, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(script), run_name="__main__")
    assert not end.value.code
    assert f"usage: {script.name}" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("stop", [interrupt, lightning_stops])
def test_an_interruption_has_a_status_of_its_own(stop, capsys):
    parser = argparse.ArgumentParser(prog="experiment")
    with pytest.raises(SystemExit) as end, report_errors(parser, "call it again"):
        stop()
    assert end.value.code == 130
    assert capsys.readouterr().err == "experiment: interrupted; call it again\n"


def test_other_exits_and_errors_pass(monkeypatch):
    parser = argparse.ArgumentParser(prog="experiment")
    with pytest.raises(SystemExit) as end, report_errors(parser):
        sys.exit(7)
    assert end.value.code == 7
    with pytest.raises(KeyError), report_errors(parser):
        raise KeyError("a mistake of the program")
    monkeypatch.setenv("SHEAFPROP_DEBUG", "1")
    with pytest.raises(DataError), report_errors(parser):
        raise DataError("where was it?")


def test_integers_have_a_least_value():
    assert integer(2)("3") == 3
    for word in ("1", "-4", "2.5", "x", ""):
        with pytest.raises(argparse.ArgumentTypeError, match=r"at least 2 \(got"):
            integer(2)(word)


def test_processes_of_a_command_end_silently():
    code = (
        "import os, signal\n"
        "from benchmarks.command_line import end_silently\n"
        "end_silently()\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "print('still here')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=SCRIPTS, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path):
    code = (
        "import argparse\n"
        "from benchmarks.command_line import report_errors\n"
        "with report_errors(argparse.ArgumentParser()):\n"
        "    print('x' * 1000000)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=SCRIPTS,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0
