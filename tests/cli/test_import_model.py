import gzip

import numpy as np
import pandas as pd
import torch

from sheafprop.data import write_triples
from sheafprop.pretrained.sheaf_model import SheafModel
from tests.cli.commands import failing, output


def test_export_and_import_arrays(tmp_path, capsys, model):
    loaded = SheafModel.load(model)
    done = output(capsys, "export", model, "--out", tmp_path / "v.npy")
    assert len(done.out.splitlines()) == 2
    np.save(tmp_path / "phase.npy", loaded.kge.rel_emb.weight.detach().float().numpy())
    (tmp_path / "relations.txt").write_text("\n".join(loaded.relations.labels) + "\n")
    write_triples(tmp_path / "train.tsv", loaded.facts().to_numpy().tolist())
    words = ["--model", "rotate", "--vectors", tmp_path / "v.npy", "--relation-vectors"]
    words += [tmp_path / "phase.npy", "--entities", tmp_path / "v.npy.labels.json"]
    words += ["--relations", tmp_path / "relations.txt", "--facts", tmp_path / "train.tsv"]
    output(capsys, "import", "arrays", *words, "--out", tmp_path / "again")
    again = SheafModel.load(tmp_path / "again")
    assert again.labels() == loaded.labels()
    expected = loaded.predict_tails("a0", "next", 5)
    pd.testing.assert_frame_equal(again.predict_tails("a0", "next", 5), expected, atol=1e-5)
    assert "needs --vectors" in failing(
        capsys, "import", "arrays", "--out", tmp_path / "x", *words[6:]
    )
    printed = failing(capsys, "import", "arrays", "--out", tmp_path / "x", *words[:4], *words[6:])
    assert "{--vectors: [12, 8], --relation-vectors: [3, 4]} (got {--vectors: [12, 8]})" in printed


def test_import_pyg(tmp_path, capsys):
    from torch_geometric.nn.kge import TransE

    model = TransE(3, 1, 4)
    torch.save(model.state_dict(), tmp_path / "state.pt")
    (tmp_path / "e.txt").write_text("a\nb\nc\n")
    (tmp_path / "r.txt").write_text("r\n")
    words = ["import", "pyg", tmp_path / "state.pt", "--out", tmp_path / "m"]
    words += ["--entities", tmp_path / "e.txt", "--relations", tmp_path / "r.txt"]
    assert "give kge='transe' or kge='rotate' (--model)" in failing(capsys, *words)
    done = output(capsys, *words, "--model", "transe")
    assert "note: the model scores by the 1-norm" in done.err
    assert SheafModel.load(tmp_path / "m").extend([("n", "r", "a")]).report.solved_exactly == 1


def test_labels_of_imports_are_checked(tmp_path, capsys, command):
    write_triples(tmp_path / "f.tsv", [("a0", "next", "a1")])
    words = command("import", tmp_path / "f.tsv")
    labels = (tmp_path / "e.txt").read_text().split("\n")
    (tmp_path / "e.txt").write_bytes(gzip.compress("\n".join(labels).encode()))
    output(capsys, *words)
    (tmp_path / "e.txt").write_text("".join(f"{label}\t{i}\n" for i, label in enumerate(labels)))
    assert "e.txt, line 1: expected one label a line (got a tab" in failing(
        capsys, *words, "--overwrite"
    )
    (tmp_path / "e.txt").write_text("\r\n".join(labels) + "\r\n")
    output(capsys, *words, "--overwrite")
    assert "arrays needs --model" in failing(capsys, *words[:2], *words[4:], "--overwrite")
