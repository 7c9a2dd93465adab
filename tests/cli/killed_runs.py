"""A command that kills its own process (SIGKILL).

Its one argument is a JSON object: ``words`` for the command line, ``journal`` (a file that gets the
number of each epoch as it begins), and when to kill: ``delay`` seconds after the ``epoch``-th epoch
of this process has begun, or at the ``rename``-th renaming of a file whose name ends in ``suffix``:
``before`` it, ``within`` the writing that precedes it, or ``after`` it.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path

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


def run(job):
    begun = 0

    def on_train_epoch_start(module):
        nonlocal begun
        begun += 1
        with open(job["journal"], "a") as journal:
            journal.write(f"{module.current_epoch}\n")
        if begun == job.get("epoch"):
            timer = threading.Timer(job["delay"], kill)
            timer.daemon = True
            timer.start()
        _begin(module)

    SheafCompletion.on_train_epoch_start = on_train_epoch_start
    if job.get("rename"):
        os.replace = killing_replace(job)
    return main(job["words"])


if __name__ == "__main__":
    raise SystemExit(run(json.loads(sys.argv[1])))
