"""Starts runs that are killed: one process imports everything once, and forks each of them.

Reads a JSON object a line: ``words`` for the command line, ``journal`` (a file that gets the number
of each epoch as it begins), ``output`` (a file), and when to kill: ``delay`` seconds after training
has begun, or at the ``rename``-th renaming of a file whose name ends in ``suffix``: ``before`` it,
``within`` the writing that precedes it, or ``after`` it. Answers with the exit status, which is -9
for a run that was killed.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

import sheafprop.cli.lightning  # noqa: F401  (before the forks)
from sheafprop.cli.main import main
from sheafprop.training import SheafCompletion

_replace, _begin = os.replace, SheafCompletion.on_train_epoch_start


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def killing_replace(job):
    count = 0

    def replace(source, target):
        nonlocal count
        count += str(target).endswith(job["suffix"])
        now = count == job["rename"] and job["moment"]
        if now == "before":
            kill()
        if now == "within" and Path(source).is_file():
            os.truncate(source, Path(source).stat().st_size // 2)
            kill()
        _replace(source, target)
        if now:
            kill()

    return replace


def child(job, begun):
    def on_train_epoch_start(module):
        with open(job["journal"], "a") as journal:
            journal.write(f"{module.current_epoch}\n")
        os.write(begun, b"x")
        _begin(module)

    output = os.open(job["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    SheafCompletion.on_train_epoch_start = on_train_epoch_start
    if job.get("rename"):
        os.replace = killing_replace(job)
    os._exit(main(job["words"]))


def run(job):
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reading)
        child(job, writing)
    os.close(writing)
    os.read(reading, 1)
    if job.get("delay") is not None:
        time.sleep(job["delay"])
        os.kill(process, signal.SIGKILL)
    # Drained, so that the child never waits for a reader.
    while os.read(reading, 4096):
        pass
    os.close(reading)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


if __name__ == "__main__":
    # Threads do not survive a fork.
    torch.set_num_threads(1)
    for line in sys.stdin:
        print(run(json.loads(line)), flush=True)
