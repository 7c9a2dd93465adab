"""Runs the blocks of a document one after the other, as a reader would."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from sheafprop.cli.main import main

ROOT = Path(__file__).parents[2]


def blocks(text):
    """``(kind, content)`` of the blocks that are meant to be run."""
    return re.findall(r"```(sh|py|yaml)\n(.*?)```", text, flags=re.DOTALL)


def follow(text, folder, *, in_process=True):
    """Runs all blocks in a folder and returns the names that the Python blocks defined.

    A YAML block is written to the file that its first line names. Lines that call ``sheafprop`` run
    in this process unless ``in_process`` is false, ``wandb sync`` (which needs a network) is only
    checked to find its files, and other lines are the shell's.
    """
    scope = {}
    for kind, content in blocks(text):
        if kind == "py":
            exec(compile(content, "document", "exec"), scope)
        elif kind == "yaml":
            place = folder / content.splitlines()[0].removeprefix("# ")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(content)
        else:
            for line in content.splitlines():
                run_line(line, folder, in_process)
    return scope


def run_line(line, folder, in_process):
    if in_process and line.startswith("sheafprop "):
        assert main(shlex.split(line, comments=True)[1:]) == 0, line
    elif line.startswith("wandb sync "):
        assert list(folder.glob(line.split()[2])), line
    else:
        subprocess.run(["bash", "-c", line], check=True, env=environment(folder))


def environment(folder):
    """Where ``sheafprop`` is this checkout's command, and ``scripts`` its folder."""
    tools = folder / ".tools"
    if not tools.exists():
        tools.mkdir()
        command = tools / "sheafprop"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m sheafprop.cli.main "$@"\n')
        command.chmod(0o755)
        (folder / "scripts").symlink_to(ROOT / "scripts")
    places = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(places),
    }
