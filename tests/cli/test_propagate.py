import contextlib
import io
import json
import os
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from sheafprop.cli.main import main
from sheafprop.data import write_triples
from sheafprop.nn import SheafPropagation
from sheafprop.pretrained.mapped import cost_estimate
from sheafprop.pretrained.model_state import ModelState
from sheafprop.pretrained.sheaf_model import SheafModel
from tests.cli.commands import failing, output, scrambled
from tests.distributed.rank_pool import pool, start
from tests.pretrained.models import FACTS, sheaf_model


def vectors(folder):
    return torch.from_numpy(np.load(folder / "vectors.npy"))


def expected(model, facts, **changes):
    loaded = SheafModel.load(model)
    from sheafprop.inductive.propagation_settings import PropagationSettings

    settings = PropagationSettings(**(loaded.settings | changes))
    larger = loaded.extend(facts, propagation=settings)
    return larger.vectors(larger.labels()[loaded.num_entities :])


def test_propagate_gives_what_extend_gives(tmp_path, capsys, model, facts):
    words = ["propagate", facts, "--model", model, "--out", tmp_path / "v"]
    done = output(capsys, *words)
    assert done.out.strip() == str(tmp_path / "v")
    assert "11 facts, 3 new and 5 known entities" in done.err
    assert "estimated: memory" in done.err
    assert torch.allclose(vectors(tmp_path / "v"), expected(model, FACTS), atol=1e-12)
    assert "--overwrite" in failing(capsys, *words)
    output(capsys, *words, "--overwrite", "--iterations", "2", "--step-size", "0.5")
    found = vectors(tmp_path / "v")
    assert torch.allclose(found, expected(model, FACTS, iterations=2, step_size=0.5), atol=1e-12)
    manifest = json.loads((tmp_path / "v" / "manifest.json").read_text())
    assert manifest["settings"]["iterations"] == 2
    assert [path.name for path in tmp_path.glob(".v*")] == []


def test_a_mapped_model_gives_the_same_and_is_not_read_whole(
    tmp_path, capsys, monkeypatch, model, facts
):
    SheafModel.load(model).save(tmp_path / "mapped", layout="mapped")
    wanted = expected(model, FACTS)
    whole = lambda *_: pytest.fail("the model is read whole")  # noqa: E731
    monkeypatch.setattr(ModelState, "from_stored", whole)
    monkeypatch.setattr(ModelState, "stored", whole)
    words = ["propagate", facts, "--model", tmp_path / "mapped"]
    output(capsys, *words, "--out", tmp_path / "v")
    assert torch.allclose(vectors(tmp_path / "v"), wanted, atol=1e-12)


def test_files_are_read_with_the_options_of_other_commands(tmp_path, capsys, model):
    path = scrambled(tmp_path / "x.csv.gz", FACTS)
    words = ["--columns", "from,kind,to", "--start", "zeros", "--no-normalize-output"]
    output(capsys, "propagate", path, "--model", model, "--out", tmp_path / "v", *words)
    wanted = expected(model, FACTS, start="zeros", normalize_output=False)
    assert torch.allclose(vectors(tmp_path / "v"), wanted, atol=1e-12)


def test_an_estimate_writes_nothing(tmp_path, capsys, model, facts):
    before = sorted(tmp_path.rglob("*"))
    done = output(capsys, "propagate", facts, "--model", model, "--estimate", "--memory", "4GB")
    assert "3 new and 5 known entities" in done.out
    assert sorted(tmp_path.rglob("*")) == before


def test_a_model_with_features_says_that_they_are_not_used(tmp_path, capsys, model, facts):
    features = pd.DataFrame({"size": {f"a{i}": float(i % 5) for i in range(12)} | {"f": 2.0}})
    note = "propagate does not use the features of the model"
    for layout in ("plain", "mapped"):
        place = (
            SheafModel.load(model)
            .extend((), features=features)
            .save(tmp_path / layout, layout=layout)
        )
        done = output(capsys, "propagate", facts, "--model", place, "--estimate")
        assert note in done.err
    assert note not in output(capsys, "propagate", facts, "--model", model, "--estimate").err


def test_what_is_refused(tmp_path, capsys, model, facts):
    words = ["propagate", facts, "--model", model]
    with pytest.raises(SystemExit):
        main([str(word) for word in words])
    assert "give --out" in capsys.readouterr().err
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANK", "1")
        with pytest.raises(SystemExit):
            main([str(word) for word in words])
    assert capsys.readouterr().err == ""
    out = ["--out", tmp_path / "v"]
    assert "such as 16GB" in failing(capsys, *words, *out, "--memory", "much")
    assert "one column at a time" in failing(capsys, *words, *out, "--memory", "1MB")
    assert "'iterations'" in failing(capsys, *words, *out, "--iterations", "-1")
    assert "cannot be read" in failing(capsys, "propagate", tmp_path / "no", *words[2:], *out)
    assert not (tmp_path / "v").exists()
    output(capsys, *words, *out)


def be_killed(pipe, words, block):
    """Runs the command until it is killed in a step of a block of one column."""
    split, run = cost_estimate.split_columns, SheafPropagation.run_columns
    cost_estimate.split_columns = lambda s, d, most, *more: split(s, d, 1, *more)
    blocks = []

    def killed(self, *given, on_step, **named):
        def step(done):
            on_step(done)
            if len(blocks) == block and done == 2:
                os.kill(os.getpid(), signal.SIGKILL)

        out = run(self, *given, on_step=step, **named)
        blocks.append(1)
        return out

    SheafPropagation.run_columns = killed
    raise SystemExit(main(words))


