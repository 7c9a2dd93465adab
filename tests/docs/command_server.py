"""The command ``sheafprop`` for scripts: one process imports everything once, and forks each call.

Run as a script, it is the command: it hands its words, its folder and its output to the server, and
ends with the status that comes back. It imports little, so that a call takes milliseconds.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACE = "SHEAFPROP_COMMAND_SERVER"


@contextlib.contextmanager
def served(folder, environment):
    """The environment of a script, in which ``sheafprop`` is this checkout's command."""
    tools = folder / ".tools"
    tools.mkdir()
    command = tools / "sheafprop"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "{__file__}" "$@"\n')
    command.chmod(0o755)
    path = f"{tools}{os.pathsep}{environment['PATH']}"
    words = [sys.executable, "-m", "tests.docs.command_server"]
    with tempfile.TemporaryDirectory() as short:  # as the name of a socket has to be
        environment = environment | {"PATH": path, PLACE: f"{short}/server"}
        server = subprocess.Popen(words, cwd=ROOT, env=environment)
        try:
            while not os.path.exists(environment[PLACE]):
                assert server.poll() is None
                time.sleep(0.05)
            yield environment
        finally:
            server.terminate()
            server.wait(timeout=30)


def serve():
    import torch

    import sheafprop.cli.lightning  # noqa: F401  (before the forks)
    from sheafprop.cli.main import main

    torch.set_num_threads(1)  # threads do not survive a fork
    with socket.socket(socket.AF_UNIX) as listener:
        waiting = os.environ[PLACE] + ".bound"
        listener.bind(waiting)
        listener.listen()
        os.rename(waiting, os.environ[PLACE])  # not before somebody listens
        while True:
            connection, _ = listener.accept()
            with connection:
                request, handles, _, _ = socket.recv_fds(connection, 65536, 2)
                process = os.fork()
                if process == 0:
                    job, status = json.loads(request), 3
                    for number, handle in enumerate(handles, 1):
                        os.dup2(handle, number)
                    os.chdir(job["folder"])
                    with contextlib.suppress(SystemExit):
                        status = main(job["words"])
                    sys.stdout.flush()
                    os._exit(status)
                for handle in handles:
                    os.close(handle)
                status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
                connection.sendall(str(status).encode())


def call():
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[PLACE])
        job = json.dumps({"words": sys.argv[1:], "folder": os.getcwd()})
        socket.send_fds(connection, [job.encode()], [1, 2])
        return int(connection.recv(16))


if __name__ == "__main__":
    sys.exit(serve() if __package__ else call())
