"""A model as plain files: what is written, and that all of it is or nothing."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from sheafprop.data import read_triples
from sheafprop.errors import DataError, FormatError
from sheafprop.files import StorageError, label_file
from sheafprop.pretrained.model_export import read_relation_file
from tests.pretrained.models import FACTS, sheaf_model


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_relations_and_facts_are_written_beside_vectors(tmp_path):
    model = sheaf_model("transr", relation_channels=3, p=1.0, squared=True).extend(FACTS)
    places = [tmp_path / name for name in ("v.npy", "r.safetensors", "f.tsv")]
    written = model.export(places[0], relations=places[1], facts=places[2])
    assert sorted(p.name for p in written) == names(tmp_path)
    assert set(written) == {*places, label_file(places[0]), label_file(places[1])}
    found = read_relation_file(places[1])
    assert (found.model, found.p, found.squared) == ("transr", 1.0, True)
    state = model.kge.state_dict()
    assert found.parameters.keys() == state.keys() - {"node_emb.weight"}
    assert all(torch.equal(value, state[key]) for key, value in found.parameters.items())
    assert json.loads(label_file(places[1]).read_text()) == list(model.relations.labels)
    assert read_triples(places[2]).tolist() == model.facts().to_numpy().tolist()
    assert len(np.load(places[0])) == model.num_entities


def test_a_model_without_relation_parameters_has_an_empty_file(tmp_path):
    sheaf_model("um").export(tmp_path / "v.npy", relations=tmp_path / "r.safetensors")
    assert read_relation_file(tmp_path / "r.safetensors").parameters == {}
    assert load_file(tmp_path / "r.safetensors") == {}


@pytest.mark.parametrize("bad", ["v.npy", "v.npy.labels.json"])
def test_files_that_are_one_are_refused(tmp_path, bad):
    with pytest.raises(DataError, match="files of their own"):
        sheaf_model("transe").export(tmp_path / "v.npy", facts=tmp_path / bad)
    assert names(tmp_path) == []


def test_all_files_are_written_or_none(tmp_path):
    model = sheaf_model("transe")
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    for words in ({"relations": blocked}, {"facts": blocked}):
        with pytest.raises(StorageError):
            model.export(tmp_path / "v.npy", **({"facts": tmp_path / "f.tsv"} | words))
    with pytest.raises(DataError, match="a format"):
        model.export(tmp_path / "v.xyz", relations=tmp_path / "r", facts=tmp_path / "f")
    odd = sheaf_model("transe").extend([("a\tb", "next", "a1")])
    with pytest.raises(DataError, match="tab"):
        odd.export(tmp_path / "v.npy", relations=tmp_path / "r", facts=tmp_path / "f")
    assert names(tmp_path) == ["blocked"]


def test_a_file_of_another_origin_is_refused(tmp_path):
    place = tmp_path / "r.safetensors"
    save_file({"rel_emb.weight": torch.ones(2, 3)}, place)
    with pytest.raises(FormatError, match="--relation-vectors"):
        read_relation_file(place)
    save_file({}, place, metadata={"sheafprop": '{"model": "transe"}'})
    with pytest.raises(FormatError, match="does not hold relations"):
        read_relation_file(place)
    place.write_bytes(b"cut")
    with pytest.raises(FormatError, match="does not hold relations"):
        read_relation_file(place)
    with pytest.raises(StorageError):
        read_relation_file(tmp_path / "missing")


def test_relations_and_facts_need_files_of_their_own(tmp_path):
    model, relations = sheaf_model("transe"), tmp_path / "r.safetensors"
    for facts in (relations, label_file(relations)):
        with pytest.raises(DataError, match="need files of their own"):
            model.export(tmp_path / "v.npy", relations=relations, facts=facts)
    assert names(tmp_path) == []
