import os

import pytest
import torch
from benchmarks import folder_benchmark
from benchmarks.cells import read_records
from benchmarks.folder_benchmark import NumberedLabels, main
from benchmarks.tables.benchmark_tables import folder_table


def test_the_benchmark_writes_what_the_table_prints(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(folder_benchmark, "in_own_process", lambda function, *a: function(*a))
    place = tmp_path / "new" / "folder.jsonl"
    (tmp_path / "scratch").mkdir()
    options = ["--entities", "1500", "--width", "4", "--runs", "1"]
    options += ["--folder", str(tmp_path / "scratch"), "--json", str(place)]
    main([*options, "--plain"])
    cases = read_records(place)
    assert capsys.readouterr().out.strip() == folder_table(cases)
    assert os.listdir(tmp_path / "scratch") == []
    (case,) = cases
    assert (case["entities"], case["facts"], case["threads"]) == (
        1500,
        4500,
        torch.get_num_threads(),
    )
    numbers = {key: value for key, value in case.items() if isinstance(value, int | float)}
    assert min(numbers.values()) >= 0
    assert case["ratio_pass"] == pytest.approx(case["predict_seconds"] / case["pass_seconds"])


def test_labels_that_are_numbers():
    labels = NumberedLabels(5)
    assert labels.labels(1, 3) == ["e1", "e2"]
    assert labels.lookup(["e4", "e0"]).tolist() == [4, 0]
    assert labels.origins(0, 2) == ["trained"] * 2
    assert list(labels.find_folded({"e3"})) == [(3, "e3")]
    assert len(labels) == 5
