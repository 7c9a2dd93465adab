"""Messages counted into rows against lists of them."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sheafprop.kernels.build_fact_csr import TripleChunk, build_fact_csr, number_vertices

FREE, KNOWN, RELATIONS = 6, 3, 3
TRIPLE = st.tuples(
    st.integers(0, FREE + KNOWN - 1),
    st.integers(0, RELATIONS - 1),
    st.integers(0, FREE + KNOWN - 1),
)
TRIPLES = st.lists(TRIPLE, max_size=40)


def build(triples, weight=None, *, pieces=3, **options):
    rows = np.array(triples, dtype=np.int32).reshape(-1, 3)
    of = None if weight is None else np.array(weight, dtype=np.float64)

    def chunks():
        for part in np.array_split(np.arange(len(rows)), pieces):
            yield TripleChunk(*rows[part].T, None if of is None else of[part])

    arguments = dict(merge=False, ends=True, weighted=weight is not None, dtype=torch.float64)
    return build_fact_csr(chunks, FREE, KNOWN, RELATIONS, **(arguments | options))


def messages(triples, weight):
    """Every message as (destination, is known, source, label, weight); loops apart."""
    sent, loops = [], []
    for (h, r, t), w in zip(triples, weight, strict=True):
        if h == t:
            loops += [(h, r, w)] if h < FREE else []
            continue
        for dst, src, label in ((t, h, r), (h, t, RELATIONS + r)):
            if dst < FREE:
                known = src >= FREE
                sent.append((dst, known, src - FREE * known, label, w))
    return sent, loops


def listed(rows, *columns):
    counts = rows.start[1:] - rows.start[:-1]
    dst = torch.repeat_interleave(torch.arange(len(counts)), counts).tolist()
    size = len(dst)
    values = [[1.0] * size if c is None else c.tolist() for c in columns]
    return list(zip(dst, *values, strict=True))


@given(TRIPLES, st.booleans(), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_rows_hold_every_message_once_and_sorted(triples, weighted, seed):
    weight = np.random.default_rng(seed).random(len(triples)).tolist()
    weight = weight if weighted else [1.0] * len(triples)
    csr = build(triples, weight if weighted else None)
    sent, loops = messages(triples, weight)
    for part, is_known in ((csr.free, False), (csr.known, True)):
        found = listed(part, part.src, part.label, part.weight)
        expected = [(d, s, k, w) for d, known, s, k, w in sent if known == is_known]
        assert sorted(found) == sorted(expected)
        assert [row[:3] for row in found] == sorted(row[:3] for row in expected)
    found = listed(csr.loops, csr.loops.label, csr.loops.weight)
    assert sorted(found) == sorted(loops)
    ends = listed(csr.ends, csr.ends.label, csr.ends.weight)
    assert sorted(ends) == sorted((d, k, w) for d, _, _, k, w in sent)
    assert [row[:2] for row in ends] == sorted(row[:2] for row in ends)
    total = np.zeros(FREE)
    for d, _, _, _, w in sent:
        total[d] += w
    assert np.allclose(csr.total.numpy(), total, atol=1e-12)


@given(TRIPLES)
@settings(max_examples=40, deadline=None)
def test_repeated_triples_may_count_once(triples):
    once, distinct = build(list(dict.fromkeys(triples))), build(triples, distinct=True)
    for name in ("free", "known", "ends", "loops"):
        a, b = getattr(once, name), getattr(distinct, name)
        assert torch.equal(a.start, b.start)
        assert torch.equal(a.label, b.label)
        assert (a.src is None) or torch.equal(a.src, b.src)
    assert torch.equal(once.total, distinct.total)


@given(TRIPLES, st.booleans())
@settings(max_examples=40, deadline=None)
def test_identity_maps_merge_entries_of_one_source(triples, weighted):
    weight = [0.5 + i for i in range(len(triples))]
    csr = build(triples, weight if weighted else None, merge=True)
    sent, _ = messages(triples, weight if weighted else [1.0] * len(triples))
    expected = Counter()
    for dst, known, src, _, w in sent:
        expected[dst, known, src] += w
    found = {}
    for part, known in ((csr.free, False), (csr.known, True)):
        assert part.label is None
        for dst, src, w in listed(part, part.src, part.weight):
            found[dst, known, src] = w
    assert found == pytest.approx(dict(expected))


def test_entries_are_as_small_as_they_may_be():
    triples = [(0, 0, 1), (0, 1, 1), (2, 0, 7)]
    merged = build(triples, merge=True, ends=False)
    assert merged.ends is None
    assert (merged.free.src.dtype, merged.free.weight.dtype) == (torch.int32, torch.uint8)
    assert merged.known.weight is None  # no parallel triples there
    many = build([(0, 0, 1)] * 300, merge=True, ends=False)
    assert many.free.weight.tolist() == [300.0, 300.0]
    typed = build(triples)
    assert (typed.free.label.dtype, typed.free.weight) == (torch.int16, None)


def test_arrays_are_made_where_they_are_wanted():
    made = {}

    def allocate(name, size, dtype):
        made[name] = np.empty(size, dtype)
        return made[name]

    csr = build([(0, 0, 1), (1, 2, 7), (3, 1, 3)], allocate=allocate)
    for part in ("free", "known", "loops", "ends"):
        rows = getattr(csr, part)
        for column in ("start", "src", "label"):
            tensor = getattr(rows, column)
            if tensor is not None:
                assert np.shares_memory(tensor.numpy(), made[f"{part}.{column}"])
    assert np.shares_memory(csr.total.numpy(), made["total"])


def test_known_vertices_are_numbered_where_a_free_one_meets_them():
    known = torch.tensor([True, False, True, False, True])
    facts = np.array([[0, 0, 2], [1, 0, 4], [3, 0, 1], [0, 0, 0]])

    def chunks():
        yield TripleChunk(*facts.T)

    number, sources = number_vertices(chunks, known)
    assert sources.tolist() == [4]
    assert [number[1], number[3], number[4]] == [0, 1, 2]
    assert (number[[0, 2]] >= 2).all()
