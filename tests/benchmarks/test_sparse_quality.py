import dataclasses

import pytest
from benchmarks import sparse_quality
from benchmarks.cells import read_records

from tests.toy import toy_data


@pytest.fixture
def toy(monkeypatch):
    data = toy_data()
    load = lambda name: (dataclasses.replace(data, name=name), data.train_valid)  # noqa: E731
    monkeypatch.setattr(sparse_quality, "load", load)
    return data


def test_a_cell_trains_in_its_way_and_ranks_validation_triples(toy, tmp_path, monkeypatch):
    same = {"lr": sparse_quality.WAYS["dense, adam"]["lr"]}
    for way in ("dense, adam", "sparse, adam"):
        monkeypatch.setitem(sparse_quality.WAYS, way, sparse_quality.WAYS[way] | same)
    records = {
        way: sparse_quality.run_cell("toy", way, 1, 2, folder=tmp_path / str(number))[0]
        for number, way in enumerate(sparse_quality.WAYS)
    }
    for way, record in records.items():
        assert record["training"]["sparse"] == way.startswith("sparse")
        assert 0 < record["mrr"] <= 1
    # Of so few entities every batch has all, so that both are the same at one rate.
    assert records["sparse, adam"]["mrr"] == pytest.approx(records["dense, adam"]["mrr"])


def test_lines_compare_means_over_seeds_with_dense_training():
    records = [
        {"dataset": "toy", "way": way, "seed": seed, "mrr": mrr + seed / 10, "hits@10": 0.5}
        for way, mrr in zip(sparse_quality.WAYS, (0.3, 0.31, 0.25), strict=True)
        for seed in (0, 1)
    ]
    assert sparse_quality.describe(records) == [
        "toy       dense, adam              MRR 35.00, Hits@10 50.00",
        "toy       sparse, adam             MRR 36.00, Hits@10 50.00 (+1.00, +0.00)",
        "toy       sparse, rowwise_adagrad  MRR 30.00, Hits@10 50.00 (-5.00, +0.00)",
    ]


def test_cells_are_stored_and_not_run_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        sparse_quality,
        "run_cells",
        lambda cells, store, **_: [
            store.put(cell.key, [{"mrr": 0.5, "hits@10": 0.75}]) for cell in cells
        ],
    )
    place = tmp_path / "found.jsonl"
    words = ["--datasets", "codex-s", "--seeds", "0", "--results", str(place)]
    sparse_quality.main([*words, "--ways", "dense, adam"])
    assert [record["way"] for record in read_records(place)] == ["dense, adam"]
    assert (
        capsys.readouterr().out == "codex-s   dense, adam              MRR 50.00, Hits@10 75.00\n"
    )
