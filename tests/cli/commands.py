"""Calls of commands in this process, for the tests of each."""

import gzip
from io import StringIO

import pandas as pd

from sheafprop.cli.main import main


def output(capsys, *words):
    assert main([str(word) for word in words]) == 0
    return capsys.readouterr()


def failing(capsys, *words):
    assert main([str(word) for word in words]) == 1
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    return printed.err


def table(text):
    return pd.read_csv(StringIO(text), sep="\t", keep_default_na=False)


def scrambled(path, rows):
    """Triples as a compressed CSV file with more columns, another order and a header."""
    lines = ["weight,to,from,kind", *(f"1,{t},{h},{r}" for h, r, t in rows)]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


READ = {
    "extend": ["extend", "MODEL", "FILE", "--out", "OUT"],
    "score": ["score", "MODEL", "FILE"],
    "predict": ["predict", "MODEL", "--queries", "FILE"],
    "evaluate": ["evaluate", "MODEL", "--test", "FILE", "--filter", "FILE"],
    "inspect": ["inspect", "FILE"],
    "import": [
        *("import", "arrays", "--model", "transe", "--vectors", "VECTORS", "--out", "OUT"),
        *("--relation-vectors", "STEPS", "--entities", "E", "--relations", "R", "--facts", "FILE"),
    ],
}
