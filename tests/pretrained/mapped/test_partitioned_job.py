"""Vectors by ranks that own a part of the graph each, against those of one process."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from sheafprop.data import write_triples
from sheafprop.data.partition import Partition, hash_partition
from sheafprop.distributed import Ranks
from sheafprop.errors import DataError
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.nn import SheafPropagation
from sheafprop.pretrained.mapped import partitioned_job
from sheafprop.pretrained.mapped.part_folder import number_facts, write_parts
from sheafprop.pretrained.mapped.partitioned_job import PartitionedJob
from sheafprop.pretrained.mapped.propagation_job import PropagationInput, PropagationJob
from sheafprop.pretrained.model_folder import open_model_folder
from tests.distributed.rank_pool import pool
from tests.pretrained.models import ADRIFT, FACTS, sheaf_model

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


def run_job(ranks, model, facts, parts, out, settings, unknown="error", memory=10**12):
    """Runs a job on a rank; returns the error that it ended with."""
    state = open_model_folder(model)
    given = PropagationInput([facts], model / "manifest.json", {}, settings, unknown)
    try:
        job = PartitionedJob(state, given, parts, out, memory, ranks, shown=False)
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


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Parts of the facts for 2 and 4 ranks."""
    root = tmp_path_factory.mktemp("parts")
    for size in (2, 4):
        parts_of(root, size)
    return root


@pytest.mark.parametrize("name", ["rotate", "transe", "pairre"])
def test_vectors_and_their_order_are_those_of_one_process(tmp_path, root, name):
    model, facts = sheaf_model(name).save(tmp_path / "model"), root / "facts.tsv"
    for i, changes in enumerate(CHANGES[: None if name == "rotate" else 2]):
        settings = replace(SETTINGS, **changes)
        wanted = one_process(model, facts, tmp_path / f"one-{i}", settings)
        for size in (2, 4) if i == 0 else (4,) if i % 2 else (2,):
            out = tmp_path / f"halo-{i}-{size}"
            done = pool(size).run(run_job, model, facts, root / f"parts-{size}", out, settings)
            assert done == [None] * size
            assert torch.equal(vectors(out), wanted[0])
            assert entities(out) == wanted[1]
            out = tmp_path / f"columns-{i}-{size}"
            pool(size).run(share_columns, model, facts, out, settings)
            assert torch.equal(vectors(out), wanted[0])
            assert entities(out) == wanted[1]
    assert not list(tmp_path.glob(".*.partial"))


@pytest.mark.parametrize("name", ["transr", "se"])
def test_maps_that_mix_columns_are_carried_as_well(tmp_path, root, name):
    model, out = sheaf_model(name), tmp_path / "out"
    folder = model.save(tmp_path / "model")
    done = pool(2).run(run_job, folder, root / "facts.tsv", root / "parts-2", out, SETTINGS)
    assert done == [None] * 2
    larger = model.extend(ROWS, propagation=SETTINGS)
    new = larger.labels()[model.num_entities :]
    assert [row["label"] for row in entities(out)] == list(new)
    assert torch.allclose(vectors(out), larger.vectors(new), atol=1e-10)


def narrow(ranks, *given):
    """Runs a job with the narrowest blocks that hold three columns."""
    split = partitioned_job.split_columns
    partitioned_job.split_columns = lambda *size: split(*size[:2], 3, *size[3:])
    try:
        return run_job(ranks, *given)
    finally:
        partitioned_job.split_columns = split


def test_blocks_of_columns_keep_quaternions_whole(tmp_path, root):
    model, out = sheaf_model("su2e"), tmp_path / "out"
    given = model.save(tmp_path / "m"), root / "facts.tsv", root / "parts-2", out, SETTINGS
    assert pool(2).run(narrow, *given) == [None] * 2
    larger = model.extend(ROWS, propagation=SETTINGS)
    new = [row["label"] for row in entities(out)]
    assert torch.allclose(vectors(out), larger.vectors(new), atol=1e-10)


def interrupted(ranks, calls, *given):
    """Runs a job whose ranks all end before a block; returns the error and the blocks begun."""
    run, begun = SheafPropagation.run_free, []

    def counted(*arguments, **named):
        begun.append(named["columns"])
        if len(begun) > calls:
            raise OSError("the machine goes down")
        return run(*arguments, **named)

    SheafPropagation.run_free = counted
    split = partitioned_job.split_columns
    partitioned_job.split_columns = lambda *size: split(*size[:2], 4, *size[3:])
    try:
        return run_job(ranks, *given), len(begun)
    finally:
        SheafPropagation.run_free, partitioned_job.split_columns = run, split


