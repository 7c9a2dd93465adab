"""Several files of triples as one."""

import re
import warnings

import pytest

from sheafprop.data.triple_files import read_files


def test_alternative_ids_of_one_file_mean_their_terms_in_another(tmp_path):
    (tmp_path / "o.obo").write_text("[Term]\nid: X:1\nalt_id: X:9\nis_a: X:2\n")
    (tmp_path / "new.tsv").write_text("N:1\tis_a\tX:9\nX:9\tis_a\tX:3\n")
    for names in (("o.obo", "new.tsv"), ("new.tsv", "o.obo")):
        with pytest.warns(UserWarning, match=r"new\.tsv: alternative ids from another file.*\(2\)"):
            located = read_files([tmp_path / name for name in names])
        rows = located.rows.tolist()
        assert ["N:1", "is_a", "X:1"] in rows
        assert ["X:1", "is_a", "X:3"] in rows
        assert re.search(r"new\.tsv, line 2$", located.place(rows.index(["X:1", "is_a", "X:3"])))


def test_names_of_one_relation_are_reported_where_several_occur(tmp_path):
    iri = "<http://www.w3.org/2000/01/rdf-schema#subClassOf>"
    (tmp_path / "o.nt").write_text(f"<http://a> {iri} <http://b> .\n")
    (tmp_path / "k.tsv").write_text("c\tis_a\tb\n")
    paths = [tmp_path / "o.nt", tmp_path / "k.tsv"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert set(read_files(paths).rows[:, 1]) == {"is_a"}
    (tmp_path / "k.tsv").write_text("c\tbiolink:subclass_of\tb\n")
    with pytest.warns(UserWarning, match="relations biolink:subclass_of, is_a are distinct"):
        read_files(paths)
