import numpy as np
from benchmarks import new_relations
from benchmarks.new_relations import (
    FACTS,
    FITTED,
    OTHERS,
    SAME,
    fold_table,
    hidden_relations,
    main,
    some_facts,
)

from tests.toy import ring


def rings(monkeypatch):
    rows = ring("a", 30) + [(f"a{i}", "back", f"a{(i + 29) % 30}") for i in range(30)]
    rows += [(f"a{i}", "rare", f"a{i + 1}") for i in range(8)]
    held = [row for i, row in enumerate(rows) if i % 10 == 0]
    parts = [[row for row in rows if row not in held], held[::2], held[1::2]]
    parts = [np.array(part, dtype=object) for part in parts]
    monkeypatch.setattr(new_relations, "read_split", lambda name: parts)
    monkeypatch.setitem(new_relations.DATASETS, "fb237_v1", 20)
    return parts


def test_every_frequent_relation_is_hidden_once(monkeypatch):
    train = rings(monkeypatch)[0]
    found = [hidden_relations(train, fold) for fold in range(3)]
    assert sorted(label for part in found for label in part) == ["back", "far", "next", "skip"]


def test_more_facts_hold_fewer_ones(monkeypatch):
    train = rings(monkeypatch)[0]
    few, more = (set(map(tuple, some_facts(train, n).tolist())) for n in (2, 5))
    assert few < more
    for label in ("next", "rare"):
        assert sum(row[1] == label for row in few) == 2
    assert len(some_facts(train, None)) == len(train)


def test_hidden_relations_have_rows_by_facts_and_others(monkeypatch, tmp_path, at_once, capsys):
    rings(monkeypatch)
    words = ["--results", str(tmp_path / "r.jsonl"), "--dataset", "fb237_v1", "--model", "rotate"]
    main([*words, "--fold", "0", "1"])
    table = capsys.readouterr().out.splitlines()
    assert table[0].split("|")[4].strip() == "1 fact"
    assert len(table) == 3
    store = new_relations.CellStore(tmp_path / "r.jsonl", new_relations.KEYS, new_relations.FIELDS)
    records = store.records()
    rows = [(FITTED, n) for n in FACTS] + [(SAME, None), (OTHERS, None)]
    assert {(r["method"], r["facts"]) for r in records} == set(rows)
    # The same triples under both models, and not those of other relations.
    for fold in (0, 1):
        own = [r for r in records if r["fold"] == fold and r["part"] == "test"]
        counts = {method: {r["count"] for r in own if r["method"] == method} for method, _ in rows}
        assert len(counts[FITTED]) == 1
        assert counts[FITTED] == counts[SAME]
    main([*words, "--fold", "0", "1"])
    assert "2 of 2 cells are stored" in capsys.readouterr().err


def test_parts_are_pooled_by_their_triples():
    rows = [(FITTED, n) for n in FACTS] + [(SAME, None), (OTHERS, None)]
    records = [
        {"dataset": "d", "model": "m", "method": method, "facts": number, "part": "test"}
        | {"fold": fold, "hits@10": hits, "count": count}
        for method, number in rows
        for fold, hits, count in ((0, 0.5, 10), (1, 0.2, 30))
    ]
    row = fold_table(records).splitlines()[2]
    assert row.startswith("| d, m | 2 of 3 | 40 |")
    assert row.count("27.5") == len(rows)
