"""The command line, run in this process on a small folder of files."""

import csv
import errno
import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import warnings

import pytest
import torch
import yaml

from sheafprop.cli import lightning
from sheafprop.cli.main import main
from sheafprop.cli.run_folder import RunFolder
from sheafprop.pretrained.model_folder import load_model_folder
from sheafprop.training import SheafCompletion
from sheafprop.version import __version__
from tests.forked import python
from tests.toy import write_folder

SMALL = [
    "--config=experiment/folder",
    "--config=logger/csv",
    "--trainer.max_epochs=2",
    "--trainer.check_val_every_n_epoch=1",
    "--trainer.accelerator=cpu",
    "--trainer.enable_progress_bar=false",
    "--model.hidden_channels=8",
    "--model.propagation.iterations=[1,4]",
    "--model.propagation.settings.num_random=2",
]


@pytest.fixture(autouse=True)
def _quiet_and_offline(monkeypatch):
    monkeypatch.delenv("SHEAFPROP_DEBUG", raising=False)
    for name in ("WANDB_DIR", "WANDB_DATA_DIR", "WANDB_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)


def fit(folder, group, *more, mode="semi-inductive"):
    where = [f"--data.root={folder}", f"--data.mode={mode}", f"--run.group={group}"]
    return main(["fit", *SMALL, *where, *more])


@pytest.mark.parametrize("mode", ["semi-inductive", "fully-inductive"])
def test_fit_then_test_leaves_report_metrics_figure_and_model(tmp_path, capsys, mode):
    folder, group = write_folder(tmp_path / "ring", mode), tmp_path / "runs"
    assert fit(folder, group, mode=mode) == 0
    out = capsys.readouterr().out
    assert f"run folder: {group / 'rotate'}" in out
    assert f"ring ({mode}" in out
    run = group / "rotate"
    record = json.loads((run / "metrics.json").read_text())
    assert "test" not in record
    assert record["selection"]["on"] == "validation"
    assert main(["test", "--run", str(run)]) == 0
    out = capsys.readouterr().out
    assert "protocol:   full" in out
    assert "RotatE + sheaf propagation" in out
    assert "edge-type heuristic" in out
    for place in (run, group):
        assert (place / "report.md").is_file()
        assert (place / "hits_by_iteration.png").stat().st_size > 5000
        assert (place / "metrics.json").is_file()
    record = json.loads((run / "metrics.json").read_text())
    assert {entry["protocol"] for entry in record["test"]} == {"full", "sampled50"}
    assert set(record["seconds"]) == {"train", "select", "propagate", "rank"}
    assert record["peak_bytes"] > 10**7
    assert (run / "model" / "model.safetensors").is_file()
    assert main(["validate", "--run", str(run)]) == 0
    assert "selected on" in capsys.readouterr().out


def test_a_run_folder_is_never_overwritten(tmp_path, capsys):
    folder, group = write_folder(tmp_path / "ring"), tmp_path / "runs"
    assert fit(folder, group) == 0
    before = (group / "rotate" / "metrics.json").read_bytes()
    assert fit(folder, group) == 0
    assert (group / "rotate" / "metrics.json").read_bytes() == before
    assert (group / "rotate-2" / "metrics.json").is_file()


def test_two_runs_with_one_seed_agree_and_resume_goes_on(tmp_path):
    folder, group = write_folder(tmp_path / "ring"), tmp_path / "runs"
    assert fit(folder, group, "--trainer.max_epochs=4", "--model.lr_epochs=4") == 0
    short = ["--trainer.max_epochs=2", "--model.lr_epochs=4", "--run.name=short"]
    assert fit(folder, group, *short) == 0
    assert main(["fit", "--resume", str(group / "short"), "--trainer.max_epochs=4"]) == 0
    for name in ("rotate", "short"):
        assert main(["test", "--run", str(group / name)]) == 0
    a, b = (json.loads((group / n / "metrics.json").read_text()) for n in ("rotate", "short"))
    assert a["test"] == b["test"]
    assert a["selection"]["curve"] == b["selection"]["curve"]


def test_a_run_that_another_process_works_on_is_left_alone(tmp_path, capsys):
    folder = write_folder(tmp_path / "ring")
    assert fit(folder, tmp_path) == 0
    run = tmp_path / "rotate"
    (run / "checkpoints" / ".sheafprop-half.tmp").touch()  # of a checkpoint that is written now
    other = RunFolder(run)
    other.lock()
    assert main(["fit", "--resume", str(run)]) == 1
    assert f"another process is at work in {run}" in capsys.readouterr().err
    assert (run / "checkpoints" / ".sheafprop-half.tmp").exists()
    assert main(["test", "--run", str(run)]) == 0
    other.release()
    assert main(["fit", "--resume", str(run)]) == 0


def test_a_file_system_without_locks_is_reported(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    folder = RunFolder(tmp_path)
    with pytest.warns(UserWarning, match="cannot be locked.*no other process works there"):
        folder.lock()
    folder.release()


def test_relative_paths_are_those_of_the_caller(tmp_path, monkeypatch):
    write_folder(tmp_path / "here" / "ring")
    monkeypatch.chdir(tmp_path / "here")
    files = {"features": "size.csv", "prefixes": "my.json"}
    (tmp_path / "here" / "size.csv").write_text("id,size\na0,1\na1,2\na2,7\na3,4\n")
    (tmp_path / "here" / "my.json").write_text('{"ex": "http://example.org/"}')
    assert fit("ring", "runs", *(f"--data.{name}={file}" for name, file in files.items())) == 0
    run = tmp_path / "here" / "runs" / "rotate"
    stored = yaml.safe_load((run / "run.yaml").read_text())
    for name, file in {"root": "ring", **files}.items():
        assert stored["data"][name] == str(tmp_path / "here" / file)
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    assert main(["test", "--run", "../here/runs/rotate"]) == 0


@pytest.mark.parametrize(
    ("without", "said"),
    [
        (("valid",), "the inference graph has none"),
        (("valid", "train_valid"), "no validation triples"),
    ],
)
def test_missing_validation_files_are_said(tmp_path, capsys, without, said):
    folder = write_folder(tmp_path / "ring", without=without)
    assert fit(folder, tmp_path / "runs") == 0
    assert said in capsys.readouterr().out
    assert main(["test", "--run", str(tmp_path / "runs" / "rotate")]) == 0
    record = json.loads((tmp_path / "runs" / "rotate" / "metrics.json").read_text())
    assert record["selection"]["on"] == "training graph"


def failing(capsys, words):
    assert main(words) == 1
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return captured.err


@pytest.mark.parametrize("precision", ["16-true", "bf16-true"])
def test_a_precision_without_meaning_is_refused_and_leaves_no_run(tmp_path, capsys, precision):
    folder, group = write_folder(tmp_path / "ring"), tmp_path / "runs"
    where = [f"--data.root={folder}", "--data.mode=semi-inductive", f"--run.group={group}"]
    message = failing(capsys, ["fit", *SMALL, *where, f"--trainer.precision={precision}"])
    assert message.count("\n") == 1
    assert f"(got {precision})" in message
    assert not group.exists()


def test_a_run_in_double_precision_stores_and_ranks_double_precision(tmp_path):
    folder, group = write_folder(tmp_path / "ring"), tmp_path / "runs"
    assert fit(folder, group, "--trainer.precision=64-true") == 0
    run = group / "rotate"
    assert load_model_folder(run / "model").model.node_emb.weight.dtype == torch.float64
    assert main(["test", "--run", str(run)]) == 0
    assert json.loads((run / "metrics.json").read_text())["test"][0]["metrics"]["mrr"] > 0


def test_tensorboard_logs_into_the_run_or_says_what_to_install(tmp_path, capsys, monkeypatch):
    folder, group = write_folder(tmp_path / "ring"), tmp_path / "runs"
    if lightning.find_spec("tensorboard") is not None:
        assert fit(folder, group, "--config=logger/tensorboard") == 0
        assert list((group / "rotate" / "tensorboard").rglob("events.out.*"))
    monkeypatch.setattr(lightning, "find_spec", lambda name: None)
    assert fit(folder, group, "--config=logger/tensorboard", "--run.name=without") == 0
    message = "tensorboard is not installed (pip install tensorboard): this run is logged to CSV"
    assert message in capsys.readouterr().err
    assert (group / "without" / "metrics.json").is_file()
    (curve,) = (group / "without" / "csv").rglob("metrics.csv")
    assert "train/loss" in curve.read_text()


@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn"])
def test_two_processes_of_one_command_share_one_run_folder(tmp_path, strategy):
    folder, group = write_folder(tmp_path / "ring"), tmp_path / "runs"
    where = [f"--data.root={folder}", "--data.mode=semi-inductive", "--data.drop_last=true"]
    words = [*SMALL, *where, "--data.batch_size=16"]
    more = ["--trainer.devices=2", f"--trainer.strategy={strategy}", f"--run.group={group}"]
    done = python("-m", "sheafprop.cli.main", "fit", *words, *more)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("run folder:") == 1
    assert [path.name for path in group.iterdir()] == ["rotate"]
    assert main(["fit", *words, f"--run.group={tmp_path / 'one'}"]) == 0
    two, one = (
        load_model_folder(place / "rotate" / "model").model.state_dict()
        for place in (group, tmp_path / "one")
    )
    for name, value in one.items():
        assert torch.allclose(two[name], value, rtol=0, atol=1e-6), name


def test_bad_data_is_reported_in_one_message(tmp_path, capsys):
    folder = write_folder(tmp_path / "ring")
    with (folder / "inference.txt").open("a") as file:
        file.write("a1 next a2\n")
    words = ["fit", *SMALL, f"--data.root={folder}", "--run.group", str(tmp_path / "runs")]
    message = failing(capsys, words)
    assert "inference.txt" in message
    assert "a1 next a2" in message
    folder = write_folder(tmp_path / "other")
    with (folder / "inference.txt").open("a") as file:
        file.write("a1\tunheard\tz\na2\tunheard\tz\n")
    words = ["fit", *SMALL, f"--data.root={folder}", "--run.group", str(tmp_path / "runs2")]
    message = failing(capsys, words)
    assert "unheard" in message
    assert "2" in message
    assert main([*words, "--data.on_unknown_relation=drop"]) == 0
    assert "2 triples were dropped" in capsys.readouterr().out


def test_divergence_is_reported_with_its_cause(tmp_path, capsys):
    folder = write_folder(tmp_path / "ring")
    more = ["--model.lr=1e30", "--model.optimizer=sgd", "--trainer.max_epochs=50"]
    more.append("--model.kge_args={entity_constraint: null}")
    assert fit(folder, tmp_path / "runs", *more) == 1
    assert "learning rate" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fit", "--data.root", "x.obo"], "needs --config: experiment/folder with --data.root"),
        (["test"], "needs --run"),
        (["test", "--run", "nowhere"], "not a run folder"),
        (["fit", "--config", "nowhere"], "no configuration 'nowhere'"),
        (["fit", "--run", "x", "--config", "y"], "not both"),
        (["test", "--resume", "x"], "goes with fit"),
    ],
)
def test_bad_words_are_reported(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    assert message in failing(capsys, words)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--model.kge=foo", "model.kge"),
        ("--model.nonsense=1", "nonsense"),
        ("--model.lr=fast", "'--model.lr' must be a number (got 'fast')"),
        ("--trainer.logger=tensorboard", "or a configuration: --config logger/csv, --config log"),
        ("--data.batch_size=0", "'batch_size' must be an integer of at least 1"),
        ("--data.mode=both", "data.mode"),
        ("--data.hold_out=2", "'hold_out' must be"),
        ("--model.lr=-1", "'lr' must be positive (got -1.0)"),
        ("--model.weight_decay=-1", "'weight_decay' must not be negative"),
        ("--model.num_negatives=0", "'num_negatives' must be an integer of at least 1"),
        ("--model.lr_epochs=0", "'lr_epochs' must be an integer of at least 1"),
        ("--model.hidden_channels=0", "hidden_channels"),
        ("--model.kge_args={wrong: 1}", "'kge_args' do not fit 'rotate'"),
    ],
)
def test_bad_options_are_reported_without_pages_of_usage(tmp_path, capsys, option, message):
    folder = write_folder(tmp_path / "ring")
    assert fit(folder, tmp_path / "runs", option) == 1
    printed = capsys.readouterr().err
    assert message in printed
    assert "usage:" not in printed
    assert not (tmp_path / "runs" / "rotate").exists()


