import json

import pytest
import torch

from sheafprop.pretrained.sheaf_model import SheafModel
from tests.cli.commands import failing, output
from tests.pretrained.models import FACTS


@pytest.fixture
def grown(tmp_path, model):
    return SheafModel.load(model).extend(FACTS).save(tmp_path / "grown")


@pytest.mark.parametrize("mode", ["keep", "refine"])
def test_remove_gives_a_smaller_model(tmp_path, capsys, grown, mode):
    (tmp_path / "gone.txt").write_bytes(b"\xef\xbb\xbfa7\r\nn1\r\n\r\na7")
    words = ["remove", grown, "--entity", "a2", "--entity", "n2", "--mode", mode]
    words += ["--entities", tmp_path / "gone.txt", "--out", tmp_path / "smaller"]
    done = output(capsys, *words, "--report", tmp_path / "r.json")
    expected = SheafModel.load(grown).remove(["a2", "n2", "a7", "n1"], mode=mode)
    found = SheafModel.load(tmp_path / "smaller")
    assert found.labels() == expected.labels()
    assert torch.equal(found.vectors(), expected.vectors())
    assert found.facts().equals(expected.facts())
    assert done.out.strip() == str(tmp_path / "smaller")
    assert done.err == expected.report.summary() + "\n"
    assert done.err.startswith("4 entities removed, with ")
    assert json.loads((tmp_path / "r.json").read_text())["affected"] == ["n0"]
    assert "--overwrite" in failing(capsys, *words)


def test_refined_vectors_are_scaled_unless_switched_off(tmp_path, capsys, grown):
    words = ["remove", grown, "--entity", "a5", "--mode", "refine", "--out"]
    for more, unit in (([], True), (["--no-normalize-output"], False)):
        output(capsys, *words, tmp_path / str(unit), *more)
        lengths = torch.linalg.vector_norm(
            SheafModel.load(tmp_path / str(unit)).vectors(["n0", "n1"]), dim=-1
        )
        assert bool(((lengths - 1).abs() < 1e-5).all()) is unit


def test_what_cannot_be_removed_leaves_nothing(tmp_path, capsys, grown):
    (tmp_path / "empty.txt").write_text("\n\r\n")
    before = sorted(tmp_path.rglob("*"))
    words = ["remove", grown, "--out", tmp_path / "smaller"]
    assert "'N1' (did you mean 'n1'?)" in failing(capsys, *words, "--entity", "N1")
    assert "there is no entity" in failing(capsys, *words, "--entities", tmp_path / "empty.txt")
    assert "nowhere" in failing(capsys, *words, "--entities", tmp_path / "nowhere")
    trained = [word for i in range(12) for word in ("--entity", f"a{i}")]
    assert "no trained entity" in failing(capsys, *words, *trained)
    assert "take another" in failing(
        capsys, *words, "--entity", "n1", "--report", tmp_path / "smaller" / "r.json"
    )
    assert sorted(tmp_path.rglob("*")) == before
