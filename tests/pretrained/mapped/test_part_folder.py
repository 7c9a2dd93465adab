"""Facts in parts: every fact is where one of its entities is."""

import json

import numpy as np
import pytest

from sheafprop.data import write_triples
from sheafprop.data.partition import Partition
from sheafprop.errors import DataError, FormatError
from sheafprop.pretrained.mapped.part_folder import (
    is_part_folder,
    number_facts,
    read_part,
    read_parts,
    write_parts,
)

ROWS = [("é", "r", "b"), ("b", "s", "c"), ("c", "r", "c"), ("é", "r", "b"), ("d", "s", "é")]


def made(tmp_path, assignment, parts, **options):
    facts = tmp_path / "facts.tsv"
    write_triples(facts, ROWS)
    numbers = number_facts([facts], {})
    partition = Partition(np.array(assignment, np.int32), parts)
    out = tmp_path / "parts"
    write_parts(out, numbers, partition, inputs=[facts], options={}, method="a file", **options)
    return out


def triples(about, part):
    """The facts of a part in labels."""
    labels = part.labels.labels(np.arange(len(part.labels)))
    return sorted((labels[h], about["relations"][r], labels[t]) for h, r, t in part.facts.tolist())


def test_parts_have_the_facts_of_their_entities_and_who_owns_the_others(tmp_path):
    out = made(tmp_path, [0, 1, 1, 3], 4)
    about = read_parts(out)
    assert is_part_folder(out)
    assert not is_part_folder(tmp_path)
    assert (about["facts"], about["facts_read"], about["entities"]) == (4, 5, 4)
    assert about["relations"] == ["r", "s"]
    assert list(about["inputs"]) == [str(tmp_path / "facts.tsv")]
    distinct = sorted(set(ROWS))
    owners = dict(zip("ébcd", [0, 1, 1, 3], strict=True))
    for number in range(4):
        part = read_part(out, number)
        wanted = [f for f in distinct if number in (owners[f[0]], owners[f[2]])]
        assert triples(about, part) == wanted
        labels = part.labels.labels(np.arange(len(part.labels)))
        n = len(part.owned)
        assert [owners[label] for label in labels[:n]] == [number] * n
        assert [owners[label] for label in labels[n:]] == part.owner.tolist()
        assert [label for label in labels] == ["ébcd"[i] for i in (*part.owned, *part.remote)]
    assert len(read_part(out, 2).facts) == 0


def test_a_folder_is_replaced_on_request_only_and_if_it_is_one_of_parts(tmp_path):
    out = made(tmp_path, [0, 0, 0, 0], 1)
    with pytest.raises(ValueError, match="--overwrite"):
        made(tmp_path, [0, 1, 0, 1], 2)
    made(tmp_path, [0, 1, 0, 1], 2, overwrite=True)
    assert read_parts(out)["num_parts"] == 2
    (out / "mine.txt").touch()
    with pytest.raises(ValueError, match=r"mine\.txt"):
        made(tmp_path, [0, 0, 0, 0], 1, overwrite=True)


def test_what_is_no_folder_of_parts_is_refused(tmp_path):
    with pytest.raises(DataError, match="sheafprop partition"):
        read_parts(tmp_path)
    out = made(tmp_path, [0, 1, 1, 0], 2)
    with pytest.raises(DataError, match="part-00002' is missing"):
        read_part(out, 2)
    path = out / "part-00001" / "facts.bin"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(FormatError, match=r"facts\.bin"):
        read_part(out, 1)
    record = json.loads((out / "parts.json").read_text())
    (out / "parts.json").write_text(json.dumps({"library": record["library"]}))
    with pytest.raises(DataError, match="is not a folder of parts"):
        read_parts(out)
