"""Label triples from files, rows and frames, with labels that are integers."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import torch

from sheafprop.data import KnowledgeGraph, Vocabulary, as_label_triples, write_triples
from sheafprop.errors import DataError, UnknownRelationError
from sheafprop.pretrained.sheaf_model import SheafModel
from sheafprop.pretrained.triple_input import label_triples
from tests.pretrained.models import sheaf_model, stored_model

ROWS = [(12, 3, 40), (40, 3, 7), (-5, 2, 12)]
TEXTS = [["12", "3", "40"], ["40", "3", "7"], ["-5", "2", "12"]]


class Series:
    """A column as polars has it: iterable, without pandas' methods."""

    def __init__(self, values):
        self.values = values

    def __iter__(self):
        return iter(self.values)


class Frame:
    """A frame as polars has it: names as a list, columns by name, no 'iloc'."""

    def __init__(self, columns):
        self.data = columns
        self.columns = list(columns)

    def __getitem__(self, name):
        return Series(self.data[name])

    def __len__(self):
        return len(next(iter(self.data.values())))


@pytest.mark.parametrize(
    "rows",
    [
        ROWS,
        np.array(ROWS),
        np.array(ROWS, dtype=np.int16),
        pd.DataFrame(ROWS),
        pd.DataFrame(ROWS, columns=["head", "relation", "tail"]),
        pd.DataFrame(ROWS, dtype="Int64"),
        [("12", 3, np.int64(40)), ("40", "3", 7), (-5, 2, "12")],
    ],
)
def test_integers_are_taken_as_their_decimal_text(rows):
    assert label_triples(rows).rows.tolist() == TEXTS


@pytest.mark.parametrize(
    "value", [3.0, np.float32(3), float("nan"), None, True, np.True_, Fraction(3), pd.NA, b"3"]
)
def test_other_values_are_refused(value):
    for rows in (
        [(1, 2, 3), (1, 2, value)],
        pd.DataFrame([(1, 2, 3), (1, 2, value)], dtype=object),
    ):
        with pytest.raises(DataError, match=r"must be strings or integers.*row 1"):
            label_triples(rows)


def test_floats_of_missing_values_are_explained():
    frame = pd.DataFrame({"head": [1, 2, None], "relation": "r", "tail": "x"})
    with pytest.raises(DataError, match=r"float.*1\.0.*missing values becomes floats in pandas"):
        label_triples(frame)


def test_a_frame_without_pandas_is_read_by_name():
    frame = Frame({"target": ["b", "c"], "source": ["a", "b"], "n": [1, 2], "relation": ["r", "r"]})
    assert label_triples(frame).rows.tolist() == [["a", "r", "b"], ["b", "r", "c"]]
    with pytest.raises(DataError, match="needs the columns head, relation and tail"):
        label_triples(Frame({"a": ["x"], "b": ["y"]}))


def test_graphs_and_vocabularies_take_integers():
    graph = KnowledgeGraph.from_labels(ROWS)
    assert graph.entities.labels == ("12", "40", "7", "-5")
    assert graph.entities.ids([40, "7", np.int32(-5)]).tolist() == [1, 2, 3]
    assert Vocabulary([1, 2]).extend([2, 3]).labels == ("1", "2", "3")
    for label in ("40", 40, np.int64(40)):
        assert label in graph.entities
    for label in (True, 12.0, None, 41):
        assert label not in graph.entities
    frame = pd.DataFrame(ROWS, columns=["source", "relation", "target"])[
        ["target", "relation", "source"]
    ]
    again = KnowledgeGraph.from_labels(frame)
    assert (again.entities, again.relations) == (graph.entities, graph.relations)
    assert torch.equal(again.edge_index, graph.edge_index)
    with pytest.raises(DataError, match=r"a column of integers with missing values"):
        KnowledgeGraph.from_labels(frame.astype({"source": float}))
    assert as_label_triples([(10**30, 1, 2)])[0, 0] == str(10**30)


