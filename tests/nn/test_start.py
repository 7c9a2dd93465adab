"""Starts, sections and lengths."""

import pytest
import torch

from sheafprop.kernels.rows import add_rows
from sheafprop.nn import RelationPrototypes, draw_sections, rescale_sections, start_sections
from tests.sheaf_cases import WIDTH, make_case


def one_section(case):
    return case.x.unsqueeze(1), case.boundary_mask


@pytest.mark.parametrize("start", ["zeros", "random"])
def test_starts_replace_free_rows_only(start):
    case = make_case("identity")
    x, known = one_section(case)
    random = draw_sections(x, known)
    out = start_sections(
        x, known, case.edge_index, case.edge_type, start=start, random=random
    ).squeeze(1)
    assert torch.equal(out[known], case.x[known])
    if start == "zeros":
        assert (out[~known] == 0).all()
    else:
        assert torch.equal(out, random.squeeze(1))
        assert (out[~known] != case.x[~known]).all()


@pytest.mark.parametrize("start", ["zeros", "random"])
def test_free_rows_that_a_start_replaces_may_hold_anything(start):
    case = make_case("identity", 3)
    found = []
    for value in (1.0, float("nan")):
        case.x[~case.boundary_mask] = value
        x, known = one_section(case)
        found.append(
            start_sections(
                x,
                known,
                case.edge_index,
                case.edge_type,
                start=start,
                random=draw_sections(x, known),
            )
        )
    assert torch.equal(*found)


def test_random_start_depends_on_the_key_alone():
    case = make_case("diagonal, unitary")
    x, known = case.x.unsqueeze(1).expand(-1, 2, -1), case.boundary_mask
    keys = torch.arange(12) * 1000 + 5
    out = draw_sections(x, known, node_keys=keys, seed=7)
    assert out.shape == (12, 2, WIDTH)
    flipped = draw_sections(x.flip(0), known.flip(0), node_keys=keys.flip(0), seed=7)
    assert torch.equal(flipped.flip(0), out)
    other = draw_sections(x, known, node_keys=keys, seed=8)
    assert torch.equal(other[known], out[known])
    assert not torch.equal(other[~known], out[~known])


def test_random_rows_have_the_mean_length_of_the_known_ones():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(4000, 1, 64, generator=g) * 5
    known = torch.arange(4000) < 2000
    lengths = torch.linalg.vector_norm(draw_sections(x, known), dim=-1)
    assert float(lengths[~known].mean()) == pytest.approx(float(lengths[known].mean()), rel=0.01)


def test_prototype_start_is_the_mean_over_triple_ends():
    # Training: relation 0 from {0, 1} to {2}; relation 1 never occurs.
    x = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 8.0]])
    train = torch.tensor([[0, 1], [2, 2]])
    prototypes = RelationPrototypes.from_triples(x, train, torch.tensor([0, 0]), 2)
    # Node 3: twice a head and once a tail of relation 0, and a head of relation 1; node 4: only 1.
    edge_index = torch.tensor([[3, 3, 0, 3], [0, 1, 3, 4]])
    edge_type = torch.tensor([0, 0, 0, 1])
    known = torch.tensor([True, True, True, False, False])
    features = torch.cat([x, torch.full((2, 2), 9.0)]).unsqueeze(1)
    graph = (features, known, edge_index, edge_type)
    random = draw_sections(features.expand(-1, 3, -1), known)
    given = dict(random=random[:, :1], prototypes=prototypes)
    out = start_sections(*graph, start="prototype", **given)
    assert out.shape == (5, 1, 2)
    assert torch.allclose(out[3, 0], torch.tensor([4 / 3, 8 / 3]))
    assert torch.equal(out[4, 0], random[4, 0])
    mixed = start_sections(*graph, start="mixed", random=random, prototypes=prototypes)
    assert mixed.shape == (5, 3, 2)
    assert torch.equal(mixed[3, 0], out[3, 0])
    assert torch.equal(mixed[3, 1:], random[3, 1:])
    weight = torch.tensor([0.0, 1.0, 3.0, 1.0])
    weighted = start_sections(*graph, start="prototype", edge_weight=weight, **given)
    assert torch.allclose(weighted[3, 0], torch.tensor([0.5, 6.0]))
    with pytest.raises(ValueError, match="needs 'prototypes'"):
        start_sections(*graph, start="prototype", random=random)
    with pytest.raises(ValueError, match="needs 'random'"):
        start_sections(*graph, start="mixed", prototypes=prototypes)
    with pytest.raises(ValueError, match="got 'mean'"):
        start_sections(*graph, start="mean")