def test_a_place_that_cannot_hold_runs_is_named(tmp_path, capsys):
    folder = write_folder(tmp_path / "ring")
    (tmp_path / "file").write_text("")
    assert fit(folder, tmp_path / "file") == 1
    assert "--run.group" in capsys.readouterr().err


def test_a_stored_run_cannot_import_strangers(tmp_path, capsys):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.yaml").write_text(
        "model: {}\ntrainer: {callbacks: [{class_path: os.system, init_args: {command: x}}]}\n"
    )
    assert "os.system" in failing(capsys, ["test", "--run", str(folder)])


def test_unknown_verbs_suggest_the_nearest(capsys):
    assert main(["tets"]) == 2
    assert "did you mean 'test'" in capsys.readouterr().err


def test_help_is_quick_and_imports_no_torch():
    code = (
        "import sys; from sheafprop.cli.main import main; main(['--help']); "
        "assert 'torch' not in sys.modules and 'lightning' not in sys.modules"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "usage: sheafprop" in done.stdout
    # Time of the processor, which other programs on the machine do not add to.
    assert after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime < 0.5
    assert main(["--version"]) == 0


@pytest.mark.parametrize("name", ["fit", "validate", "test"])
def test_every_command_explains_itself_in_a_page(name, capsys):
    assert main([name, "--help"]) == 0
    short = capsys.readouterr().out
    assert len(short.splitlines()) < 40
    assert "example:" in short
    assert "--run" in short
    with pytest.raises(SystemExit) as stop:
        main([name, "--help=all"])
    assert stop.value.code == 0
    every = capsys.readouterr().out
    assert len(every) > 5 * len(short)
    named = set(re.findall(r"--((?:data|model|trainer)\.\w+)", short))
    assert named
    assert all(f"--{option}" in every.replace(short, "") for option in named)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("inference.txt", "a1 next a2\n", "inference.txt, line 1"),
        ("inference.txt", "a1\tunheard\tz\n", "'unheard': 1 triple"),
        ("inference.txt", "a0\tnext\ta1\n", "--data.mode=fully-inductive"),
        ("train.txt", None, "train.txt missing"),
        ("train.txt", "", "holds no triple"),
        ("train.txt", "a\tr\tb\n".encode("utf-16"), "UTF-16"),
    ],
)
def test_bad_files_are_reported_before_torch_is_there_and_leave_nothing(
    tmp_path, file, content, said
):
    folder = write_folder(tmp_path / "ring")
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    words = ["fit", *SMALL, f"--data.root={folder}", f"--run.group={tmp_path / 'new' / 'runs'}"]
    code = (
        "import sys; from sheafprop.cli.main import main\n"
        f"code = main({words!r})\n"
        "assert code == 1 and 'torch' not in sys.modules, code"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert said in done.stderr
    assert not (tmp_path / "new").exists()


def test_what_only_the_graphs_show_starts_no_logger(tmp_path, monkeypatch, capsys):
    """Such as a split that is impossible: reported before W&B is started, and nothing is left."""
    from lightning.pytorch.loggers import WandbLogger

    from sheafprop.data import FolderDataset
    from sheafprop.errors import DataError

    def refuse(self):
        raise DataError("these graphs cannot be used")

    started = []
    monkeypatch.setattr(FolderDataset, "load", refuse)
    monkeypatch.setattr(WandbLogger, "experiment", property(lambda self: started.append(self)))
    folder = write_folder(tmp_path / "ring")
    assert fit(folder, tmp_path / "new" / "runs", "--config=logger/wandb") == 1
    assert "these graphs cannot be used" in capsys.readouterr().err
    assert not started
    assert not (tmp_path / "new").exists()


def test_folders_that_were_there_stay_when_a_run_cannot_start(tmp_path):
    (tmp_path / "runs").mkdir()
    assert fit(write_folder(tmp_path / "ring"), tmp_path / "runs", "--model.lr=fast") == 1
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_folder_laid_over_a_benchmark_names_the_run(tmp_path, monkeypatch):
    write_folder(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    over = [word.replace("experiment/folder", "experiment/grail") for word in SMALL]
    over.insert(1, "--config=data/folder")
    assert main(["fit", *over, "--data.root=mine", "--trainer.max_epochs=1"]) == 0
    assert (tmp_path / "runs" / "mine" / "rotate" / "model").is_dir()


def test_a_deprecated_call_of_pyg_is_not_reported(recwarn):
    main(["--version"])
    text = "`torch.jit.script` is deprecated. Please switch to `torch.compile` or `torch.export`."
    warnings.warn(text, FutureWarning, stacklevel=1)
    warnings.warn("`torch.load` is deprecated", FutureWarning, stacklevel=1)
    assert [str(w.message) for w in recwarn] == ["`torch.load` is deprecated"]


def test_version_is_the_package_version(capsys):
    main(["--version"])
    assert capsys.readouterr().out.strip() == f"sheafprop {__version__}"


def test_a_run_that_fails_at_once_leaves_no_folder(tmp_path):
    assert fit(tmp_path / "nowhere", tmp_path / "runs") == 1
    assert not (tmp_path / "runs" / "rotate").exists()


def test_a_run_shorter_than_its_first_validation_can_be_tested(tmp_path):
    folder, group = write_folder(tmp_path / "ring"), tmp_path / "runs"
    assert fit(folder, group, "--trainer.max_epochs=1", "--trainer.check_val_every_n_epoch=9") == 0
    assert main(["test", "--run", str(group / "rotate")]) == 0


@pytest.mark.parametrize(
    ("more", "validated"),
    [
        (["--trainer.max_epochs=4", "--trainer.check_val_every_n_epoch=5"], False),
        (["--trainer.max_epochs=5", "--trainer.check_val_every_n_epoch=5"], True),
        (["--trainer.max_steps=9", "--trainer.check_val_every_n_epoch=3"], False),
        (["--trainer.max_steps=12", "--trainer.check_val_every_n_epoch=3"], True),
        (["--trainer.max_epochs=3", "--trainer.limit_val_batches=0"], False),
        (["--trainer.max_epochs=2", "--trainer.val_check_interval=0.5"], True),
    ],
)
def test_what_is_said_of_the_best_epoch_is_what_happens(tmp_path, capsys, more, validated):
    folder, group = write_folder(tmp_path / "ring"), tmp_path / "runs"
    if "max_steps" in more[0]:
        more = [*more, "--trainer.max_epochs=-1"]
    assert fit(folder, group, "--data.batch_size=8", *more) == 0
    out, training = (
        capsys.readouterr().out,
        json.loads((group / "rotate" / "metrics.json").read_text())["training"],
    )
    assert ("the best epoch is selected by MRR" in out) == validated
    assert ("no epoch will be validated" in out) != validated
    assert (training["monitor"] == "val/mrr") == validated
    assert ("the last epoch is taken" in training["chosen_by"]) != validated
    rows = list(csv.DictReader((group / "rotate" / "csv" / "version_0" / "metrics.csv").open()))
    assert any(row.get("val/mrr") for row in rows) == validated


def test_run_folder_and_hash_follow_the_options(tmp_path, monkeypatch):
    write_folder(tmp_path / "ring")
    monkeypatch.chdir(tmp_path)
    words = ["fit", *SMALL, "--data.root=ring", "--trainer.max_epochs=1"]
    assert main([*words, "--model.kge", "transe"]) == 0
    assert main([*words, "--model.kge", "transe", "--model.lr=0.5"]) == 0
    assert main([*words, "--model.kge", "transe", "--seed_everything=4"]) == 0
    records = [
        json.loads((tmp_path / "runs" / "ring" / name / "metrics.json").read_text())["run"]
        for name in ("transe", "transe-2", "transe-3")
    ]
    assert records[0]["config_hash"] != records[1]["config_hash"]
    assert records[0]["config_hash"] == records[2]["config_hash"]
    assert records[2]["seed"] == 4


def test_a_run_that_is_interrupted_from_the_keyboard_exits_with_130(tmp_path, capsys, monkeypatch):
    begin = SheafCompletion.on_train_epoch_start

    def interrupt(module):
        if module.current_epoch == 2:
            raise KeyboardInterrupt
        begin(module)

    folder, group = write_folder(tmp_path / "ring"), tmp_path / "my runs"
    handler = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(SheafCompletion, "on_train_epoch_start", interrupt)
    try:
        assert fit(folder, group, "--trainer.max_epochs=4") == 130
    finally:
        signal.signal(signal.SIGINT, handler)  # Lightning leaves it ignored
    said = capsys.readouterr().err
    assert said.count("sheafprop: interrupted") == 1
    resume = shlex.join(["sheafprop", "fit", "--resume", str(group / "rotate")])
    assert f"'{resume}' resumes this run" in said
    monkeypatch.undo()
    assert main(["fit", "--resume", str(group / "rotate")]) == 0
    assert json.loads((group / "rotate" / "metrics.json").read_text())["training"]["epochs"] == 4


def test_a_run_that_is_terminated_does_not_exit_as_if_it_had_finished(
    tmp_path, capsys, monkeypatch
):
    begin = SheafCompletion.on_train_epoch_start

    def terminate(module):
        if module.current_epoch == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        begin(module)

    folder, group = write_folder(tmp_path / "ring"), tmp_path / "runs"
    monkeypatch.setattr(SheafCompletion, "on_train_epoch_start", terminate)
    assert fit(folder, group, "--trainer.max_epochs=4") == 143
    said = capsys.readouterr().err
    assert said.count("sheafprop: terminated") == 1
    assert "resumes this run" in said
    assert not (group / "rotate" / "model").exists()
    monkeypatch.undo()
    assert main(["fit", "--resume", str(group / "rotate")]) == 0


def test_an_interrupted_run_is_said_to_be_one(tmp_path, capsys):
    folder, group = write_folder(tmp_path / "ring"), tmp_path / "runs"
    assert fit(folder, group) == 0
    (group / "rotate" / "model" / "manifest.json").unlink()
    assert main(["test", "--run", str(group / "rotate")]) == 0
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize("stranger", ["evil.Class", "os.system"])
def test_plain_strings_import_no_strangers_either(tmp_path, capsys, stranger):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.yaml").write_text(f"model: {{}}\ntrainer: {{callbacks: [{stranger}]}}\n")
    assert stranger in failing(capsys, ["test", "--run", str(folder)])


def test_a_run_file_without_a_run_is_named(tmp_path, capsys):
    (tmp_path / "run.yaml").write_text("")
    assert "not the configuration of a run" in failing(capsys, ["test", "--run", str(tmp_path)])


def test_dropped_test_triples_are_in_the_protocol_box(tmp_path, capsys):
    folder, group = write_folder(tmp_path / "ring"), tmp_path / "runs"
    with (folder / "inference_test.txt").open("a") as file:
        file.write("a1\tunheard\ta2\n")
    assert fit(folder, group, "--data.on_unknown_relation=drop") == 0
    assert main(["test", "--run", str(group / "rotate")]) == 0
    assert "1 dropped" in capsys.readouterr().out


def test_texts_that_look_like_numbers_stay_texts(tmp_path, monkeypatch):
    """A hash such as 8848009382e3, or a run that is called so."""
    from sheafprop.cli import training_commands

    class Digest:
        def hexdigest(self):
            return "8848009382e3"

    monkeypatch.setattr(training_commands.hashlib, "sha256", lambda text: Digest())
    monkeypatch.delenv("WANDB_MODE", raising=False)
    folder, group = write_folder(tmp_path / "ring"), tmp_path / "runs"
    assert fit(folder, group, "--run.name=12e3", "--config=logger/wandb", "--model.lr=1e-3") == 0
    assert main(["test", "--run", str(group / "12e3")]) == 0
    record = json.loads((group / "12e3" / "metrics.json").read_text())
    assert record["run"]["config_hash"] == "8848009382e3"
    assert record["run"]["name"] == "12e3"


def test_numbers_of_a_file_without_a_point_are_numbers(tmp_path):
    (tmp_path / "mine.yaml").write_text("model: {lr: 1e-3}\n")
    folder, group = write_folder(tmp_path / "ring"), tmp_path / "runs"
    assert fit(folder, group, f"--config={tmp_path / 'mine.yaml'}") == 0
    stored = yaml.safe_load((group / "rotate" / "run.yaml").read_text())
    assert stored["model"]["lr"] == 0.001


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("share=autox", "'--model.proximity.share' must be a number or 'auto' (got 'autox')"),
        ("share=-1", "'share' must be finite and not negative (got -1.0)"),
    ],
)
def test_a_wrong_weight_is_refused_in_one_line_and_leaves_no_run(tmp_path, capsys, option, message):
    folder, group = write_folder(tmp_path / "ring"), tmp_path / "runs"
    assert fit(folder, group, f"--model.proximity.{option}") != 0
    assert capsys.readouterr().err.strip().splitlines()[-1] == f"sheafprop fit: {message}"
    assert not group.exists()
