"""Models that PyKEEN has saved, against the scores that PyKEEN itself gives."""

import gzip
import pickle
import shutil
import sys
import warnings
import zipfile

import pytest
import torch

from sheafprop.errors import FormatError
from sheafprop.pretrained import importers
from sheafprop.pretrained.importers.inert_unpickler import Inert, load_inert, state_of
from sheafprop.pretrained.importers.pykeen import import_pykeen

pykeen = pytest.importorskip("pykeen")

LABELS = ["plain", 'with "quotes"', "New York, NY", "NA", "1.0", "é"]
TRIPLES = [(LABELS[i % 6], ("likes", "knows")[i % 2], LABELS[(i * 5 + 1) % 6]) for i in range(12)]


def trained(name, inverse=False, **arguments):
    import numpy as np
    from pykeen.models import model_resolver
    from pykeen.triples import TriplesFactory

    factory = TriplesFactory.from_labeled_triples(
        np.array(TRIPLES, dtype=str), create_inverse_triples=inverse
    )
    torch.manual_seed(0)
    model = model_resolver.make(
        name, triples_factory=factory, embedding_dim=6, random_seed=0, **arguments
    )
    model.post_parameter_update()
    return model.eval(), factory


def saved(folder, model, factory):
    # What PipelineResult.save_to_directory writes.
    folder.mkdir()
    torch.save(model, folder / "trained_model.pkl")
    factory.to_path_binary(folder / "training_triples")
    return folder


CASES = [
    (name, {"scoring_fct_norm": p, "power_norm": power, **more})
    for name, more in (
        ("transe", {}),
        ("transr", {"relation_dim": 4}),
        ("se", {}),
    )
    for p, power in ((1, False), (2, False), (2, True))
] + [("rotate", {})]


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize(("name", "arguments"), CASES)
def test_scores_are_those_of_pykeen(tmp_path, name, arguments, inverse):
    try:
        model, factory = trained(name, inverse, **arguments)
    except TypeError:  # SE has no such options
        model, factory = trained(name, inverse)
        model.interaction.p = arguments["scoring_fct_norm"]
        model.interaction.power_norm = arguments["power_norm"]
    model.interaction.max_projection_norm = 100.0
    folder = saved(tmp_path / "run", model, factory)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", DeprecationWarning)  # of libraries
        stored = import_pykeen(folder)
    printed = " ".join(str(w.message) for w in caught)
    assert "taken in turn" not in printed  # the layout is known
    assert ("1-norm" in printed) == (model.interaction.p == 1)
    assert set(stored.entities.labels) == set(LABELS)
    triples = factory.mapped_triples
    assert torch.equal(stored.facts, triples)
    labels = [
        (stored.entities.labels[h], stored.relations.labels[r], stored.entities.labels[t])
        for h, r, t in triples.tolist()
    ]
    assert sorted(labels) == sorted(set(TRIPLES))
    every = torch.cartesian_prod(torch.arange(6), torch.arange(2), torch.arange(6))
    expected = model.predict_hrt(every.clone()).detach().squeeze(1)
    head, relation, tail = every.unbind(1)
    got = stored.model.score_triples(stored.model.entity_vectors(), head, relation, tail)
    assert torch.allclose(got.detach(), expected, atol=1e-5)


def test_the_clamp_of_transr_is_reported(tmp_path):
    model, factory = trained("transr", relation_dim=4, scoring_fct_norm=2)
    model.interaction.max_projection_norm = 0.01
    with pytest.warns(UserWarning, match="clamps projected vectors"):
        stored = import_pykeen(saved(tmp_path / "run", model, factory))
    assert "clamps" in stored.metrics["import"]["notes"][0]


def test_nothing_of_the_file_is_imported_or_called(tmp_path, monkeypatch):
    folder = saved(tmp_path / "run", *trained("rotate"))

    class Bomb:
        def __reduce__(self):
            import os

            return os.mkdir, (str(tmp_path / "exploded"),)

    model, _ = trained("rotate")
    model.bomb = Bomb()
    torch.save(model, folder / "trained_model.pkl")
    before = set(sys.modules)
    monkeypatch.setattr(importers.pykeen, "load_inert", load_inert)
    import_pykeen(folder)
    assert not (tmp_path / "exploded").exists()
    assert set(sys.modules) == before
    inert = load_inert(folder / "trained_model.pkl")
    assert isinstance(inert, Inert)
    assert inert.origin == "pykeen.models.unimodal.rotate.RotatE"
    assert state_of(inert).keys() == model.state_dict().keys()


def test_other_models_are_refused_by_name(tmp_path):
    with pytest.raises(FormatError, match="holds a DistMult: only TransE, RotatE, TransR, SE"):
        import_pykeen(saved(tmp_path / "run", *trained("distmult")))


@pytest.mark.parametrize(
    "name",
    [
        "trained_model.pkl",
        "training_triples/entity_to_id.tsv.gz",
        "training_triples/relation_to_id.tsv.gz",
        "training_triples/numeric_triples.tsv.gz",
    ],
)
def test_damaged_files_are_named(tmp_path, name):
    folder = saved(tmp_path / "run", *trained("transe", scoring_fct_norm=2))
    content = (folder / name).read_bytes()
    for keep in (0, 10, len(content) // 2, len(content) - 1):
        (folder / name).write_bytes(content[:keep])
        with pytest.raises(FormatError, match=name.split("/")[-1]):
            import_pykeen(folder)
    (folder / name).write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(FormatError, match=name.split("/")[-1]):
        import_pykeen(folder)


def test_cut_tensors_are_refused(tmp_path):
    folder = saved(tmp_path / "run", *trained("transe", scoring_fct_norm=2))
    file = folder / "trained_model.pkl"
    shutil.move(file, tmp_path / "whole")
    with zipfile.ZipFile(tmp_path / "whole") as old, zipfile.ZipFile(file, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, content[:8] if "/data/" in name else content)
    with pytest.raises(FormatError, match="cut off"):
        import_pykeen(folder)


def test_labels_that_skip_a_number_are_refused(tmp_path):
    folder = saved(tmp_path / "run", *trained("transe", scoring_fct_norm=2))
    file = folder / "training_triples" / "entity_to_id.tsv.gz"
    file.write_bytes(gzip.compress(gzip.decompress(file.read_bytes()).replace(b"\n5\t", b"\n9\t")))
    with pytest.raises(FormatError, match="from 0 on"):
        import_pykeen(folder)
