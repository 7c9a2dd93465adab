import sys

import numpy as np
import pytest

from sheafprop.cli.main import main
from sheafprop.data import write_triples
from sheafprop.pretrained.mapped import part_folder
from sheafprop.pretrained.mapped.cost_estimate import show_bytes
from sheafprop.pretrained.mapped.part_folder import read_part, read_parts
from tests.cli.commands import failing, output, scrambled
from tests.pretrained.models import FACTS


@pytest.mark.parametrize("method", ["hash", "metis"])
def test_parts_are_written_and_what_a_step_costs_is_printed(tmp_path, capsys, facts, method):
    words = ["partition", facts, "--parts", 2, "--method", method, "--out", tmp_path / "p"]
    done = output(capsys, *words)
    assert done.out.strip() == str(tmp_path / "p")
    assert f"10 facts of 9 entities in 2 parts by {method}" in done.err
    costs = read_parts(tmp_path / "p")["costs"]
    assert f"{costs['cut']:.1%} of the facts are cut" in done.err
    assert f"rows sent per entity: {costs['rows_sent']:.2f};" in done.err
    assert f"receives at most {show_bytes(max(costs['halo']) * 512)} per step" in done.err
    assert "--overwrite" in failing(capsys, *words)
    output(capsys, *words, "--overwrite")


def test_a_file_gives_the_parts_and_files_are_read_as_by_other_commands(tmp_path, capsys):
    path = scrambled(tmp_path / "x.csv.gz", FACTS)
    assignment = tmp_path / "a.npy"
    np.save(assignment, np.array([2, 0, 0, 1, 1, 1, 0, 0, 1]))
    words = ["partition", path, "--parts", 3, "--method", assignment, "--columns", "from,kind,to"]
    output(capsys, *words, "--out", tmp_path / "p")
    part = read_part(tmp_path / "p", 2)
    assert part.labels.labels(np.arange(1)) == ["n0"]
    assert len(part.owned) == 1
    assert "entity 0" in failing(capsys, *[2 if w == 3 else w for w in words], "--out", "q")


def test_what_is_refused(tmp_path, capsys, facts):
    with pytest.raises(SystemExit):
        main(["partition", str(facts), "--parts", "0", "--out", str(tmp_path / "p")])
    assert "must be at least 1 (got 0)" in capsys.readouterr().err
    words = ["--parts", 2, "--out", tmp_path / "p"]
    assert "none.tsv" in failing(capsys, "partition", tmp_path / "none.tsv", *words)
    assert "m.npy" in failing(capsys, "partition", facts, "--method", "m.npy", *words)
    assert not (tmp_path / "p").exists()
    write_triples(tmp_path / "one.tsv", [("a", "r", "b")])
    done = output(capsys, "partition", tmp_path / "one.tsv", *words, "--method", "hash")
    assert "1 fact of 2 entities" in done.err


def test_a_missing_partitioner_is_named_before_facts_are_read(tmp_path, capsys, facts, monkeypatch):
    monkeypatch.setitem(sys.modules, "pymetis", None)
    monkeypatch.setattr(part_folder, "number_facts", None)
    words = ["partition", facts, "--parts", 2, "--out", tmp_path / "parts"]
    assert "needs pymetis" in failing(capsys, *words)
    assert not (tmp_path / "parts").exists()


def test_a_file_of_parts_is_read_before_the_facts(tmp_path, capsys, facts, monkeypatch):
    monkeypatch.setattr(part_folder, "number_facts", None)
    path, words = tmp_path / "a.npy", ["partition", facts, "--parts", 2, "--out", tmp_path / "p"]
    assert "cannot be read" in failing(capsys, *words, "--method", path)
    for content, text in [
        (np.zeros((3, 2), int), "must hold integers"),
        (np.zeros(3), "must hold integers"),
        (np.array([0, 5]), "got 5 for entity 1"),
    ]:
        np.save(path, content)
        assert text in failing(capsys, *words, "--method", path)
