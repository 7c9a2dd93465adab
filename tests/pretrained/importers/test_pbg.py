"""Checkpoints of PyTorch-BigGraph, against its published operators and comparators."""

import builtins
import json

import numpy as np
import pytest
import torch

from sheafprop.cli.main import main
from sheafprop.errors import DataError, FormatError
from sheafprop.pretrained.importers import import_pbg

h5py = pytest.importorskip("h5py")

WIDTH = 4
PEOPLE, PLACES, KINDS = ["ann", "bob", "cleo"], ["rome", "oslo"], ["knows", "lives_in", "likes"]
EDGES = torch.tensor([[0, 0, 1], [2, 0, 0], [1, 1, 3], [0, 1, 4], [2, 2, 2]])
PARTS = {("person", 0): PEOPLE[:2], ("person", 1): PEOPLE[2:], ("place", 0): PLACES}
PARTS |= {("place", 1): []}
SHAPES = {
    "none": {},
    "translation": {"translation": (WIDTH,)},
    "diagonal": {"diagonal": (WIDTH,)},
    "linear": {"linear_transformation": (WIDTH, WIDTH)},
    "affine": {"linear_transformation": (WIDTH, WIDTH), "translation": (WIDTH,)},
    "complex_diagonal": {"real": (WIDTH // 2,), "imag": (WIDTH // 2,)},
}


def write(folder, operator, *, dynamic=False, comparator="l2", **config):
    """A checkpoint of version 7; also its rows, and its parameters by side and relation."""
    random = np.random.default_rng(5)
    folder.mkdir(exist_ok=True)
    types = {"person": {"num_partitions": 2}, "place": {"num_partitions": 2}}
    ends = [("person", "person"), ("person", "place"), ("person", "person")]
    relations = [
        {"name": name, "lhs": lhs, "rhs": rhs, "operator": operator}
        for name, (lhs, rhs) in zip(KINDS, ends, strict=True)
    ]
    names = folder / "names"
    names.mkdir(exist_ok=True)
    if dynamic:
        relations = relations[:1]
        (names / "dynamic_rel_names.json").write_text(json.dumps(KINDS))
    plain = {"entities": types, "relations": relations, "dimension": WIDTH}
    plain |= {"comparator": comparator, "dynamic_relations": dynamic, "entity_path": str(names)}
    (folder / "config.json").write_text(json.dumps(plain | config))
    (folder / "checkpoint_version.txt").write_text("7\n")
    rows, shifts = [], {name: random.standard_normal(WIDTH) for name in types}
    for (kind, part), labels in PARTS.items():
        (names / f"entity_names_{kind}_{part}.json").write_text(json.dumps(labels))
        block = random.standard_normal((len(labels), WIDTH)).astype(np.float32)
        with h5py.File(folder / f"embeddings_{kind}_{part}.v7.h5", "w") as file:
            file["embeddings"] = block
        if "max_norm" in config:
            length = np.linalg.norm(block, axis=1, keepdims=True)
            block = np.where(
                length > config["max_norm"], block * config["max_norm"] / length, block
            )
        rows.append(block if dynamic else block + shifts[kind])
    found = {}
    with h5py.File(folder / "model.v7.h5", "w") as file:
        for side in ("lhs", "rhs"):
            drawn = [
                {name: random.standard_normal(shape) for name, shape in SHAPES[operator].items()}
                for _ in KINDS
            ]
            for parameters in drawn:
                if operator == "complex_diagonal":
                    length = np.hypot(parameters["real"], parameters["imag"])
                    for name in parameters:
                        parameters[name] = parameters[name] / length
            found[side] = drawn
            if dynamic:
                for name in SHAPES[operator]:
                    plural = name if name in ("real", "imag") else f"{name}s"
                    place = f"model/relations/0/operator/{side}/{plural}"
                    file[place] = np.stack([parameters[name] for parameters in drawn])
            elif side == "rhs":
                for index, parameters in enumerate(drawn):
                    for name, value in parameters.items():
                        file[f"model/relations/{index}/operator/rhs/{name}"] = value
        if not dynamic:
            for name, shift in shifts.items():
                file[f"model/entities/{name}/global_embedding"] = shift
    return np.concatenate(rows), found


def operate(operator, x, parameters):
    """PBG's operators.py, in NumPy."""
    if "linear_transformation" in parameters:
        x = parameters["linear_transformation"] @ x
    if "translation" in parameters:
        x = x + parameters["translation"]
    if "diagonal" in parameters:
        x = parameters["diagonal"] * x
    if operator == "complex_diagonal":
        (a, b), c, d = np.split(x, 2), parameters["real"], parameters["imag"]
        x = np.concatenate([a * c - b * d, a * d + b * c])
    return x


def published(operator, rows, found, side, squared):
    scores = []
    for head, relation, tail in EDGES.tolist():
        u, v = rows[head], rows[tail]
        if side == "lhs":
            u = operate(operator, u, found["lhs"][relation])
        else:
            v = operate(operator, v, found["rhs"][relation])
        distance = np.linalg.norm(u - v)
        scores.append(-(distance**2) if squared else -distance)
    return np.array(scores)


@pytest.mark.parametrize("comparator", ["l2", "squared_l2"])
@pytest.mark.parametrize(("dynamic", "side"), [(False, "rhs"), (True, "lhs"), (True, "rhs")])
@pytest.mark.parametrize("operator", SHAPES)
def test_scores_are_those_of_the_published_operators(tmp_path, operator, dynamic, side, comparator):
    rows, found = write(tmp_path, operator, dynamic=dynamic, comparator=comparator)
    stored = import_pbg(tmp_path, operator_side=side if dynamic else "lhs")
    assert list(stored.entities.labels) == PEOPLE + PLACES
    assert list(stored.relations.labels) == KINDS
    with torch.no_grad():
        scores = stored.model(*EDGES.T).double().numpy()
    expected = published(operator, rows, found, side, comparator == "squared_l2")
    np.testing.assert_allclose(scores, expected, rtol=3e-6, atol=3e-6)
    note = f"those of '{side}' are taken" in str(stored.metrics["import"]["notes"])
    assert note == dynamic


def test_rows_beyond_the_largest_norm_are_scaled_as_lookups_scale_them(tmp_path):
    rows, _ = write(tmp_path, "translation", max_norm=1.5)
    stored = import_pbg(tmp_path)
    found = stored.model.node_emb.weight.detach().numpy()
    np.testing.assert_allclose(found, rows, rtol=1e-5, atol=1e-6)


def test_the_command_takes_names_that_have_moved(tmp_path):
    write(tmp_path / "run", "translation")
    (tmp_path / "run" / "names").rename(tmp_path / "moved")
    words = ["import", "pbg", str(tmp_path / "run"), "--out", str(tmp_path / "model")]
    assert main(words) == 1
    assert not (tmp_path / "model").exists()
    assert main([*words, "--entities", str(tmp_path / "moved")]) == 0
    assert (tmp_path / "model" / "manifest.json").is_file()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            dict(comparator="dot"),
            "the comparator 'dot' is not a distance, so the model has no sheaf",
        ),
        (dict(bias=True), "scores have a bias"),
        (dict(dimension=None), "has no 'dimension'"),
        (dict(entities={"person": {"num_partitions": 1, "featurized": True}}), "sums of features"),
    ],
)
def test_what_has_no_sheaf_is_refused(tmp_path, options, message):
    write(tmp_path, "translation", **options)
    with pytest.raises(FormatError, match=message):
        import_pbg(tmp_path)


