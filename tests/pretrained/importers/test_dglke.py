"""Folders of DGL-KE, against its published formulas."""

import json
import math

import numpy as np
import pytest
import torch

from sheafprop.cli.main import main
from sheafprop.errors import FormatError
from sheafprop.pretrained.importers import import_dglke
from sheafprop.pretrained.sheaf_model import SheafModel

ENTITIES, RELATIONS = ["ann", "bob", "cleo", "dan", "eve"], ["knows", "likes"]
TRIPLES = torch.tensor([[0, 0, 1], [1, 1, 2], [4, 0, 3], [3, 1, 0], [2, 0, 4]])
FACTS = [(ENTITIES[h], RELATIONS[r], ENTITIES[t]) for h, r, t in TRIPLES.tolist()]
GAMMA, HIDDEN = 7.0, 4


def write(folder, model, *, hidden=HIDDEN, old=False, separator="\t"):
    """A folder as dglke_train leaves it; also the arrays."""
    random = np.random.default_rng(3)
    double = model == "RotatE"
    rows = random.standard_normal((5, hidden * (1 + double))).astype(np.float32)
    relations = random.standard_normal((2, hidden)).astype(np.float32)
    folder.mkdir(exist_ok=True)
    np.save(folder / f"toy_{model}_entity.npy", rows)
    np.save(folder / f"toy_{model}_relation.npy", relations)
    maps = None
    if model == "TransR":
        maps = random.standard_normal((2, hidden * hidden)).astype(np.float32)
        np.save(folder / f"toy_{model}projection.npy", maps)
    config = {"dataset": "toy", "gamma": GAMMA, "double_ent": double, "double_rel": False}
    if old:
        names = {"model": model, "emb_size": hidden, "emap_file": "entities.dict"}
    else:
        names = {"model_name": model, "hidden_dim": hidden, "emp_file": "entities.dict"}
    names |= {"rmap_file": "relations.dict", "data_path": str(folder / "data")}
    (folder / "config.json").write_text(json.dumps(config | names))
    (folder / "data" / "toy").mkdir(parents=True, exist_ok=True)
    order = [3, 0, 4, 1, 2]  # the lines need not be in the order of ids
    for name, labels in (("entities", ENTITIES), ("relations", RELATIONS)):
        ids = order if name == "entities" else [0, 1]
        lines = [f"{i}{separator}{labels[i]}\n" for i in ids]
        (folder / "data" / "toy" / f"{name}.dict").write_text("".join(lines))
    return rows, relations, maps


def published(model, rows, relations, maps):
    """Scores of TRIPLES by DGL-KE's score_fun.py, in NumPy."""
    head, relation, tail = (rows[TRIPLES[:, 0]], relations[TRIPLES[:, 1]], rows[TRIPLES[:, 2]])
    if model == "RotatE":
        emb_init = (GAMMA + 2.0) / HIDDEN
        phase = relation / (emb_init / math.pi)
        (re_head, im_head), (re_tail, im_tail) = (np.split(x, 2, axis=1) for x in (head, tail))
        re = re_head * np.cos(phase) - im_head * np.sin(phase) - re_tail
        im = re_head * np.sin(phase) + im_head * np.cos(phase) - im_tail
        return GAMMA - np.sqrt(re**2 + im**2).sum(1)
    if model == "TransR":
        projection = maps[TRIPLES[:, 1]].reshape(-1, HIDDEN, HIDDEN)
        head, tail = (np.einsum("ab,abc->ac", x, projection) for x in (head, tail))
        return GAMMA - np.abs(head + relation - tail).sum(1)
    order = 1 if model == "TransE_l1" else 2
    return GAMMA - np.linalg.norm(head + relation - tail, ord=order, axis=1)


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("model", ["TransE", "TransE_l1", "TransE_l2", "RotatE", "TransR"])
def test_scores_are_those_of_the_published_formulas(tmp_path, model, old):
    parts = write(tmp_path, model, old=old)
    found = import_dglke(tmp_path, facts=FACTS)
    assert list(found.entities.labels) == ENTITIES
    assert torch.equal(found.facts, TRIPLES)
    with torch.no_grad():
        scores = GAMMA + found.model(*TRIPLES.T).double().numpy()
    np.testing.assert_allclose(scores, published(model, *parts), rtol=2e-6, atol=2e-6)


def test_the_command_imports_and_the_model_predicts(tmp_path, capsys):
    write(tmp_path / "ckpts", "RotatE", separator=",")
    (tmp_path / "facts.tsv").write_text("".join("\t".join(fact) + "\n" for fact in FACTS[:2]))
    words = ["import", "dglke", str(tmp_path / "ckpts"), "--out", str(tmp_path / "model")]
    assert main([*words, "--facts", str(tmp_path / "facts.tsv")]) == 0
    shown = capsys.readouterr().err
    assert "the model scores by the 1-norm" in shown
    assert "2 of the 5 entities occur in no fact" in shown
    model = SheafModel.load(tmp_path / "model")
    assert sorted(model.labels()) == ["ann", "bob", "cleo"]
    assert len(model.predict_tails("ann", "likes", k=2)) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ckpts", "facts.tsv", "model"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "config.json").unlink(), r"config\.json' is missing"),
        (lambda f: (f / "config.json").write_text("{"), r"config\.json' is not JSON"),
        (lambda f: _edit(f, model_name="ComplEx"), "is of a ComplEx: only TransE"),
        (lambda f: _edit(f, hidden_dim=5), r"entity\.npy' should be vectors, \[5, 10\] .*\[5, 8\]"),
        (lambda f: _edit(f, gamma=None), "no entry 'gamma'"),
        (lambda f: (f / "toy_RotatE_relation.npy").unlink(), r"relation\.npy' is missing"),
        (
            lambda f: (f / "toy_RotatE_entity.npy").write_bytes(b"\x93NUMPY"),
            r"entity\.npy' is not a complete array",
        ),
        (
            lambda f: (f / "data" / "toy" / "entities.dict").unlink(),
            r"no file of ids and labels of entities .*--entities FILE",
        ),
        (
            lambda f: (f / "data" / "toy" / "relations.dict").write_text("0\tknows\n0\tlikes\n"),
            r"relations\.dict', line 2: expected a label and an id from 0 to 1, each",
        ),
        (
            lambda f: (f / "data" / "toy" / "entities.dict").write_text("0\tann\n1\tbob\n"),
            r"entity\.npy' should be vectors, \[2, 8\]",
        ),
    ],
)
def test_what_does_not_fit_is_named_with_its_file(tmp_path, change, message):
    write(tmp_path, "RotatE")
    change(tmp_path)
    with pytest.raises(FormatError, match=message):
        import_dglke(tmp_path)


def _edit(folder, **changes):
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def test_a_rotate_without_complex_entities_is_refused(tmp_path):
    write(tmp_path, "TransE")
    for kind in ("entity", "relation"):
        (tmp_path / f"toy_TransE_{kind}.npy").rename(tmp_path / f"toy_RotatE_{kind}.npy")
    _edit(tmp_path, model_name="RotatE")
    with pytest.raises(FormatError, match=r"as with --double_ent \(got 4 and 4\)"):
        import_dglke(tmp_path)