def test_output_rows_take_the_length_of_the_known_ones():
    case = make_case("identity", 3)
    x, known = one_section(case)
    out = rescale_sections(x, known)
    expected = torch.linalg.vector_norm(x[known], dim=-1).mean()
    lengths = torch.linalg.vector_norm(out[~known], dim=-1)
    assert torch.allclose(lengths, expected.expand_as(lengths))
    assert torch.equal(out[known], x[known])
    unit = torch.nn.functional.normalize(x, dim=-1)
    assert torch.allclose(out[~known], (expected * unit)[~known])
    zeros = x.masked_fill(~known.view(-1, 1, 1), 0)
    assert torch.equal(rescale_sections(zeros, known, 2.0), zeros)
    nobody = torch.zeros_like(known)
    lengths = torch.linalg.vector_norm(rescale_sections(x, nobody), dim=-1)
    assert torch.allclose(lengths, torch.ones_like(lengths))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once(dtype):
    case = make_case("identity", 4)
    x, known = case.x.to(dtype).unsqueeze(1), case.boundary_mask
    for function in (draw_sections, rescale_sections):
        out = function(x, known)
        assert torch.equal(out, function(x.float(), known).to(dtype))


def test_means_of_both_sides():
    # Relation 0 from {0, 1} to {2}; relation 1 never occurs.
    x = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 8.0]])
    edge_index = torch.tensor([[0, 1], [2, 2]])
    prototypes = RelationPrototypes.from_triples(x, edge_index, torch.tensor([0, 0]), 2)
    assert torch.equal(prototypes.mean, torch.tensor([[0, 8.0], [0, 0], [2.0, 0.0], [0, 0]]))
    assert prototypes.count.tolist() == [2, 0, 2, 0]


def test_nodes_of_relations_without_prototype_have_none():
    mean, count = torch.tensor([[4.0], [0], [2], [0]]), torch.tensor([1, 0, 1, 0])
    prototypes = RelationPrototypes(mean, count)
    edge_index, edge_type = torch.tensor([[0, 1, 2], [1, 2, 3]]), torch.tensor([0, 1, 1])
    mean, found = prototypes.start(edge_index, edge_type, 5)
    # Node 0 is a head and node 1 a tail of relation 0.
    assert found.tolist() == [True, True, False, False, False]
    assert mean.flatten().tolist() == [2, 4, 0, 0, 0]
    weight = torch.tensor([0.0, 1.0, 1.0])
    assert not prototypes.start(edge_index, edge_type, 5, weight)[1].any()


def test_half_sums_do_not_lose_what_they_add():
    # In half precision 2048 + 1 is 2048.
    prototypes = RelationPrototypes(torch.full((2, 1), 3.0).half(), torch.ones(2).long())
    edge_index = torch.stack([torch.arange(1, 5001), torch.zeros(5000, dtype=torch.long)])
    mean, found = prototypes.start(edge_index, torch.zeros(5000, dtype=torch.long), 5001)
    assert found.all()
    assert torch.equal(mean, torch.full((5001, 1), 3.0))


def test_triples_may_be_summed_in_parts(monkeypatch):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(9, 4, dtype=torch.complex128, generator=g)
    edge_index = torch.randint(9, (2, 50), generator=g)
    edge_type = torch.randint(3, (50,), generator=g)
    whole = RelationPrototypes.from_triples(x, edge_index, edge_type, 5)
    most = 0

    def watch(out, dim, index, rows):
        nonlocal most
        most = max(most, len(rows))
        return add_rows(out, dim, index, rows)

    monkeypatch.setattr("sheafprop.nn.start._CHUNK_NUMBERS", 4 * 7)
    monkeypatch.setattr("sheafprop.nn.start.add_rows", watch)
    parts = RelationPrototypes.from_triples(x, edge_index, edge_type, 5)
    assert most == 7
    torch.testing.assert_close(parts.mean, whole.mean, rtol=0, atol=1e-13)
    assert torch.equal(parts.count, whole.count)
    none = RelationPrototypes.from_triples(x, edge_index[:, :0], edge_type[:0], 5)
    assert not none.mean.any()
