import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from sheafprop.cli.import_model import _PARAMETERS
from sheafprop.data import write_triples
from sheafprop.kge import KGE_REGISTRY
from sheafprop.pretrained.sheaf_model import SheafModel
from tests.cli.commands import failing, output
from tests.pretrained.models import FACTS, sheaf_model


@pytest.mark.parametrize("name", ["transe", "rotate", "transr", "se"])
def test_safetensors_go_out_and_come_back(tmp_path, capsys, name):
    loaded = sheaf_model(name, dtype=torch.float32)
    loaded.save(tmp_path / "model")
    output(capsys, "export", tmp_path / "model", "--out", tmp_path / "v.safetensors")
    state = {k: v for k, v in loaded.kge.state_dict().items() if k != "node_emb.weight"}
    save_file(state, tmp_path / "relations.safetensors")
    (tmp_path / "relations.json").write_text(json.dumps(loaded.relations.labels))
    write_triples(tmp_path / "train.tsv", loaded.facts().to_numpy().tolist())
    words = ["import", "arrays", "--model", name, "--out", tmp_path / "again"]
    words += ["--vectors", tmp_path / "v.safetensors", "--facts", tmp_path / "train.tsv"]
    words += ["--entities", tmp_path / "v.safetensors.labels.json"]
    words += ["--relations", tmp_path / "relations.json"]
    for option, (parameter, _) in _PARAMETERS.items():
        if parameter in state:
            key = f"{tmp_path}/relations.safetensors:{parameter}"
            words += [f"--{option.replace('_', '-')}", key]
    output(capsys, *words)
    again = SheafModel.load(tmp_path / "again")
    assert torch.equal(again.vectors(), loaded.vectors())
    assert again.labels() == loaded.labels()
    assert torch.equal(again.extend(FACTS).vectors(), loaded.extend(FACTS).vectors())
    words[words.index("--vectors") + 1] = tmp_path / "relations.safetensors:nothing"
    assert "say which" in failing(capsys, *words, "--overwrite")
    (tmp_path / "v.safetensors").write_bytes(b"cut")
    words[words.index("--vectors") + 1] = tmp_path / "v.safetensors"
    assert "cannot be read as safetensors" in failing(capsys, *words, "--overwrite")
    several = loaded.extend(FACTS, propagation="selected")
    several.save(tmp_path / "several")
    output(capsys, "export", tmp_path / "several", "--out", tmp_path / "v.safetensors")
    assert "a vector for each entity" in failing(capsys, *words, "--overwrite")


@pytest.mark.parametrize("name", sorted(KGE_REGISTRY))
def test_every_model_goes_out_and_comes_back_by_plain_files(tmp_path, capsys, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    model = sheaf_model(name, squared=name == "rotate")
    model.save("model")
    words = ["--out", "v.safetensors", "--relations", "r.safetensors", "--facts", "f.tsv"]
    printed = output(capsys, "export", "model", *words).out.split()
    assert all(Path(name).is_file() for name in printed)
    assert len(printed) == 5
    words = ["import", "arrays", "--out", "again", "--vectors", "v.safetensors", "--facts", "f.tsv"]
    done = output(capsys, *words, "--relation-parameters", "r.safetensors")
    assert "are taken in turn" not in done.err  # the file says so
    again = SheafModel.load("again")
    assert again.describe_relations().equals(model.describe_relations())
    assert again.predict_tails("a1", "far").equals(model.predict_tails("a1", "far"))
    assert again.extend(FACTS).vectors().equal(model.extend(FACTS).vectors())
    for more in (["--model", name], ["--layout", "pairs"], ["--head-maps", "f.tsv"]):
        refused = [*words, "--overwrite", "--relation-parameters", "r.safetensors", *more]
        assert f"without {more[0]}" in failing(capsys, *refused)
    assert "without pyg" in failing(
        capsys, "import", "pyg", "x", "--out", "other", "--relation-parameters", "r.safetensors"
    )