def test_complex_numbers_that_are_no_rotations_are_refused(tmp_path):
    write(tmp_path, "complex_diagonal")
    with h5py.File(tmp_path / "model.v7.h5", "r+") as file:
        file["model/relations/1/operator/rhs/real"][0] = 3.0
    with pytest.raises(FormatError, match=r"model\.v7\.h5'.*other moduli than one"):
        import_pbg(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "checkpoint_version.txt").unlink(), "names no version of a checkpoint"),
        (lambda f: (f / "checkpoint_version.txt").write_text("8"), r"model\.v8\.h5' is missing"),
        (
            lambda f: (f / "embeddings_place_0.v7.h5").write_bytes(b"\x89HDF"),
            r"embeddings_place_0\.v7\.h5' is not a complete HDF5 file",
        ),
        (
            lambda f: (f / "names" / "entity_names_place_0.json").write_text('["rome"]'),
            r"embeddings_place_0\.v7\.h5' should be .*\[1, 4\] \(got \[2, 4\]\)",
        ),
        (
            lambda f: (f / "names" / "entity_names_place_0.json").write_text("[1, 2]"),
            r"entity_names_place_0\.json' does not hold the labels",
        ),
    ],
)
def test_what_does_not_fit_is_named_with_its_file(tmp_path, change, message):
    write(tmp_path, "translation")
    change(tmp_path)
    with pytest.raises(FormatError, match=message):
        import_pbg(tmp_path)


def test_without_h5py_the_extra_is_named(tmp_path, monkeypatch):
    write(tmp_path, "translation")
    plain = builtins.__import__

    def without(name, *rest, **options):
        if name == "h5py":
            raise ImportError(name)
        return plain(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(DataError, match=r"pip install 'sheafprop\[pbg\]'"):
        import_pbg(tmp_path)
