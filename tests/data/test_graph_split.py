import errno
import hashlib
import json
import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sheafprop.data import FolderDataset, read_triples, split_graph
from sheafprop.data.graph_split import check_split_target
from sheafprop.errors import DataError
from sheafprop.files import StorageError

MODES = ["semi-inductive", "fully-inductive"]
PARTS = ["train", "train_valid", "observed", "valid", "test"]
NAMES = ["train.txt", "valid.txt", "inference.txt", "inference_valid.txt", "inference_test.txt"]


def wheel(size=90, steps=(1, 2, 5)):
    return [(f"n{i}", f"r{k}", f"n{(i + k) % size}") for i in range(size) for k in steps]


def rows_of(part):
    return [tuple(row) for row in part.tolist()]


def ends_of(*parts):
    return {end for part in parts for head, _, tail in part.tolist() for end in (head, tail)}


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def check_graph_split(given, split):
    """Everything that is promised of every split, in plain Python."""
    parts = {key: rows_of(getattr(split, key)) for key in PARTS}
    placed = [row for rows in parts.values() for row in rows]
    assert len(placed) == len(set(placed))  # no triple in two files, nor twice in one
    assert set(placed) <= set(given)
    assert all(rows == sorted(rows) for rows in parts.values())
    dropped = split.report["dropped"]
    assert len(placed) + sum(dropped.values()) == len(set(given))
    assert split.report["graph"]["copies"] == len(given) - len(set(given))
    train, held = ends_of(split.train), ends_of(split.train_valid)
    observed, asked = ends_of(split.observed), ends_of(split.valid, split.test)
    known = {relation for _, relation, _ in parts["train"]}
    assert held <= train
    assert {relation for _, relation, _ in placed} <= known
    assert not set(split.report["unseen_relations"]) & known
    assert sum(split.report["unseen_relations"].values()) == dropped["unseen_relation"]
    assert split.report["new_entities"] == len(observed - train)
    sample = split.report["sample"]["entities"]
    assert split.report["lost_entities"] == sample - len(train | observed)
    if split.mode == "fully-inductive":
        assert not train & observed
        assert asked <= observed
    else:
        assert asked <= train | observed
        new = observed - train
        for key in ("observed", "valid", "test"):
            assert all({head, tail} & new for head, _, tail in parts[key])
    assert parts["test"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("max_triples", [None, 150])
def test_no_part_leaks_into_another(mode, seed, max_triples):
    rows = [*wheel(), *wheel()[:7]]
    split = split_graph(rows, mode, seed=seed, max_triples=max_triples)
    check_graph_split(rows, split)
    assert split.report["dropped"]["beyond_max_triples"] >= (0 if max_triples is None else 120)
    assert split.report["graph"] == {"triples": 270, "entities": 90, "relations": 3, "copies": 7}


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 14), st.sampled_from("rst"), st.integers(0, 14)),
        min_size=1,
        max_size=90,
    ),
    st.sampled_from(MODES),
    st.integers(0, 3),
    st.sampled_from([None, 40]),
    st.randoms(use_true_random=False),
)
def test_promises_hold_for_any_graph_in_any_order(rows, mode, seed, max_triples, chance):
    def split(triples):
        try:
            return split_graph(
                triples, mode, seed=seed, max_triples=max_triples, observed_fraction=0.6
            )
        except DataError as error:
            return str(error)

    shuffled = rows + rows[:3]
    chance.shuffle(shuffled)
    one, other = split(rows), split(shuffled)
    if isinstance(one, str):
        assert one == other
        return
    check_graph_split([(str(h), r, str(t)) for h, r, t in rows], one)
    for key in PARTS:
        assert getattr(one, key).tolist() == getattr(other, key).tolist()


@pytest.mark.parametrize("mode", MODES)
def test_files_depend_on_triples_and_seed_alone(tmp_path, mode):
    rows = wheel()
    split_graph(rows, mode, seed=3, max_triples=200).save(tmp_path / "a")
    random.Random(1).shuffle(rows)
    split_graph(rows, mode, seed=3, max_triples=200).save(tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    split_graph(rows, mode, seed=4, max_triples=200).save(tmp_path / "c")
    assert all(contents(tmp_path / "c")[name] != contents(tmp_path / "a")[name] for name in NAMES)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("semi-inductive", "8c3de28de1f6c51b"), ("fully-inductive", "22b8136d20a725d2")],
)
def test_files_are_the_same_on_every_machine(tmp_path, mode, expected):
    split_graph(wheel(), mode, max_triples=200).save(tmp_path / "split")
    digest = hashlib.sha256()
    for name in NAMES:
        digest.update((tmp_path / "split" / name).read_bytes())
    assert digest.hexdigest()[:16] == expected


