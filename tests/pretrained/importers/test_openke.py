"""Checkpoints of OpenKE, against its published formulas (it does not install here)."""

import json
import math

import pytest
import torch
from torch.nn.functional import normalize

from sheafprop.cli.main import main
from sheafprop.errors import DataError, FormatError
from sheafprop.pretrained.importers import import_openke
from sheafprop.pretrained.sheaf_model import SheafModel
from tests.pretrained.importers.toy import (
    ENTITIES,
    FACTS,
    RELATIONS,
    TRIPLES,
    ends,
    rotate_distances,
    scores,
    tables,
)

MARGIN, DIM = 6.0, 4


def write_data(folder):
    """Files as OpenKE's data folders have them, heads and tails first."""
    folder.mkdir(exist_ok=True)
    for name, labels in (("entity2id", ENTITIES), ("relation2id", RELATIONS)):
        lines = [f"{label}\t{number}\n" for number, label in enumerate(labels)]
        (folder / f"{name}.txt").write_text(f"{len(labels)}\n" + "".join(reversed(lines)))
    rows = [f"{h} {t} {r}\n" for h, r, t in TRIPLES.tolist()]
    (folder / "train2id.txt").write_text(f"{len(rows)}\n" + "".join(rows))


def checkpoint(model):
    """A state dict as each model has it, and its tables."""
    vectors, rows = tables(DIM * (2 if model == "RotatE" else 1), DIM)
    state = {"ent_embeddings.weight": vectors, "rel_embeddings.weight": rows}
    state |= {"zero_const": torch.zeros(1), "pi_const": torch.tensor([math.pi])}
    if model == "RotatE":
        state["rel_embedding_range"] = torch.tensor([(MARGIN + 2) / DIM])
        state["ent_embedding_range"] = torch.tensor([(MARGIN + 2) / (2 * DIM)])
        state["margin"] = torch.tensor([MARGIN])
    if model == "TransR":
        state["transfer_matrix.weight"] = tables(DIM, 3 * DIM)[1][:, : 3 * DIM]
        state["rel_embeddings.weight"] = rows[:, :3]
    return state


@pytest.mark.parametrize("saved", ["checkpoint", "strategy", "json"])
def test_rotate_has_its_published_scores(tmp_path, saved):
    write_data(tmp_path)
    state = checkpoint("RotatE")
    if saved == "json":
        lists = {key: value.tolist() for key, value in state.items()}
        (tmp_path / "x").write_text(json.dumps(lists))
    else:
        prefix = "model." if saved == "strategy" else ""
        torch.save({prefix + key: value for key, value in state.items()}, tmp_path / "x")
    with pytest.warns(UserWarning, match="1-norm"):
        stored = import_openke(tmp_path / "x")
    epsilon = (MARGIN + 2) / DIM
    phases = state["rel_embeddings.weight"] / (epsilon / math.pi)
    expected = -rotate_distances(state["ent_embeddings.weight"], phases).sum(1)
    torch.testing.assert_close(scores(stored), expected)
    model = SheafModel(stored)
    assert model.labels() == tuple(ENTITIES)
    assert model.facts().to_numpy().tolist() == [list(fact) for fact in FACTS]


@pytest.mark.parametrize("p", [1.0, 2.0])
@pytest.mark.parametrize("normalized", [True, False])
def test_transe_has_its_published_scores(tmp_path, p, normalized):
    write_data(tmp_path / "data")
    state = checkpoint("TransE")
    torch.save(state, tmp_path / "transe.ckpt")
    options = {} if p == 1.0 and normalized else {"p": p, "normalized": normalized}
    stored = import_openke(
        tmp_path / "transe.ckpt", data=tmp_path / "data", model="transe", **options
    )
    head, relation, tail = ends(state["ent_embeddings.weight"], state["rel_embeddings.weight"])
    if normalized:
        head, relation, tail = (normalize(x, 2, -1) for x in (head, relation, tail))
    torch.testing.assert_close(scores(stored), -torch.norm(head + relation - tail, p, -1))


def test_transr_without_scaling_has_its_published_scores(tmp_path):
    write_data(tmp_path)
    state = checkpoint("TransR")
    torch.save(state, tmp_path / "x")
    stored = import_openke(tmp_path / "x", p=2.0, normalized=False)
    head, relation, tail = ends(state["ent_embeddings.weight"], state["rel_embeddings.weight"])
    maps = state["transfer_matrix.weight"][TRIPLES[:, 1]].view(-1, DIM, 3)
    head, tail = (torch.matmul(x.view(-1, 1, DIM), maps).view(-1, 3) for x in (head, tail))
    torch.testing.assert_close(scores(stored), -torch.norm(head + relation - tail, 2, -1))
    with pytest.warns(UserWarning, match="scales projected vectors to length one"):
        import_openke(tmp_path / "x")


def test_the_command_takes_a_checkpoint_and_its_data(tmp_path, capsys):
    write_data(tmp_path / "data")
    torch.save(checkpoint("TransE"), tmp_path / "x")
    words = ["import", "openke", str(tmp_path / "x"), "--data", str(tmp_path / "data")]
    words += ["--out", str(tmp_path / "model")]
    assert main(words) == 1
    assert "--model transe" in capsys.readouterr().err
    assert main([*words, "--model", "transe", "-p", "2", "--norm-flag", "no"]) == 0
    assert "stores neither" not in capsys.readouterr().err
    assert SheafModel.load(tmp_path / "model").labels() == tuple(ENTITIES)


def test_what_cannot_be_imported_is_named(tmp_path):
    write_data(tmp_path)
    state = checkpoint("TransE")
    place = tmp_path / "x"
    torch.save(state | {"norm_vector.weight": torch.zeros(2, DIM)}, place)
    with pytest.raises(FormatError, match="holds a TransH: only TransE, RotatE and TransR"):
        import_openke(place)
    torch.save(checkpoint("RotatE"), place)
    with pytest.raises(DataError, match="holds no transe of OpenKE, but a rotate"):
        import_openke(place, model="transe")
    with pytest.raises(ValueError, match="has the 1-norm"):
        import_openke(place, p=2.0)
    torch.save({**state, "ent_embeddings.weight": torch.zeros(4, DIM)}, place)
    with pytest.raises(FormatError, match=r"entity2id\.txt, \[5, any\] \(got \[4, 4\]\)"):
        import_openke(place, model="transe")
    place.write_text("{")
    with pytest.raises(FormatError, match="not a JSON file of parameters"):
        import_openke(place)
    torch.save([1], place)
    with pytest.raises(FormatError, match="holds no parameters of OpenKE"):
        import_openke(place)
    with pytest.raises(FormatError, match="missing: give the file that OpenKE saved"):
        import_openke(tmp_path / "none")
    torch.save(state, place)
    with pytest.raises(FormatError, match="--data FOLDER"):
        import_openke(place, model="transe", data=tmp_path / "none")
