import numpy as np
import pytest
import torch

from sheafprop.errors import FormatError
from sheafprop.files import StorageError
from sheafprop.pretrained.importers import tables
from sheafprop.pretrained.importers.arrays import import_arrays
from sheafprop.pretrained.importers.tables import import_table, row_blocks

ENTITIES, RELATIONS = [f"e{i}" for i in range(9)], ["r", "s"]
FACTS = [("e1", "r", "e4"), ("e4", "s", "e7"), ("e7", "r", "e1"), ("e2", "s", "e2")]


def arrays(width=6, seed=0):
    random = np.random.default_rng(seed)
    rows = random.standard_normal((len(ENTITIES), width)).astype(np.float32)
    relations = torch.from_numpy(random.standard_normal((2, width)).astype(np.float32))
    return rows, {"rel_emb.weight": relations}


@pytest.mark.parametrize("facts", [None, FACTS])
@pytest.mark.parametrize("keep_unused", [False, True])
def test_a_table_in_blocks_is_the_model_of_the_array(tmp_path, monkeypatch, facts, keep_unused):
    rows, parameters = arrays()
    common = dict(entities=ENTITIES, relations=RELATIONS, parameters=parameters)
    whole = import_arrays("transe", vectors=rows, facts=facts, keep_unused=True, **common)
    monkeypatch.setattr(tables, "BLOCK_BYTES", 4 * 6 * 2)  # two rows
    blocks = list(row_blocks(rows))
    assert [len(numbers) for numbers, _ in blocks] == [2, 2, 2, 2, 1]
    found = import_table(
        "transe",
        blocks=blocks[::-1],
        width=6,
        facts=facts,
        keep_unused=keep_unused,
        scratch=tmp_path,
        **common,
    )
    assert not list(tmp_path.iterdir())  # the file has no name
    left_out = facts is not None and not keep_unused
    labels = ["e1", "e2", "e4", "e7"] if left_out else ENTITIES
    assert list(found.entities.labels) == labels
    index = torch.tensor([ENTITIES.index(label) for label in labels])
    assert torch.equal(found.model.node_emb.weight, whole.model.node_emb.weight[index])
    named = [
        [found.entities.labels[h], found.relations.labels[r], found.entities.labels[t]]
        for h, r, t in found.facts.tolist()
    ]
    assert named == [list(fact) for fact in facts or []]
    note = "5 of the 9 entities occur in no fact" in str(found.metrics["import"]["notes"])
    assert note == left_out


def test_halves_become_pairs():
    rows, _ = arrays(width=8)
    phases = {"rel_emb.weight": torch.zeros(2, 4)}
    common = dict(entities=ENTITIES, relations=RELATIONS, parameters=phases)
    whole = import_arrays("rotate", vectors=rows, layout="halves", **common)
    found = import_table("rotate", blocks=row_blocks(rows), width=8, **common)
    assert torch.equal(found.model.entity_vectors(), whole.model.entity_vectors())


def test_rows_that_are_missing_or_too_many_are_named():
    rows, parameters = arrays()
    common = dict(entities=ENTITIES, relations=RELATIONS, parameters=parameters, width=6)
    with pytest.raises(FormatError, match=r"2 entities of 9 have no row in .* number 7"):
        import_table("transe", blocks=row_blocks(rows[:7]), **common)
    with pytest.raises(FormatError, match="rows for entities 3 to 11, and labels for 0 to 8"):
        import_table("transe", blocks=row_blocks(rows, first=3), **common)


def test_a_full_disk_is_told_before_anything_is_copied(tmp_path, monkeypatch):
    _, parameters = arrays()

    def fail(handle, offset, size):
        raise OSError(28, "No space left on device")

    def blocks():
        raise AssertionError("a block was read")
        yield

    monkeypatch.setattr("os.posix_fallocate", fail)
    with pytest.raises(StorageError, match="the disk is full"):
        import_table(
            "transe",
            entities=ENTITIES,
            relations=RELATIONS,
            parameters=parameters,
            width=6,
            blocks=blocks(),
            scratch=tmp_path,
        )
    assert not list(tmp_path.iterdir())