def test_a_process_killed_within_a_block_is_followed_by_one_that_goes_on(
    tmp_path, capsys, model, facts
):
    words = [str(w) for w in ("propagate", facts, "--model", model, "--out", tmp_path / "v")]
    _, [(process, _)] = start(be_killed, 1, words, 7)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert not (tmp_path / "v").exists()
    record = json.loads((tmp_path / ".v.partial" / "job.json").read_text())
    assert len(record["done"]["result"]) == 7
    started = []
    with pytest.MonkeyPatch.context() as patch:
        run = SheafPropagation.run_columns
        patch.setattr(
            SheafPropagation,
            "run_columns",
            lambda self, *given, **named: (started.append(1), run(self, *given, **named))[1],
        )
        output(capsys, *words)
    assert len(started) == len(record["blocks"]) - 7
    assert torch.allclose(vectors(tmp_path / "v"), expected(model, FACTS), atol=1e-12)


def call(ranks, words):
    """The command on a rank: its exit code and what it prints."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(word) for word in words])
    return code, out.getvalue(), err.getvalue()


def call_with_other(ranks, words, name):
    """The command, on a host whose file of a name holds something else on the second rank."""
    read = Path.read_bytes
    other = ranks.rank == 1
    Path.read_bytes = lambda path: read(path) + (b"\n" if other and path.name == name else b"")
    try:
        return call(ranks, words)
    finally:
        Path.read_bytes = read


def test_files_that_differ_between_processes_are_refused(tmp_path, capsys, model, facts):
    parts, out = tmp_path / "parts", tmp_path / "v"
    output(capsys, "partition", facts, "--parts", 2, "--method", "hash", "--out", parts)
    words = ["propagate", parts, "--model", model, "--split", "halo", "--out", out]
    for name in ("manifest.json", "parts.json"):
        first, second = pool(2).run(call_with_other, words, name)
        assert first[0] == second[0] == 3
        assert "settings and options of rank 1 of 2 (" in first[2]
        assert second[2] == ""
    assert not out.exists()


def test_processes_share_columns_or_parts_of_the_graph(tmp_path, capsys, model):
    write_triples(tmp_path / "facts.tsv", [f for f in FACTS if f[0] != f[2]])
    facts, parts = tmp_path / "facts.tsv", tmp_path / "parts"
    output(capsys, "partition", facts, "--parts", 2, "--method", "hash", "--out", parts)
    output(capsys, "propagate", facts, "--model", model, "--out", tmp_path / "one")
    wanted = vectors(tmp_path / "one")
    for given, split, why in (
        (parts, "auto", "split: columns; all ranks read"),
        (facts, "columns", ""),
        (parts, "columns", ""),
        (parts, "halo", ""),
    ):
        out = tmp_path / f"{given.stem}-{split}"
        words = ["propagate", given, "--model", model, "--split", split, "--out", out]
        first, second = pool(2).run(call, words)
        assert (first[:2], second) == ((0, f"{out}\n"), (0, "", ""))
        assert why in first[2]
        assert "estimated" in first[2]
        assert torch.equal(vectors(out), wanted)
    # One process takes parts as well.
    output(capsys, "propagate", parts, "--model", model, "--out", tmp_path / "again")
    assert torch.equal(vectors(tmp_path / "again"), wanted)


def test_processes_that_share_columns_estimate_together(tmp_path, model, facts):
    words = ["propagate", facts, "--model", model, "--split", "columns", "--estimate"]
    first, second = pool(2).run(call, words)
    assert first[0] == second[0] == 0
    assert "estimated" in first[1] + first[2]
    assert second[1:] == ("", "")


def test_auto_says_why_parts_are_needed(tmp_path, capsys, facts):
    model = sheaf_model("transr").save(tmp_path / "model")
    parts, out = tmp_path / "parts", ["--out", tmp_path / "v"]
    output(capsys, "partition", facts, "--parts", 2, "--method", "hash", "--out", parts)
    words = ["propagate", parts, "--model", model]
    found = pool(2).run(call, [*words, "--estimate"])
    assert "split: halo, since the maps of transr mix columns" in found[0][2]
    assert "received" in found[0][1]
    assert found[1] == (0, "", "")
    for code, _, text in pool(2).run(call, ["propagate", facts, "--model", model, *out]):
        assert code != 0
        assert "create parts by 'sheafprop partition" in text or not text
    # What all processes refuse is printed by one of them.
    facing = {
        "whose maps mix them": ["--split", "columns", *out],
        "needs a folder of parts": ["--split", "halo", *out],
        "such as 16GB": ["--memory", "much", *out],
        "is missing": ["--model", tmp_path / "none", *out],
        "'iterations'": ["--iterations", -1, *out],
    }
    for text, more in facing.items():
        found = pool(2).run(call, ["propagate", facts, "--model", model, *more])
        assert [code for code, _, _ in found] == [1, 3]
        assert text in found[0][2]
        assert found[1][1:] == ("", "")
    for option in (["--columns", "2,1,0"], ["--header", "no"], ["--input-format", "tsv"]):
        said = failing(capsys, *words, *out, *option)
        assert f"{option[0]} does not apply to the parts in '{parts}'" in said
    halo = ["propagate", facts, "--model", model, "--split", "halo"]
    assert "needs a folder of parts" in failing(capsys, *halo, *out)
    assert not (tmp_path / "v").exists()
