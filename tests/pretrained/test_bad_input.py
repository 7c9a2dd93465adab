"""Input that no one should give: one of the library's own errors, or a model; nothing else."""

import errno
import os

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sheafprop.errors import DataError, DivergenceError, SheafpropError, UnknownRelationError
from sheafprop.files import StorageError
from sheafprop.inductive.inductive_propagation import InductivePropagation
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.pretrained.importers.arrays import import_arrays
from sheafprop.pretrained.vector_export import export_vectors
from tests.inductive.test_inductive_propagation import trained
from tests.pretrained.models import sheaf_model
from tests.toy import toy_data

#: Half of them are files and half are queries.
EXAMPLES = int(os.environ.get("SHEAFPROP_FUZZ", "2000"))
MODEL = sheaf_model("transe")

LABEL = st.one_of(
    st.sampled_from(["a0", "a1", "a7", "n", "m", "NA", "1.0", "é", '"q"', " ", "a0 "]),
    st.text(min_size=1, max_size=4),
)
RELATION = st.one_of(st.sampled_from(["next", "skip", "far"]), LABEL)
LINE = st.one_of(
    st.tuples(LABEL, st.sampled_from(["next", "skip", "far"]), LABEL).map("\t".join),
    st.tuples(LABEL, RELATION, LABEL).map("\t".join),
)
CONTENT = st.one_of(
    st.lists(LINE, min_size=1, max_size=6).map(lambda x: "\n".join(x).encode("utf-8", "replace")),
    st.lists(LINE, min_size=1, max_size=3).map(
        lambda x: "\r\n".join([*x, ""]).encode("utf-8", "replace")
    ),
    st.binary(max_size=60),
)


def queries(names, relations, operators, least):
    """Texts that are queries, or nearly so."""
    relation = st.one_of(relations, relations.map("inverse({})".format))
    step = st.builds("via({}, {})".format, relation, names)

    def grown(inner):
        several = st.lists(inner, min_size=least, max_size=3).map(", ".join)
        return st.one_of(
            st.builds("via({}, {})".format, relation, inner),
            st.builds("{}({})".format, st.sampled_from(operators), several),
        )

    return st.recursive(step, grown, max_leaves=4)


