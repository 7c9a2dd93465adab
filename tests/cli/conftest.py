"""A small model and facts of new entities, as files."""

import os

import numpy as np
import pytest

from sheafprop.data import write_triples
from sheafprop.pretrained.sheaf_model import SheafModel
from tests.cli.commands import READ
from tests.pretrained.models import FACTS, sheaf_model


@pytest.fixture
def model(tmp_path):
    return sheaf_model("rotate").save(tmp_path / "model")


@pytest.fixture
def facts(tmp_path):
    write_triples(tmp_path / "facts.tsv", FACTS)
    return tmp_path / "facts.tsv"


@pytest.fixture
def standard_input():
    """Puts bytes where a command reads standard input."""
    kept = os.dup(0)

    def give(content):
        read, write = os.pipe()
        os.write(write, content)
        os.close(write)
        os.dup2(read, 0)
        os.close(read)

    yield give
    os.dup2(kept, 0)
    os.close(kept)


@pytest.fixture
def command(tmp_path, model):
    loaded = SheafModel.load(model)
    np.save(tmp_path / "v.npy", np.random.default_rng(0).normal(size=(loaded.num_entities, 4)))
    np.save(tmp_path / "s.npy", np.zeros((len(loaded.relations), 4)))
    (tmp_path / "e.txt").write_text("\n".join(loaded.labels()))
    (tmp_path / "r.txt").write_text("\n".join(loaded.relations))
    named = {
        "MODEL": model,
        "OUT": tmp_path / "out",
        "VECTORS": tmp_path / "v.npy",
        "STEPS": tmp_path / "s.npy",
        "E": tmp_path / "e.txt",
        "R": tmp_path / "r.txt",
    }
    return lambda name, file, *more: (
        [named.get(w, file if w == "FILE" else w) for w in READ[name]] + [*more]
    )
