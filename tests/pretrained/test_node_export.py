"""Nodes of Neo4j with vectors."""

import csv

import numpy as np
import pytest
import torch

from sheafprop.data.property_graphs import read_nodes
from sheafprop.errors import DataError
from sheafprop.pretrained.vector_export import export_vectors

NODES = 'personId:ID(Person),name,:LABEL\n2,"Ben, ""B""",Person\n1,,Person\n7,Gus,Person\n'
LABELS = ["Person:1", "Film:2", "Person:2", "Person:new, one", "Film:1"]


@pytest.fixture
def nodes(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text(NODES)
    return path


def rows_of(path):
    with open(path, newline="", encoding="utf-8") as stream:
        return list(csv.reader(stream))


def test_nodes_keep_their_columns_space_and_labels(tmp_path, nodes):
    vectors = torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(0))
    with pytest.warns(UserWarning, match="of the model|of 3") as caught:
        (out,) = export_vectors(tmp_path / "out.csv", LABELS, vectors, nodes=nodes)
    assert [str(warning.message) for warning in caught] == [
        "1 node of 3 without a vector, as the model does not know them",
        "skipped: 2 entities of the model that the file of nodes does not have",
    ]
    header, *rows = rows_of(out)
    assert header == ["personId:ID(Person)", "name", ":LABEL", "vector:float[]"]
    assert [row[:3] for row in rows] == [
        ["1", "", "Person"],
        ["2", 'Ben, "B"', "Person"],
        ["new, one", "", "Person"],
        ["7", "Gus", "Person"],
    ]
    values = np.array([row[3].split(";") for row in rows[:3]], dtype=np.float32)
    assert np.array_equal(values, vectors[[0, 2, 3]].flatten(1).numpy())
    assert rows[3][3] == ""
    # Written again from its own output, a column of vectors takes the place of the old one.
    again = export_vectors(tmp_path / "again.csv", LABELS[:1], vectors[:1] + 1, nodes=out)[0]
    header, first, *_ = rows_of(again)
    assert header.count("vector:float[]") == 1
    assert first[:3] == ["1", "", "Person"]
    _, columns, found = read_nodes(again)
    assert {columns.label(row) for row in found.rows} == {*LABELS[::2][:2], LABELS[3], "Person:7"}


def test_labels_of_new_nodes_are_not_guessed(tmp_path, nodes):
    nodes.write_text(NODES.replace("Gus,Person", "Gus,Person;Admin"))
    out = export_vectors(tmp_path / "o.csv", LABELS[3:4], torch.zeros(1, 1, 2), nodes=nodes)[0]
    assert rows_of(out)[1] == ["new, one", "", "", "0;0"]
    # Ids of no space are of any file of nodes: nothing is added.
    nodes.write_text(NODES.replace("(Person)", ""))
    with pytest.warns(UserWarning, match="2 entities of the model"):
        out = export_vectors(tmp_path / "o.csv", ["9", ":8"], torch.zeros(2, 1, 2), nodes=nodes)[0]
    assert len(rows_of(out)) == 4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (NODES + "2,again,Person\n", "'2' is there twice"),
        ("id,category\n1,2\n", "nodes for Neo4j have a column :ID"),
        ("a,b,c\n1,2,3\n", "a node file must start with a header"),
        (NODES + "1,2,3,4\n", "line 5: expected 3"),
    ],
)
def test_other_files_are_refused_and_nothing_is_written(tmp_path, nodes, text, words):
    nodes.write_text(text)
    with pytest.raises(DataError, match=words):
        export_vectors(tmp_path / "out.csv", LABELS, torch.zeros(5, 1, 2), nodes=nodes)
    with pytest.raises(DataError, match="nodes are for the format neo4j"):
        export_vectors(tmp_path / "out.npy", LABELS, torch.zeros(5, 1, 2), nodes=nodes)
    assert [path.name for path in tmp_path.iterdir()] == ["people.csv"]