FINE = queries(
    st.sampled_from(["a0", "a1", "a7", "n0"]),
    st.sampled_from(["next", "skip", "far"]),
    ["and", "or"],
    2,
)
ODD = st.one_of(
    queries(LABEL, RELATION, ["and", "or", "not", "nor"], 1),
    st.text(max_size=20),
    st.builds("{0}{2}{1}".format, FINE, FINE, st.text("(),;\"'\\ \t\0via", max_size=3)),
    st.sampled_from(["2p(next, far; a0)", "pi(next, skip, far; a0, a1)", "2i(next; a0)", "3i"]),
)
QUERY = st.booleans().flatmap(lambda fine: FINE if fine else ODD)
FUZZ = settings(
    max_examples=EXAMPLES // 2,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


def test_whatever_the_file_holds_the_answer_is_a_model_or_our_own_error(tmp_path):
    reached, total = [0], [0]
    path = tmp_path / "facts.tsv"

    @FUZZ
    @given(content=CONTENT, drop=st.booleans(), refine=st.booleans())
    def run(content, drop, refine):
        total[0] += 1
        path.write_bytes(content)
        try:
            grown = MODEL.extend(
                path,
                on_unknown_relation="drop" if drop else "error",
                mode="refine" if refine else "keep",
            )
        except SheafpropError:
            return
        reached[0] += 1
        assert torch.isfinite(grown.vectors()).all()
        assert torch.equal(grown.vectors(MODEL.labels()), MODEL.vectors())

    run()
    assert reached[0] >= 0.3 * total[0]
    assert [p.name for p in tmp_path.iterdir()] == ["facts.tsv"]


def test_whatever_the_query_is_the_answer_is_a_table_or_our_own_error():
    reached, total = [0], [0]
    model = MODEL.extend([("n0", "next", "a1")])

    @FUZZ
    @given(query=st.one_of(QUERY, st.lists(QUERY, max_size=2)), k=st.integers(1, 40))
    def run(query, k):
        total[0] += 1
        try:
            frame = model.answer(query, k, interior="free", explain=bool(k % 2))
        except SheafpropError:
            return
        reached[0] += 1
        asked = [query] if isinstance(query, str) else query
        assert len(frame.drop_duplicates()) >= len(set(asked)) * min(k, model.num_entities)
        assert np.isfinite(frame[["score", "energy"]].to_numpy()).all()
        assert set(frame["answer"]) <= set(model.labels())
        over_entities = model.answer(query, k)
        assert over_entities["truth"].between(0, 1).all()
        assert set(over_entities["answer"]) <= set(model.labels())

    run()
    assert reached[0] >= 0.3 * total[0]


@pytest.mark.parametrize(
    "content",
    [
        b"\x00" * 100,
        b"a0\tnext\tn\x00\n",
        b"\xff\xfea\x000\x00",
        b"a0 next\tn\n",
        b"a0\tnext n\n",
        b"x" * 10_000_000,
        b"",
        b"\n\n",
    ],
    ids=["nul", "nul inside", "utf-16", "mixed", "spaces", "10 MB line", "empty", "blank"],
)
def test_broken_files_are_refused_in_a_line(tmp_path, content):
    (tmp_path / "f.tsv").write_bytes(content)
    with pytest.raises(DataError, match=r"f\.tsv") as caught:
        MODEL.extend(tmp_path / "f.tsv")
    assert len(str(caught.value)) < 1000


def test_huge_labels_and_many_repetitions_are_fine(tmp_path):
    label = "x" * 100_000
    grown = MODEL.extend([(label, "next", "a1")])
    assert label in grown.labels()
    (tmp_path / "f.tsv").write_bytes(b"n\tnext\ta1\n" * 1_000_000)
    grown = MODEL.extend(tmp_path / "f.tsv")
    assert grown.report.duplicates == 999_999
    once = MODEL.extend([("n", "next", "a1")])
    assert torch.allclose(grown.vectors("n"), once.vectors("n"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_a_disk_that_refuses_leaves_nothing(tmp_path, monkeypatch, number):
    def refuse(*arguments):
        raise OSError(number, "refused")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(StorageError, match="cannot be written"):
        MODEL.save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_graph_whose_relations_are_all_unseen_is_refused_whatever_is_done_with_them():
    facts = [("a0", "unheard", "n"), ("n", "of", "m")]
    with pytest.raises(UnknownRelationError, match=r"2 relations are unknown .* 2 of 2 facts"):
        MODEL.extend(facts)
    with pytest.raises(DataError, match="no fact is left"):
        MODEL.extend(facts, on_unknown_relation="drop")


@pytest.mark.parametrize("k", [13, 10**6])
def test_more_answers_than_entities_are_all_entities(k):
    assert len(MODEL.predict_tails("a0", "next", k, include_known=True)) == MODEL.num_entities
    assert len(MODEL.predict_heads("next", "a0", k, include_known=True)) == MODEL.num_entities
    assert len(MODEL.answer("via(next, a0)", k)) == MODEL.num_entities


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", ["transe", "rotate", "se"])
def test_a_vector_that_is_not_finite_is_named_by_its_entity(tmp_path, name, value):
    model = sheaf_model(name).extend([("n", "next", "a1")])
    model.kge.node_emb.weight.data[7, 2] = value
    label = model.labels()[7]
    message = rf"entity '{label}' \(row 7\) is not finite"
    for use in (
        lambda: model.extend([("m", "far", label)]),
        lambda: model.predict_tails("a0", "next", 3),
        lambda: model.predict_heads("far", "n", 3),
        lambda: model.score([("a0", "next", label)]),
        lambda: model.rank([("a0", "next", "a1")]),
        lambda: model.answer("via(next, a0)"),
        lambda: model.scorer(),
        lambda: model.stored(),
        lambda: model.save(tmp_path / "model"),
        lambda: export_vectors(tmp_path / "v.tsv", model.labels(), model.vectors()),
    ):
        with pytest.raises((DivergenceError, ValueError), match=message):
            use()
    assert list(tmp_path.iterdir()) == []


def test_relations_and_arrays_that_are_not_finite_are_named(tmp_path):
    model = sheaf_model("transe")
    model.kge.rel_emb.weight.data[1] = torch.nan
    with pytest.raises(DivergenceError, match=r"'rel_emb.weight': the row of relation 'skip'"):
        model.save(tmp_path / "model")
    vectors = np.ones((4, 3))
    vectors[2, 1], vectors[3, 0] = np.nan, np.inf
    with pytest.raises(DivergenceError, match=r"entity 'c' \(row 2, and 1 more\) is not finite"):
        import_arrays(
            "transe",
            entities=list("abcd"),
            relations=["r"],
            vectors=vectors,
            parameters={"rel_emb.weight": np.ones((1, 3))},
        )


def test_a_trained_vector_that_is_not_finite_is_named_before_it_is_propagated():
    data = toy_data()
    model = trained("rotate", data)
    model.node_emb.weight.data[5] = torch.nan
    label = data.train.entities.labels[5]
    with pytest.raises(DivergenceError, match=rf"entity '{label}' \(row 5\)"):
        InductivePropagation(model, data, PropagationSettings())
