"""The walk through a large graph, without its size."""

import sys

import pytest
from benchmarks.large_graph_walk import RELATIONS, commands, play, walk_table, write_facts

from sheafprop.cli import main


def test_facts_are_lines_of_known_sizes(tmp_path):
    write_facts(tmp_path / "facts.tsv", 1000, 2500)
    rows = [line.split("\t") for line in (tmp_path / "facts.tsv").read_text().splitlines()]
    assert len(rows) == 2500
    assert all(0 <= int(row[0][1:]) < 1000 and 0 <= int(row[2][1:]) < 1000 for row in rows)
    assert {row[1] for row in rows} == {f"P{r}" for r in range(RELATIONS)}


def test_commands_are_those_of_the_program():
    assert all(words[0] in main._TRAINING + main._OWN for words in commands(1000, "1GB").values())


def test_a_command_is_played_with_its_times_and_memory(tmp_path):
    code = "import os; held = bytearray(2**28); print(os.environ['OMP_NUM_THREADS'])"
    found = play([sys.executable, "-c", f"{code}; import time; time.sleep(0.5)"], tmp_path, 3)
    assert found["said"] == "3\n"
    assert found["peak_bytes"] > 2**28
    assert found["seconds"] >= 0


def test_a_command_that_fails_ends_the_walk_with_its_last_words(tmp_path):
    with pytest.raises(RuntimeError, match="ended with 4: no luck"):
        play([sys.executable, "-c", "print('no luck'); raise SystemExit(4)"], tmp_path, 1)


def test_the_table_shows_the_commands_of_the_largest_walk():
    record = {"step": "split", "command": "sheafprop split f.tsv", "seconds": 1234.4}
    small, large = (record | {"triples": n, "peak_bytes": n * 10**9} for n in (1, 2))
    facts = {"step": "facts", "triples": 2, "seconds": 1.0}
    table = walk_table([small, facts, large]).splitlines()
    assert table[2:] == ["| `sheafprop split f.tsv` | 1,234 s | 2.0 GB |"]


def test_what_a_command_says_does_not_name_the_folder(tmp_path):
    code = "import os; print('saved', os.path.join(os.getcwd(), 'larger'))"
    assert play([sys.executable, "-c", code], tmp_path, 1)["said"] == "saved larger\n"
