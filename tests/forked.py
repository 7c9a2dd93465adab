"""``python WORDS`` in a process of its own which has imported the package already.

A server imports everything once, and every process is forked from it: threads do not survive a
fork, so the process of pytest, which has some, is not forked itself.
"""

import json
import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).parents[1]
_PRELOAD = ["tests.distributed.rank_pool", "tests.distributed.warm", "sheafprop.cli.study"]


def context():
    """How processes are started from the server, which one process of pytest starts once."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(_PRELOAD)
    return made


def python(*words, cwd=None, env=None):
    """What ``subprocess.run([sys.executable, *words])`` gives, with its output as text.

    Args:
        words: ``-m MODULE``, ``-c CODE`` or a script, and its arguments.
        cwd: The folder to run in; this process's by default.
        env: All environment variables; this process's by default.
    """
    words, env = [str(word) for word in words], dict(os.environ if env is None else env)
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("out", "err")]
        arguments = words, str(cwd or os.getcwd()), env, [str(file) for file in files]
        process = context().Process(target=_become, args=arguments)
        process.start()
        process.join()
        out, err = (file.read_text() if file.exists() else "" for file in files)
    return subprocess.CompletedProcess(words, process.exitcode, out, err)


def _become(words, folder, environment, files):
    import torch

    torch.set_num_threads(1)
    for place, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), place)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.modules.pop(words[1], None)
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


class Shell:
    """Gives commands of a shell the same processes, under a name in a folder of tools.

    Args:
        tools (Path): The folder.
        name (str): What the shell calls.
        words: What :func:`python` is given before the arguments of the call.
    """

    def __init__(self, tools, name, *words):
        self._words = words
        self._folder = tempfile.TemporaryDirectory()
        place = f"{self._folder.name}/socket"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(place)
        self._listener.listen()
        tools.mkdir(exist_ok=True)
        command = tools / name
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -I {__file__} {place} "$@"\n')
        command.chmod(0o755)
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        self._folder.cleanup()

    def _serve(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # it was shut down
                return
            with connection, connection.makefile("rw") as file:
                words, cwd, env = json.loads(file.readline())
                done = python(*self._words, *words, cwd=cwd, env=env)
                json.dump([done.returncode, done.stdout, done.stderr], file)


def _call(place, words):
    """Has a :class:`Shell` run a command, and writes what that wrote."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(place)
        with server.makefile("rw") as file:
            file.write(json.dumps([words, os.getcwd(), dict(os.environ)]) + "\n")
            file.flush()
            status, out, err = json.load(file)
    sys.stdout.write(out)
    sys.stderr.write(err)
    return status


if __name__ == "__main__":
    raise SystemExit(_call(sys.argv[1], sys.argv[2:]))
