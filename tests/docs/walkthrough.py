"""Runs the blocks of a document one after the other, as a reader would."""

import os
import re
import shlex
import subprocess

from sheafprop.cli.main import main
from tests.forked import ROOT, Shell

TOOLS = ".tools"


def blocks(text):
    """``(kind, content)`` of the blocks that are meant to be run."""
    return re.findall(r"```(sh|py|yaml)\n(.*?)```", text, flags=re.DOTALL)


def follow(text, folder):
    """Runs all blocks in a folder and returns the names that the Python blocks defined.

    A YAML block is written to the file that its first line names. Lines that call ``sheafprop`` run
    in this process unless there are tools for the shell, ``wandb sync`` (which needs a network) is
    only checked to find its files, and other lines are the shell's.
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
                run_line(line, folder)
    return scope


def run_line(line, folder):
    tools = folder / TOOLS
    if line.startswith("sheafprop ") and not tools.exists():
        assert main(shlex.split(line, comments=True)[1:]) == 0, line
    elif line.startswith("wandb sync "):
        assert list(folder.glob(line.split()[2])), line
    else:
        subprocess.run(["bash", "-c", line], check=True, env=environment(tools))


def environment(tools):
    """What a shell needs to find some tools before all else."""
    return os.environ | {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}


def shell(folder):
    """Makes ``sheafprop`` the command of this checkout for a shell, and ``scripts`` its folder."""
    (folder / "scripts").symlink_to(ROOT / "scripts")
    return Shell(folder / TOOLS, "sheafprop", "-m", "sheafprop.cli.main")