def test_an_added_entity_moves_no_entity_of_the_sample():
    # Draws go by labels: where ids decided, "a" would move all others by one.
    chain = [(f"n{i:02}", "r", f"n{i + 1:02}") for i in range(90)]
    options = {"max_triples": 40, "seed": 5, "observed_fraction": 0.5}
    one = split_graph(chain, "semi-inductive", **options)
    other = split_graph([*chain, ("a", "r", "a")], "semi-inductive", **options)
    ends = [ends_of(*(getattr(split, key) for key in PARTS)) for split in (one, other)]
    assert len(ends[0]) == 41
    assert ends[1] - {"a"} == ends[0]


@pytest.mark.parametrize("max_triples", [60, 137, 270, 1000])
def test_a_sample_has_whole_entities_and_nearly_the_asked_number(max_triples):
    rows = [*wheel(), *[(f"n{i}", "loop", f"n{i}") for i in range(0, 90, 4)]]
    split = split_graph(rows, "semi-inductive", max_triples=max_triples)
    placed = [row for key in PARTS for row in rows_of(getattr(split, key))]
    kept = split.report["sample"]["triples"]
    assert kept <= max_triples
    assert kept > max_triples - 8 or kept == len(rows)  # the next entity may bring seven
    ends = {end for head, _, tail in placed for end in (head, tail)}
    inside = [row for row in rows if row[0] in ends and row[2] in ends]
    assert set(placed) == set(inside)
    assert split.report["dropped"]["beyond_max_triples"] == len(rows) - len(inside)


def test_a_sample_goes_on_in_another_component():
    rows = [
        (f"{c}{i}", "r", f"{c}{(i + k) % 6}") for c in "abcdefgh" for i in range(6) for k in (1, 2)
    ]
    split = split_graph(rows, "semi-inductive", max_triples=40, observed_fraction=0.5)
    assert 36 <= split.report["sample"]["triples"] <= 40


def test_relations_that_lose_their_training_triples_are_reported():
    rows = [*wheel(), *[(f"n{i}", f"rare{i}", f"n{i + 1}") for i in range(0, 88, 8)]]
    for seed in range(4):
        split = split_graph(rows, "fully-inductive", new_fraction=0.5, seed=seed)
        check_graph_split(rows, split)
        unseen = split.report["unseen_relations"]
        assert unseen
        assert all(count == 1 and label.startswith("rare") for label, count in unseen.items())
        assert f"{len(unseen)} of {len(unseen)} relation" in split.summary()


def test_numbers_are_labels():
    rows = [(i, k, (i + k) % 60) for i in range(60) for k in (1, 2, 3)]
    one = split_graph(rows, "fully-inductive")
    other = split_graph([tuple(map(str, row)) for row in rows], "fully-inductive")
    assert all(getattr(one, key).tolist() == getattr(other, key).tolist() for key in PARTS)
    assert {type(label) for label in one.train.ravel()} == {str}


@pytest.mark.parametrize("mode", MODES)
def test_a_saved_split_is_a_data_set(tmp_path, mode, recwarn):
    split = split_graph(wheel(), mode)
    assert split.save(tmp_path / "deep" / "mine") == tmp_path / "deep" / "mine"
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == sorted([*NAMES, "split.json"])
    for key, name in zip(PARTS, NAMES, strict=True):
        read = read_triples(tmp_path / "deep" / "mine" / name, columns=(0, 1, 2), header=False)
        assert read.tolist() == getattr(split, key).tolist()
    data = FolderDataset(tmp_path / "deep" / "mine", mode).load()
    assert data.report["notes"] == []
    assert data.report["free_entities"] == split.report["new_entities"]
    assert data.report["shared_labels"] == (
        0 if mode == "fully-inductive" else len(ends_of(split.observed) & ends_of(split.train))
    )
    for key in ("train", "observed", "valid", "test", "train_valid"):
        assert data.report[f"{key}_triples"] == len(getattr(split, key))
    record = json.loads((tmp_path / "deep" / "mine" / "split.json").read_text())
    assert record.pop("library").startswith("sheafprop ")
    assert record == split.report
    assert not recwarn.list


def test_summary_counts_every_part_and_reason():
    rows = [*wheel(), *wheel()[:2], ("N5", "r1", "n4"), ("N5", "r2", "n7")]
    split = split_graph(rows, "fully-inductive", max_triples=200, seed=1)
    text = split.summary()
    for name, part in zip(NAMES, (getattr(split, key) for key in PARTS), strict=True):
        assert f"{name}: ".ljust(21) + f"{len(part)} triples of " in text
    dropped = split.report["dropped"]
    assert "fully-inductive split, seed 1\ngraph: 272 triples of 3 relations among 91 ent" in text
    assert "  2 duplicates removed\n" in text
    assert f"\nsample: {split.report['sample']['triples']} triples of" in text
    assert f"\nnew entities: {split.report['new_entities']}\n" in text
    assert f"\ndropped: {sum(dropped.values())} triples\n" in text
    assert f"  {dropped['beyond_max_triples']} outside the sample" in text
    assert f"  {dropped['between_graphs']} between an old and a new entity" in text
    assert "sample" not in split_graph(wheel(), "fully-inductive").summary()
    assert repr(split) == f"GraphSplit(fully-inductive, {len(split.train)} training triples)"


