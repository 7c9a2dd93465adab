from types import SimpleNamespace

import numpy as np
import pytest
import torch
from benchmarks import distributed_benchmark as benchmark
from benchmarks.distributed_cases import ROUTES, community_graph, measure_cases, measure_ceilings
from benchmarks.processes import run_plain

from sheafprop.data.partition import hash_partition
from tests import forked
from tests.distributed.rank_pool import pool


def cases(ranks, folder):
    with torch.no_grad():
        return measure_cases(ranks, folder, 8, 2, 1, 1)


def test_ranks_take_turns_with_one_thread_and_the_page_gets_the_tables(tmp_path, monkeypatch):
    # Processes that have imported everything.
    made = SimpleNamespace(get_context=lambda name: forked.context())
    monkeypatch.setattr("benchmarks.processes.multiprocessing", made)
    edges, kinds = community_graph(600, 4000, 0.2)
    edges[:, 0] = 599, 0
    np.save(tmp_path / "edges.npy", edges)
    np.save(tmp_path / "kinds.npy", kinds)
    for name in ("metis", "hash"):
        np.save(tmp_path / f"{name}-2.npy", hash_partition(600, 2).assignment)
    (constants, *records), other = pool(2).run(cases, tmp_path)
    assert [r["name"] for r in other[1:]] == [r["name"] for r in records]
    assert len(records) == 10
    for route in ROUTES:
        assert min(constants[route][name] for name in ("beta", "alpha", "share")) >= 0
    assert constants["pack"] > 0
    ceilings = run_plain(2, measure_ceilings, tmp_path, 8, 2, 1)
    assert all(ceilings[maps] > 0 for maps in ("identity", "diagonal"))
    for record in records:
        record["ceiling"] = ceilings[record["maps"]]
    for record in records:
        assert record["ratio"] == pytest.approx(record["seconds_alone"] / record["seconds"])
        row_bytes = 8 * 4
        sent = record["rows_sent"] * 600 * row_bytes
        assert record["bytes_sent"] == 0 if record["split"] == "columns" else sent > 0
        # Two ranks send what the other receives.
        assert record["bytes_sent"] >= sent / 2
    here = {"hardware": "a machine", "torch": "2", "commit": "c"}
    parts = benchmark.measure_rows_sent(1000, [8])
    assert parts[0]["rows_sent"] < parts[1]["rows_sent"]
    assert parts[0]["inner"] > parts[1]["inner"] >= 0
    text = benchmark.tables([r | here for r in (constants, *records, *parts)])
    assert "| 2 | 8 | identity | metis |" in text
    assert f"| independent {ceilings['identity']:.2f}x |" in text
    assert text.count("| sockets ") == 4 + 1
    assert "| 8 | columns | 2.1 | 0.0 GB |" in text
    page = tmp_path / "page.md"
    before = f"before\n<!-- results f.jsonl other -->\n{benchmark._MARKS[1]}\n"
    page.write_text(before + "\nold\n".join(benchmark._MARKS) + "\nafter\n")
    benchmark.write_docs(page, text)
    assert page.read_text().startswith(f"{before}{benchmark._MARKS[0]}\n\n{text}\n\n")
    assert page.read_text().endswith(f"{benchmark._MARKS[1]}\nafter\n")


def test_an_estimate_is_the_formula_with_cores_left_for_the_exchange():
    parts = {"rows_sent": 2.0, "inner": 0.25, "pack": 1e-10}
    a, b = benchmark.ENTRY["identity"][1]
    computing = 2 * 1e8 / 8 * (a + b * 64) * 1e-9 / 10
    received = 2 * 1e7 / 8 * 64 * 4
    for rate in (0.1, 1000.0):
        seconds, sent, _ = benchmark.estimate_step(1e7, 1e8, 64, 8, parts, rate)
        hidden = max(computing / 4, received / (rate * 1e9))
        assert sent == received
        assert seconds == pytest.approx(hidden + 0.75 * computing + received * 1e-11)


def test_community_graphs_have_the_share_of_edges_outside_that_was_asked_for():
    edges, kinds = community_graph(20_000, 50_000, 0.0, power=2.0)
    assert kinds.max() < 200
    degree = np.sort(np.bincount(edges.ravel(), minlength=20_000))
    assert degree[-1] > 20 * degree.mean()
    costs = benchmark.partition_costs(edges, benchmark.metis_partition(edges, 20_000, 4))
    assert costs.cut < 0.01
