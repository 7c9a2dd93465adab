import pytest
import torch

from tests.kernels.test_build_fact_csr import FREE, RELATIONS, build

TRIPLES = [(0, 0, 1), (1, 2, 0), (1, 2, 0), (2, 1, 7), (8, 0, 2), (3, 1, 3), (4, 2, 4), (4, 0, 4)]


def written_out(table, both_loop_ends=True):
    out = torch.zeros(FREE, *table.shape[1:], dtype=table.dtype)
    for h, r, t in TRIPLES:
        if h == t and not both_loop_ends:
            continue
        for vertex, label in ((t, r), (h, RELATIONS + r)):
            if vertex < FREE:
                out[vertex] += table[label]
    return out


@pytest.mark.parametrize("width", [1, 3])
def test_sums_over_ends(width):
    csr = build(TRIPLES)
    g = torch.Generator().manual_seed(width)
    table = torch.randn(2 * RELATIONS, width, generator=g, dtype=torch.float64)
    assert torch.allclose(csr.incidence().sum(table), written_out(table, False), atol=1e-12)
    assert torch.allclose(csr.sum_all_ends(table), written_out(table), atol=1e-12)
    ones = torch.ones(2 * RELATIONS, 1, dtype=torch.float64)
    assert torch.equal(csr.incidence().total(), written_out(ones, False))
    part = csr.part(1, 5)
    assert torch.allclose(part.sum_all_ends(table), written_out(table)[1:5], atol=1e-12)


def test_labels_that_were_left_out_are_missed():
    csr = build(TRIPLES, ends=False)
    assert torch.equal(
        csr.incidence().sum(torch.ones(2 * RELATIONS, 1)).flatten(), csr.total.float()
    )
    with pytest.raises(RuntimeError, match="left out"):
        csr.incidence().sum(torch.ones(2 * RELATIONS, 2))


def test_vertices_that_a_weight_touches():
    weight = [1.0, 0, 0, 0, 2.0, 0, 0, 0]
    assert build(TRIPLES, weight).touched.tolist() == [True, True, True, False, False, False]
    assert build(TRIPLES).touched.tolist() == [True] * 5 + [False]


def test_pairs_name_both_ends_of_all_entries():
    rows, sources, weights = build(TRIPLES, merge=True, ends=False).pairs()
    columns = (column.tolist() for column in (rows, sources, weights))
    found = {(a, b): w for a, b, w in zip(*columns, strict=True)}
    expected = {(0, 1): 3, (1, 0): 3, (2, 7): 1, (2, 8): 1, (3, 3): 1, (4, 4): 1}
    assert found == expected


def test_what_known_vertices_reach():
    csr = build(TRIPLES)
    assert (
        csr.reached_from(torch.tensor([True, True, True])).tolist()
        == [False] * 2 + [True] + [False] * 3
    )
    assert not csr.reached_from(torch.tensor([True, False, False])).any()


@pytest.mark.parametrize("merge", [True, False])
def test_a_share_has_the_rows_of_some_vertices_and_sources_of_all(merge):
    csr = build(TRIPLES, merge=merge)
    index = torch.tensor([2, 0, 3])
    others = torch.tensor([v for v in range(FREE) if v not in index.tolist()])
    order = torch.cat([index, others])
    place = torch.empty_like(order)
    place[order] = torch.arange(FREE)
    part = csr.share(index, place)
    assert (part.num_free, part.num_halo) == (3, FREE - 3)
    g = torch.Generator().manual_seed(0)
    table = torch.randn(2 * RELATIONS, 2, generator=g, dtype=torch.float64)
    assert torch.equal(part.sum_all_ends(table), csr.sum_all_ends(table)[index])
    assert torch.equal(part.total, csr.total[index])
    assert torch.equal(part.touched, csr.touched[index])
    if merge:
        x = torch.randn(FREE, 2, generator=g, dtype=torch.float64)
        whole = csr.messages("free")
        assert torch.equal(part.messages("free")(x[order]), whole(x)[index])
        known = torch.randn(csr.num_known, 2, generator=g, dtype=torch.float64)
        assert torch.equal(part.messages("known")(known), csr.messages("known")(known)[index])
        assert part.messages("free").transpose() is not part.messages("free")
