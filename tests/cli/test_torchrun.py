"""``fit`` by the processes of torchrun: one run, a killed process, and starting again.

Processes are forked, as importing everything in each would take a minute.
"""

import contextlib
import io
import os
import signal

import pytest
from lightning.pytorch import Callback

from sheafprop.cli.main import main
from tests.cli.test_main import SMALL
from tests.distributed.rank_pool import start
from tests.toy import write_folder

OPTIONS = [
    *("--model.num_candidates=6", "--model.optimizer=rowwise_adagrad", "--model.table=sharded"),
    *("--data.drop_last=true", "--data.batch_size=8", "--timeout=60"),
]


class KillOnce(Callback):
    """Kills one process at the start of an epoch, unless torchrun has started it again."""

    def on_train_epoch_start(self, trainer, pl_module):
        again = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
        if trainer.global_rank == 1 and trainer.current_epoch == 3 and not again:
            os.kill(os.getpid(), signal.SIGKILL)


def _fit(pipe, words, attempt=0):
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(attempt)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["fit", *words])
    pipe.send((code, out.getvalue(), err.getvalue()))
    raise SystemExit(code)


def run(words, attempt=0, told=False):
    """What two processes print, and their exit codes; torchrun tells the first one to end."""
    _store, started = start(_fit, 2, words, attempt)
    processes = [process for process, _ in started]
    said = []
    if told:
        processes[1].join(100)
        with contextlib.suppress(ProcessLookupError):
            os.kill(processes[0].pid, signal.SIGTERM)
    for process, pipe in started:
        with contextlib.suppress(EOFError):
            said.append(pipe.recv() if pipe.poll(100) else None)
        process.join(100)
    return said, [process.exitcode for process in processes]


@pytest.fixture
def words(tmp_path):
    folder = write_folder(tmp_path / "ring")
    where = [f"--data.root={folder}", "--data.mode=semi-inductive", "--trainer.max_epochs=5"]
    callback = "--trainer.callbacks=tests.cli.test_torchrun.KillOnce"
    return [*SMALL, *OPTIONS, *where, callback, f"--run.group={tmp_path / 'runs'}"]


def test_a_killed_process_ends_the_run_and_torchrun_goes_on_with_it(tmp_path, words):
    words = [*words, "--run.name=lr [0.1]"]
    said, codes = run(words, told=True)
    assert codes == [3, -signal.SIGKILL]
    lines = said[0][2].strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("sheafprop fit: rank 1 of 2 (")
    assert "ended without a message" in lines[0]
    folder = tmp_path / "runs" / "lr [0.1]"
    assert (folder / "checkpoints" / "last.ckpt").is_file()
    assert not (folder / "model").exists()  # what was interrupted is no result
    assert not (folder / "metrics.json").exists()

    said, codes = run(words, attempt=1)
    assert codes == [0, 0]
    assert "resuming at epoch 4 of 5" in said[0][1]
    assert said[1][1:] == ("", "")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [folder.name]
    assert not (folder / ".torchrun").exists()

    # The finished run is one like any other, for one process.
    assert main(["test", "--run", str(folder), "--trust", "tests.cli.test_torchrun"]) == 0


def test_what_is_wrong_is_said_once(words):
    said, codes = run([*words, "--model.num_candidates=null"])
    assert codes == [1, 3]
    assert "num_candidates" in said[0][2]
    assert said[1][2] == ""
