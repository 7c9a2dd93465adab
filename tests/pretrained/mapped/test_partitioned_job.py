"""Vectors by ranks that own a part of the graph each, against those of one process."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from sheafprop.data import write_triples
from sheafprop.data.partition import Partition, hash_partition
from sheafprop.distributed import RankError, Ranks
from sheafprop.errors import DataError
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.pretrained.mapped.part_folder import number_facts, write_parts
from sheafprop.pretrained.mapped.partitioned_job import PartitionedJob
from sheafprop.pretrained.mapped.propagation_job import PropagationInput, PropagationJob
from sheafprop.pretrained.model_folder import open_model_folder
from tests.distributed.conftest import four_ranks, two_ranks
from tests.pretrained.models import ADRIFT, FACTS, sheaf_model

__all__ = ["four_ranks", "two_ranks"]
SETTINGS = PropagationSettings(iterations=4, num_random=2, seed=5)
ROWS = [fact for fact in (*FACTS, *ADRIFT) if fact[0] != fact[2]]
ROWS += [("n2", "skip", "n0"), ("k1", "next", "n0"), ("k2", "far", "k1"), ("n2", "next", "k2")]


def parts_of(tmp_path, size, *, rows=ROWS, partition=None):
    """A folder of parts of some facts, and the file of these."""
    facts, parts = tmp_path / "facts.tsv", tmp_path / f"parts-{size}"
    write_triples(facts, rows)
    numbers = number_facts([facts], {})
    partition = partition or hash_partition(len(numbers.labels), size)
    write_parts(parts, numbers, partition, inputs=[facts], options={}, method="hash")
    return facts, parts


def run_job(ranks, model, facts, parts, out, settings, memory=10**12, **options):
    """Runs a job on a rank; returns the error that it ended with."""
    state = open_model_folder(model)
    given = PropagationInput([facts], model / "manifest.json", {}, settings)
    try:
        job = PartitionedJob(state, given, parts, out, memory, ranks, shown=False, **options)
        job.run()
    except Exception as error:
        return type(error), str(error)
    return None


def share_columns(ranks, model, facts, out, settings):
    state = open_model_folder(model)
    given = PropagationInput([facts], model / "manifest.json", {}, settings)
    PropagationJob(state, given, out, 10**12, ranks=ranks, shown=False).run()


def vectors(folder):
    return torch.from_numpy(np.load(folder / "vectors.npy"))


def entities(folder):
    return [json.loads(line) for line in (folder / "entities.jsonl").read_text().splitlines()]


def one_process(model, facts, out, settings):
    given = PropagationInput([facts], model / "manifest.json", {}, settings)
    PropagationJob(open_model_folder(model), given, out, 10**12, shown=False).run()
    return vectors(out), entities(out)


CHANGES = [
    {},
    {"relation_weights": True, "start": "zeros"},
    {"normalization": "degree", "teleport": 0.3, "start": "random"},
    {"iterations": 200, "normalize_output": False, "start": "prototype"},
]


@pytest.mark.parametrize("name", ["rotate", "transe", "pairre"])
def test_vectors_and_their_order_are_those_of_one_process(tmp_path, two_ranks, four_ranks, name):
    model = sheaf_model(name).save(tmp_path / "model")
    for changes in CHANGES[: None if name == "rotate" else 2]:
        settings, case = replace(SETTINGS, **changes), "-".join(map(str, changes.values()))
        for pool in (two_ranks, four_ranks):
            facts, parts = (
                parts_of(tmp_path, pool.size)
                if not (tmp_path / f"parts-{pool.size}").exists()
                else (tmp_path / "facts.tsv", tmp_path / f"parts-{pool.size}")
            )
            wanted = one_process(model, facts, tmp_path / f"one-{case}-{pool.size}", settings)
            out = tmp_path / f"halo-{case}-{pool.size}"
            done = pool.run(run_job, model, facts, parts, out, settings)
            assert done == [None] * pool.size
            assert torch.equal(vectors(out), wanted[0])
            assert entities(out) == wanted[1]
            out = tmp_path / f"columns-{case}-{pool.size}"
            pool.run(share_columns, model, facts, out, settings)
            assert torch.equal(vectors(out), wanted[0])
            assert entities(out) == wanted[1]
            assert not list(tmp_path.glob(".*.partial"))