def numbered():
    """A model whose entities and relations are called by their numbers."""
    stored = stored_model("rotate")
    entities = Vocabulary(map(str, range(100, 100 + len(stored.entities))), kind="entities")
    relations = Vocabulary(map(str, range(len(stored.relations))), kind="relations")
    return SheafModel(replace(stored, entities=entities, relations=relations))


def test_integers_are_given_back_as_they_came():
    model = numbered()
    text = model.predict_tails("101", "0", 4)
    number = model.predict_tails(101, 0, 4)
    assert number["head"].tolist() == [101] * 4
    assert number["relation"].tolist() == [0] * 4
    assert number["tail"].tolist() == [int(label) for label in text["tail"]]
    assert text["tail"].map(type).eq(str).all()
    assert number["score"].equals(text["score"])
    both = model.predict([(None, 1, 103), (104, 0, None)], 2)
    assert both["tail"].tolist()[:2] == [103, 103]
    assert both["head"].tolist()[2:] == [104, 104]
    frame = pd.DataFrame([(101, 0, 102), (103, 1, 104)])
    for rows in (frame, frame.to_numpy(), (tuple(row) for row in frame.to_numpy().tolist())):
        scored = model.score(rows)
        assert scored[["head", "relation", "tail"]].to_numpy().tolist() == frame.to_numpy().tolist()
    assert model.score([("101", 0, "102")])["head"].tolist() == ["101"]
    grown = model.extend([(999, 0, 101), (998, 1, 999)])
    assert grown.labels()[-2:] == ("999", "998")
    assert 999 in grown.predict_heads(0, 101, 100, include_known=True)["head"].tolist()
    assert len(grown.vectors([999, 101])) == 2
    around = grown.explain(999)
    assert len(around) == 2
    assert set(around["head"]) == {998, 999}
    assert around["relation"].map(type).eq(str).all()
    asked = grown.explain((999, 0, 101))
    assert asked.iloc[0, :3].tolist() == [999, 0, 101]
    assert grown.explain("999")["head"].map(type).eq(str).all()
    assert grown.remove(998).num_entities == model.num_entities + 1


@pytest.mark.parametrize("kind", [np.int64, np.int16, np.uint8])
def test_a_single_label_may_be_an_integer_of_numpy(kind):
    model = numbered()
    label, relation = kind(103), kind(1)
    pd.testing.assert_frame_equal(
        model.predict_tails(label, relation, 4), model.predict_tails(103, 1, 4)
    )
    pd.testing.assert_frame_equal(
        model.predict_heads(relation, label, 4), model.predict_heads(1, 103, 4)
    )
    pd.testing.assert_frame_equal(model.explain(label), model.explain(103))
    assert torch.equal(model.vectors(label), model.vectors("103"))
    assert model.relations.ids(relation).tolist() == [1]
    assert "103" not in model.remove(label).labels()


def test_labels_that_are_no_integers_stay_text_in_the_answers():
    model = sheaf_model("rotate").extend([(7, "next", "a1")])
    frame = model.predict_tails(7, "next", 3)
    assert frame["head"].tolist() == [7, 7, 7]
    assert all(isinstance(label, str) for label in frame["tail"])


def test_swapped_columns_are_named_where_the_model_knows_the_labels():
    model = sheaf_model("rotate")
    for rows, advice in (
        ([("b", "a1", "new")], r"known as entities.*--columns"),
        ([("next", "fresh", "new"), ("far", "other", "a2")], r"first column.*--columns 1,0,2"),
        ([("fresh", "new", "skip"), ("a1", "other", "next")], r"third column.*--columns 0,2,1"),
        ([("b", "c", "d")], r"--columns 1,0,2 where.*Otherwise leave"),
    ):
        with pytest.raises(UnknownRelationError, match=advice):
            model.extend(rows)
        with pytest.raises(DataError, match=r"no fact is left.*--columns"):
            model.extend(rows, on_unknown_relation="drop")
        for use in (
            lambda rows=rows: model.score(rows),
            lambda rows=rows: model.rank(rows),
            lambda rows=rows: model.rank(rows, on_unknown_entity="drop"),
            lambda rows=rows: model.predict([(h, r, None) for h, r, _ in rows]),
        ):
            with pytest.raises(DataError, match=r"--columns"):
                use()


