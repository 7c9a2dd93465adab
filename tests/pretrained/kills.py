"""Processes that are killed before or after a chosen one of their changes of the disk."""

import builtins
import os
import signal

from tests.distributed.rank_pool import start

_CHANGES = ("replace", "rename", "fsync", "mkdir", "unlink", "rmdir", "link", "posix_fallocate")


def _run(pipe, moment, function, arguments):
    passed = 0

    def pass_moment():
        nonlocal passed
        passed += 1
        if passed == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    def guard(original, counts=lambda *given, **named: True):
        def guarded(*given, **named):
            if not counts(*given, **named):
                return original(*given, **named)
            pass_moment()
            result = original(*given, **named)
            pass_moment()
            return result

        return guarded

    for name in _CHANGES:
        setattr(os, name, guard(getattr(os, name)))
    builtins.open = guard(open, lambda file, mode="r", *given, **named: not mode.startswith("r"))
    function(*arguments)
    raise SystemExit(0)


def killed_at(moment, function, *arguments):
    """Runs a function in a process of its own, and returns whether it was killed at a moment, a
    number from 1 on; without the kill, it must end well."""
    _store, [(process, _pipe)] = start(_run, 1, moment, function, arguments)
    process.join(60)
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0
