import json
from dataclasses import replace

import pytest
import torch

from sheafprop.pretrained.sheaf_model import SheafModel
from tests.cli.commands import failing, output, table
from tests.pretrained.models import FACTS, sheaf_model, stored_model


def test_json_has_all_digits_and_nothing_but_json(tmp_path, capsys, facts):
    grown = sheaf_model("transe").extend(FACTS)
    grown.save(tmp_path / "grown")
    words = ["explain", tmp_path / "grown", "--entity", "a1", "--format", "json"]
    rows = json.loads(output(capsys, *words).out)
    assert [row["energy"] for row in rows] == grown.explain("a1")["energy"].tolist()
    # A relation that no fact was trained for has no usual energy to compare with.
    base = stored_model("transe")
    stored = replace(base, residual_variance=torch.zeros_like(base.residual_variance))
    SheafModel(stored).save(tmp_path / "bare")
    words[1:4] = [tmp_path / "bare", "--entity", "a0"]
    rows = json.loads(output(capsys, *words).out, parse_constant=pytest.fail)
    assert {row["ratio"] for row in rows} == {None}


def test_explain(tmp_path, capsys, model):
    got = table(output(capsys, "explain", model, "--entity", "a0").out)
    assert list(got["energy"]) == sorted(got["energy"], reverse=True)
    got = table(output(capsys, "explain", model, "--triple", "a0", "next", "a5").out)
    assert list(got.iloc[0][:3]) == ["a0", "next", "a5"]
    base = stored_model("transe")
    short = table(output(capsys, "explain", model, "--triple", "a0", "next", "a5", "-k", 2).out)
    assert short.equals(got[:3])
    assert "'k' must be" in failing(capsys, "explain", model, "--entity", "a0", "-k", 0)
    SheafModel(replace(base, facts=base.facts[:0])).save(tmp_path / "bare")
    done = output(capsys, "explain", tmp_path / "bare", "--entity", "a0")
    assert len(done.out.splitlines()) == 1
    assert "no fact of 'a0'" in done.err