def test_triples_of_a_file_are_named_by_their_line(tmp_path):
    model, path = sheaf_model("rotate"), tmp_path / "given.tsv"
    path.write_text("\na0\tnext\ta1\n\n\na1\tnext\tnobody\na2\tfar\ta3\nnone\tskip\ta2\n")
    both = f"{path}, line 5; {path}, line 7"
    for use in (model.score, model.rank):
        with pytest.raises(DataError, match="2 of 4 triples affected") as caught:
            use(path)
        assert both in str(caught.value)
    assert f"; {both})" in model.rank(path, on_unknown_entity="drop").describe()
    box = model.rank([("a0", "next", "a1")], known=path).describe()
    said = "2 triples of the filter have a label that the model does not know and exclude nothing"
    assert f"{said} ({both})" in box
    assert (
        "filter have"
        not in model.rank([("a0", "next", "a1")], known=[("a1", "far", "a2")]).describe()
    )
    path.write_text("a0\tnext\ta1\na0\tof\tnew\n" + "a1\tunheard\ta2\n" * 6)
    grown = model.extend(path, on_unknown_relation="drop")
    assert grown.report.dropped_at.startswith(f"{path}, line 2; {path}, line 3; ")
    assert grown.report.dropped_at.endswith(f"; {path}, line 6 and 2 more")
    assert grown.report.dropped_at in grown.report.summary()
    with pytest.raises(UnknownRelationError, match=r"line 2; .*line 3"):
        model.extend(path)
    frame = pd.DataFrame([("a0", "next", "a1"), ("a0", "next", "nobody")])
    frame.to_parquet(tmp_path / "given.parquet")
    with pytest.raises(DataError, match=r"given\.parquet, row 1\)"):
        model.score(tmp_path / "given.parquet")
    with pytest.raises(DataError, match=r"affected \(row 1\)"):
        model.score(frame)


def test_facts_come_in_many_forms(tmp_path):
    model = sheaf_model("transe")
    labels = [("New York, NY", "next", "a1"), ("O'Brien", "skip", "NA"), ("NA", "far", "a2")]
    expected = model.extend(labels).vectors()
    frame = pd.DataFrame(labels, columns=["head", "relation", "tail"], dtype=str)
    write_triples(tmp_path / "facts.tsv", labels)
    frame.to_csv(tmp_path / "facts.csv", index=False, header=False)
    frame.to_parquet(tmp_path / "facts.parquet")
    swapped = frame[["tail", "head", "relation"]]
    unnamed = frame.set_axis(["a", "b", "c"], axis=1)
    array = np.array(labels, dtype=object)
    forms = [frame, swapped, unnamed, array, iter(labels), [list(t) for t in labels]]
    forms += [tmp_path / "facts.tsv", str(tmp_path / "facts.csv"), tmp_path / "facts.parquet"]
    for form in forms:
        grown = model.extend(form)
        assert torch.equal(grown.vectors(), expected)
        assert grown.labels()[12:] == ("New York, NY", "O'Brien", "NA")


@pytest.mark.parametrize(
    ("triples", "message"),
    [
        ([], "no triple"),
        ([("a", "b")], "3 labels"),
        (["abc"], "3 labels"),
        ([("a0", "next", 3.0)], "float.*a column of integers with missing values"),
        (7, "a path, rows of three labels or a frame of pandas or polars"),
        (pd.DataFrame({"x": ["a"], "y": ["b"]}), "three columns"),
        (pd.DataFrame([["a0", "next", None]]), "strings"),
        ("nowhere.tsv", "cannot be read"),
        ("nowhere.parquet", "No such file"),
    ],
)
def test_bad_facts_are_named(triples, message):
    with pytest.raises(DataError, match=message):
        sheaf_model("transe").extend(triples)
