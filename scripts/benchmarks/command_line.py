"""What the commands of the experiments share: how they end, and the types of their options."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from sheafprop.errors import SheafpropError


@contextmanager
def report_errors(parser: argparse.ArgumentParser, again: str = "") -> Iterator[None]:
    """Ends the program with one line on standard error where the block cannot go on.

    The exit status is 1 after an error that is meant for users, and 130 after an interruption from
    the keyboard. ``SHEAFPROP_DEBUG=1`` shows the traceback of an error.

    Args:
        parser: The parser of the program, whose name is printed.
        again: What the message of an interruption adds.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads the output has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (KeyboardInterrupt, SystemExit) as stop:
        # Lightning makes an exit of an interruption.
        if not any(isinstance(e, KeyboardInterrupt) for e in (stop, stop.__context__)):
            raise
        parser.exit(130, f"{parser.prog}: interrupted{again and '; '}{again}\n")
    except (SheafpropError, OSError) as error:
        if os.environ.get("SHEAFPROP_DEBUG"):
            raise
        parser.exit(1, f"{parser.prog}: {error}\n")


def end_silently() -> None:
    """Lets an interruption from the keyboard end a process of a command without a traceback."""
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))


def integer(least: int) -> Callable[[str], int]:
    """The type of an option that takes an integer of at least ``least``."""

    def read(word: str) -> int:
        try:
            value = int(word)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(
                f"it must be an integer of at least {least} (got {word!r})"
            )
        return value

    return read


def check_pykeen() -> None:
    """Raises an error for users where PyKEEN is not installed, before anything is trained."""
    if find_spec("pykeen") is None:
        raise SheafpropError(
            "PyKEEN, which is compared with, is not installed: pip install 'sheafprop[pykeen]'"
        )
