"""Files of ids and labels."""

import pytest

from sheafprop.errors import FormatError
from sheafprop.pretrained.importers.id_files import (
    id_then_label,
    label_then_id,
    read_id_triples,
    read_labels,
    require_file,
)


def test_labels_come_in_the_order_of_ids(tmp_path):
    path = tmp_path / "ids"
    path.write_bytes(b'\xef\xbb\xbf1\tb c\r\n0\t"a"\r\n2,d\n')
    assert read_labels(path, id_then_label) == ["a", "b c", "d"]
    path.write_text("2\nb c 1\n/m/0a\t0\n")
    assert read_labels(path, label_then_id, counted=True) == ["/m/0a", "b c"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2\na 0\n", "is truncated: it has no line of id 1"),
        ("2\na 0\nb 0\n", r"line 3: expected a label and an id from 0 to 1, each once \(got 'b 0'"),
        ("2\na 0\nb 2\n", "line 3: expected a label and an id from 0 to 1"),
        ("2\na 0\nb\n", "line 3: expected"),
        ("x\na 0\n", "line 1: expected the number of lines"),
        ("1\na -1\n", "line 2: expected"),
    ],
)
def test_malformed_labels_are_named(tmp_path, text, words):
    path = tmp_path / "entity2id.txt"
    path.write_text(text)
    with pytest.raises(FormatError, match=rf"entity2id\.txt'.*{words}"):
        read_labels(path, label_then_id, counted=True)


def test_triples_of_ids_and_what_is_wrong_with_them(tmp_path):
    path = tmp_path / "train"
    path.write_text("2\n0 1 5\n2 3 6\n")
    found = read_id_triples(path, (0, 2, 1), (4, 7), counted=True)
    assert found.tolist() == [[0, 5, 1], [2, 6, 3]]
    for sizes in ((3, 7), (4, 6)):
        with pytest.raises(FormatError, match=r"line 3: an id has no label \(got '2 3 6'"):
            read_id_triples(path, (0, 2, 1), sizes, counted=True)
    path.write_text("3\n0 1 5\n")
    with pytest.raises(FormatError, match="truncated: it holds 1 triples of 3"):
        read_id_triples(path, (0, 2, 1), (4, 7), counted=True)
    path.write_text("0\t1\t2\n0\tb\t1\n")
    with pytest.raises(FormatError, match=r"line 2: expected three ids \(got '0\\tb"):
        read_id_triples(path, (0, 1, 2), (4, 7))
    path.write_text("0 1 2\n0 1 3\n")
    with pytest.raises(FormatError, match=r"line 2: an id has no label \(got '0 1 3' of 3 ent"):
        read_id_triples(path, (0, 1, 2), (3, 7))
    path.write_bytes(b"\xff\n")
    with pytest.raises(FormatError, match="not UTF-8 text"):
        read_id_triples(path, (0, 1, 2), (4, 7))
    with pytest.raises(FormatError, match="is missing: look"):
        require_file(tmp_path / "none", "look")
