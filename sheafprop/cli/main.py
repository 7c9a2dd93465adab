"""The command ``sheafprop``: imports only what the given command needs."""

import os
import sys
import warnings
from collections.abc import Sequence

from sheafprop.version import __version__

_HELP = """\
usage: sheafprop COMMAND [options]

Computes vectors for entities that are new to a knowledge graph embedding model.

commands:
  fit        train a model, select the propagation on validation, save both
             sheafprop fit --config configs/experiment/umls_rotate.yaml
  validate   propagate with a finished run and rank its validation triples
             sheafprop validate --run runs/umls/rotate
  test       propagate with a finished run and rank its test triples
             sheafprop test --run runs/umls/rotate
  extend     compute vectors for the new entities in facts, save a new model
             sheafprop extend runs/umls/rotate new_facts.tsv --out extended
  remove     remove entities and their facts, save a new model
             sheafprop remove extended --entity gene_therapy --out smaller
  propagate  compute vectors for the new entities in files larger than memory
             sheafprop propagate facts.tsv --model runs/umls/rotate --memory 16GB --out vectors
  partition  partition a graph for the processes of torchrun
             sheafprop partition facts.tsv --parts 4 --method metis --out parts
  predict    rank entities as missing heads or tails
             sheafprop predict runs/umls/rotate --head virus --relation causes -k 5
  answer     rank entities as answers to logical queries
             sheafprop answer runs/umls/rotate --query "via(inverse(treats), via(causes, virus))"
  calibrate  fit probabilities of predictions and answers, save a new model
             sheafprop calibrate extended held_out.tsv --out calibrated
  score      score triples
             sheafprop score extended candidates.tsv --out scores.csv
  explain    list the facts that the vector of an entity contradicts most
             sheafprop explain runs/umls/rotate --entity virus
  evaluate   rank the test triples of a run, or the triples of a file
             sheafprop evaluate --run runs/umls/rotate
  split      split one graph into the files of a run, with new entities
             sheafprop split graph.tsv --out my_split --mode fully-inductive
  convert    convert RDF, OWL, OBO, KGX or Neo4j files to plain triples
             sheafprop convert go.owl --out go.tsv --literals go_features.csv
  inspect    summarize a folder of triples or a model
             sheafprop inspect runs/umls/rotate --relations
  export     write vectors for other programs
             sheafprop export extended --out vectors.npy
  import     import models of other libraries (PyKEEN, PyG, DGL-KE, ...) or arrays
             sheafprop import pykeen results/transe --out model

  tune       search the options of a configuration on validation
             sheafprop tune --config experiment/fb237_v1_rotate --trials 50

options:
  -h, --help     show this text; after a command, its options (--help=all: all of them)
  --version      show the version

Set SHEAFPROP_DEBUG=1 to see the traceback of an error.
"""
_TRAINING = ("fit", "validate", "test")
#: Commands whose module has their name and a function ``run``; it is imported at the call. To add
#: one, add its module, its name here and its line in the help above.
_OWN = (
    *("extend", "remove", "propagate", "predict", "answer", "calibrate", "score", "explain"),
    *("evaluate", "inspect", "partition"),
    *("export", "import", "split", "convert", "tune"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0 done, 1 failed, 2 not understood."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if hasattr(sys.stdout, "reconfigure"):
        # Messages in any encoding; tables keep their labels, see write_output.
        sys.stdout.reconfigure(errors="backslashreplace")
    # torch 2.14 warns of torch.jit.script, which PyTorch Geometric calls when it is imported.
    warnings.filterwarnings("ignore", r"`torch\.jit\.script` is deprecated", FutureWarning)
    if not words or words[0] in ("-h", "--help", "help"):
        print(_HELP, end="")
        return 0
    if words[0] == "--version":
        print(f"sheafprop {__version__}")
        return 0
    if words[0] not in (*_TRAINING, *_OWN):
        import difflib

        near = difflib.get_close_matches(words[0], (*_TRAINING, *_OWN), 1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        print(
            f"sheafprop: there is no command '{words[0]}'{hint}\n\n{_HELP}", file=sys.stderr, end=""
        )
        return 2
    try:
        if words[0] in _OWN:
            import importlib

            name = "import_model" if words[0] == "import" else words[0]
            done = importlib.import_module(f"sheafprop.cli.{name}").run(words[1:])
            sys.stdout.flush()
            return done
        from sheafprop.cli.training_commands import run

        return run(words[0], words[1:])
    except BrokenPipeError:
        # Whoever reads the output has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("sheafprop: interrupted", file=sys.stderr)
        return 130
    except SystemExit as stop:
        # Lightning answers SIGTERM by an exit with status 0, as if the run had been finished.
        if type(stop).__name__ != "SIGTERMException":
            raise
        print("sheafprop: terminated", file=sys.stderr)
        return 143
    except Exception as error:
        if os.environ.get("SHEAFPROP_DEBUG"):
            raise
        if not getattr(error, "silent", False):  # another process of torchrun says the same
            print(f"sheafprop {words[0]}: {_describe(error)}", file=sys.stderr)
        return getattr(error, "exit_code", 1)


def _describe(error: Exception) -> str:
    from argparse import ArgumentError

    from sheafprop.errors import SheafpropError

    if isinstance(error, SheafpropError | ValueError | OSError | ArgumentError):
        return str(error)
    return f"{type(error).__name__}: {error} (SHEAFPROP_DEBUG=1 shows where)"


if __name__ == "__main__":
    raise SystemExit(main())