def test_an_interrupted_job_is_no_result_and_goes_on_with_the_block_it_was_at(tmp_path, root):
    model, facts, out = (
        sheaf_model("rotate").save(tmp_path / "m"),
        root / "facts.tsv",
        tmp_path / "v",
    )
    given = model, facts, root / "parts-2", out, SETTINGS
    for error, begun in pool(2).run(interrupted, 2, *given):
        assert error[1] == "the machine goes down"
        assert begun == 3
    assert not out.exists()
    assert (tmp_path / ".v.partial").is_dir()
    # A result that was changed is made again, by all ranks.
    path = tmp_path / ".v.partial" / "rank-00001" / "result-0001.bin"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    other = replace(SETTINGS, iterations=5)
    for error in pool(2).run(run_job, *given[:-1], other):
        assert "holds work with another 'settings'" in error[1]
    found = pool(2).run(interrupted, 9, *given)
    assert found == [(None, 2)] * 2
    assert torch.equal(vectors(out), one_process(model, facts, tmp_path / "one", SETTINGS)[0])
    assert not (tmp_path / ".v.partial").exists()


def test_what_does_not_go_together_is_refused_by_all_and_changes_nothing(tmp_path, root):
    model, facts = sheaf_model("rotate").save(tmp_path / "model"), root / "facts.tsv"
    out = tmp_path / "out"

    def messages(size, parts, *options):
        return pool(size).run(run_job, model, facts, parts, out, SETTINGS, *options)

    for error in messages(2, root / "parts-4"):
        assert "has 4 parts (got 2 ranks" in error[1]
    known = [fact for fact in FACTS if fact[0][0] == fact[2][0] == "a"]
    (tmp_path / "known").mkdir()
    for error in messages(2, parts_of(tmp_path / "known", 2, rows=known)[1]):
        assert "nothing to propagate to" in error[1]
    odd = [*ROWS, ("n0", "odd", "n7"), ("n0", "odd", "a1")]
    facts, parts = parts_of(tmp_path, 2, rows=odd)
    for _, text in messages(2, parts):
        assert "1 relation is unknown to the model" in text
        assert "'odd'" in text
    for _, text in messages(2, parts, "drop", 1000):
        assert "the memory does not do" in text
    assert not out.exists()
    assert messages(2, parts, "drop") == [None, None]
    assert torch.equal(
        vectors(out), one_process(model, root / "facts.tsv", tmp_path / "1", SETTINGS)[0]
    )
    for _, text in messages(2, parts, "drop"):
        assert "--overwrite" in text


def test_ranks_without_entities_or_new_ones_take_part(tmp_path):
    model = sheaf_model("rotate").save(tmp_path / "model")
    facts, _ = parts_of(tmp_path, 1)
    numbers = number_facts([facts], {})
    labels = numbers.labels.labels(np.arange(len(numbers.labels)))
    # Rank 0 has the known entities, rank 2 nothing.
    at = np.array([0 if label[0] == "a" else 1 + 2 * (label < "n1") for label in labels], np.int32)
    _, parts = parts_of(tmp_path, 4, partition=Partition(at, 4))
    out = tmp_path / "out"
    assert pool(4).run(run_job, model, facts, parts, out, SETTINGS) == [None] * 4
    assert torch.equal(vectors(out), one_process(model, facts, tmp_path / "1", SETTINGS)[0])


def test_one_process_takes_one_part(tmp_path):
    model = sheaf_model("rotate").save(tmp_path / "model")
    facts, parts = parts_of(tmp_path, 1)
    given = PropagationInput([facts], model / "manifest.json", {}, SETTINGS)
    job = PartitionedJob(
        open_model_folder(model), given, parts, tmp_path / "out", 10**12, Ranks.alone(), shown=False
    )
    assert "in 1 part, 1 block of columns" in job.estimate()
    job.run()
    wanted = one_process(model, facts, tmp_path / "one", SETTINGS)
    assert torch.equal(vectors(tmp_path / "out"), wanted[0])
    ranks = Ranks.alone()
    ranks.size = 0
    with pytest.raises(DataError, match=r"has 1 part \(got 0 ranks"):
        PartitionedJob(open_model_folder(model), given, parts, tmp_path / "x", 1, ranks)