def test_labels_that_look_alike_are_reported_in_any_order():
    rows = [*wheel(), ("N5", "r1", "n4"), ("N5", "R2", "n7"), ("n8", "R2", "n9")]
    notes = split_graph(rows, "semi-inductive").report["notes"]
    assert ["'n5' and 'N5'" in notes[0], "'r2' and 'R2'" in notes[1], len(notes)] == [True, True, 2]
    assert split_graph(rows[::-1], "semi-inductive").report["notes"] == notes
    assert f"note: {notes[0]}" in split_graph(rows, "semi-inductive").summary()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mode": "inductive"}, ValueError, "'mode' must be one of"),
        ({"seed": 1.5}, ValueError, "'seed' must be an integer"),
        ({"max_triples": 0}, ValueError, "'max_triples' must be an integer of at least 1"),
        ({"new_fraction": 1.0}, ValueError, "'new_fraction' must be between 0 and 1"),
        ({"observed_fraction": float("nan")}, ValueError, "'observed_fraction' must be between"),
        ({"valid_fraction": 0.3}, ValueError, "must not exceed 1"),
        ({"valid_fraction": 0.2}, DataError, "no test triple is left: .* Lower"),
        ({"triples": []}, DataError, "has no triples"),
        ({"triples": [("a", "r", "b")]}, DataError, "cannot be split"),
        ({"max_triples": 2}, DataError, "cannot be split"),
        ({"triples": [("a", "r", 0.5)]}, DataError, "labels must be strings or integers"),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_what_cannot_be_split_is_refused(options, error, message, mode):
    given = {"triples": wheel(), "mode": mode} | options
    with pytest.raises(error, match=message):
        split_graph(given.pop("triples"), given.pop("mode"), **given)


def test_only_a_split_is_overwritten(tmp_path):
    split, other = (split_graph(wheel(), "semi-inductive", seed=seed) for seed in (0, 1))
    place = split.save(tmp_path / "split")
    before = contents(place)
    with pytest.raises(ValueError, match="exists: choose another folder, or pass overwrite=True"):
        other.save(place)
    assert contents(place) == before
    other.save(place, overwrite=True)
    assert contents(place) != before
    assert os.listdir(tmp_path) == ["split"]
    (place / "notes.txt").write_text("mine")
    before = contents(place)
    with pytest.raises(ValueError, match=r"it holds 'notes\.txt', which is not a file of a split"):
        split.save(place, overwrite=True)
    (place / "notes.txt").unlink()
    (place / "split.json").unlink()
    with pytest.raises(ValueError, match="it is not a split that sheafprop wrote"):
        check_split_target(place, overwrite=True)
    del before["notes.txt"], before["split.json"]
    assert contents(place) == before
    (tmp_path / "empty").mkdir()
    split.save(tmp_path / "empty")


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("step", range(6))
def test_a_disk_that_refuses_leaves_what_was_there(tmp_path, monkeypatch, overwrite, step):
    place = tmp_path / "split"
    if overwrite:
        split_graph(wheel(), "semi-inductive").save(place)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    replace, left = os.replace, [step]

    def full(*arguments):
        if left[0] == 0:
            left[0] = -1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left[0] -= 1
        return replace(*arguments)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StorageError, match="the disk is full"):
        split_graph(wheel(), "fully-inductive", seed=2).save(place, overwrite=overwrite)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == before


def test_a_label_that_no_text_file_can_hold_is_named_with_its_file(tmp_path):
    rows = [*wheel(), *[("n1\tb", f"r{k}", f"n{i}") for k in (1, 2) for i in range(30)]]
    split = split_graph(rows, "semi-inductive")
    with pytest.raises(DataError, match=r"split/\w+.txt: label 'n1\\tb' of row \d+ cannot be"):
        split.save(tmp_path / "split")
    assert list(tmp_path.iterdir()) == []


def test_parts_without_a_triple_have_no_file(tmp_path):
    rows = [(f"n{i}", "r", f"n{i + 1}") for i in range(30)]
    split = split_graph(rows, "semi-inductive", observed_fraction=0.5, valid_fraction=0.01)
    assert len(split.valid) == len(split.train_valid) == 0
    split.save(tmp_path / "split")
    names = {path.name for path in (tmp_path / "split").iterdir()}
    assert names == {"train.txt", "inference.txt", "inference_test.txt", "split.json"}
    assert len(FolderDataset(tmp_path / "split", "semi-inductive").load().test) == len(split.test)
