"""The command ``sheafprop``: finds the verb, and only then imports what the verb needs."""

import os
import sys
from collections.abc import Sequence

from sheafprop.version import __version__

_HELP = """\
usage: sheafprop VERB [options]

Vectors for entities that a knowledge graph embedding model has never seen.

verbs:
  fit        train a model, choose the propagation on validation, save both
             sheafprop fit --config configs/experiment/umls_rotate.yaml
  validate   propagate with a finished run and rank the validation triples
             sheafprop validate --run runs/umls/rotate
  test       propagate with a finished run and rank the test triples
             sheafprop test --run runs/umls/rotate

options:
  -h, --help     show this text; after a verb, its options (--help=all: every one)
  --version      show the version

Set SHEAFPROP_DEBUG=1 to see the traceback of an error.
"""
_LIGHTNING_VERBS = ("fit", "validate", "test")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0 done, 1 failed, 2 not understood."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(_HELP, end="")
        return 0
    if words[0] == "--version":
        print(f"sheafprop {__version__}")
        return 0
    if words[0] not in _LIGHTNING_VERBS:
        import difflib

        near = difflib.get_close_matches(words[0], _LIGHTNING_VERBS, 1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        print(f"sheafprop: there is no verb '{words[0]}'{hint}\n\n{_HELP}", file=sys.stderr, end="")
        return 2
    try:
        from sheafprop.cli.training_verbs import run

        return run(words[0], words[1:])
    except KeyboardInterrupt:
        print("sheafprop: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if os.environ.get("SHEAFPROP_DEBUG"):
            raise
        print(f"sheafprop {words[0]}: {_describe(error)}", file=sys.stderr)
        return 1


def _describe(error: Exception) -> str:
    from argparse import ArgumentError

    from sheafprop.errors import SheafpropError

    if isinstance(error, SheafpropError | ValueError | OSError | ArgumentError):
        return str(error)
    return f"{type(error).__name__}: {error} (SHEAFPROP_DEBUG=1 shows where)"


if __name__ == "__main__":
    raise SystemExit(main())
