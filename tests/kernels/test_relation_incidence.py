import pytest
import torch

from sheafprop.kernels.relation_incidence import RelationIncidence, equal_rows, joint_product
from tests.kernels.cases import random

N, R = 6, 3
HEAD = torch.tensor([0, 1, 1, 3, 0, 4])
TAIL = torch.tensor([1, 2, 2, 0, 1, 0])
EDGE_TYPE = torch.tensor([0, 2, 2, 1, 0, 1])
WEIGHT = torch.tensor([1.0, 0.5, 2.0, 3.0, 0.25, 3.0], dtype=torch.float64)


def dense(head=HEAD, tail=TAIL, edge_type=EDGE_TYPE, weight=WEIGHT):
    """The matrix ``[N, 2 R]``, entry by entry."""
    out = torch.zeros(N, 2 * R, dtype=weight.dtype)
    for h, t, r, w in zip(head, tail, edge_type, weight, strict=True):
        out[t, r] += w
        out[h, R + r] += w
    return out


@pytest.fixture
def ends():
    return RelationIncidence.of_triples(HEAD, TAIL, EDGE_TYPE, WEIGHT, N, R)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_sums_are_products_with_the_matrix(ends, dtype):
    for shape in ((2 * R,), (2 * R, 1), (2 * R, 4), (2 * R, 2, 2)):
        table = random(*shape, dtype=dtype)
        expected = torch.einsum("vk,k...->v...", dense().to(dtype), table)
        assert torch.allclose(ends.sum(table), expected, atol=1e-13)
    assert torch.allclose(ends.total(), dense().sum(1, keepdim=True))


def test_some_ends_and_some_vertices(ends):
    table = random(2 * R, 3, dtype=torch.float64)
    kept = EDGE_TYPE != 2
    some = ends.where(kept.repeat(2))
    expected = dense(HEAD[kept], TAIL[kept], EDGE_TYPE[kept], WEIGHT[kept]) @ table
    assert torch.allclose(some.sum(table), expected, atol=1e-13)
    vertices = torch.tensor([2, 0, 5])
    part = ends.of(vertices)
    assert torch.allclose(part.sum(table), (dense() @ table)[vertices], atol=1e-13)
    assert not part.empty
    assert ends.where(torch.zeros(12, dtype=torch.bool)).empty


def test_messages_come_from_the_other_ends(ends):
    entries = ends.messages(torch.cat([HEAD, TAIL]), N, symmetric=True)
    assert entries.dst.tolist() == [*TAIL.tolist(), *HEAD.tolist()]
    assert entries.label.tolist() == [*EDGE_TYPE.tolist(), *(EDGE_TYPE + R).tolist()]
    assert (entries.num_dst, entries.num_src, entries.symmetric) == (N, N, True)


def test_ends_and_loops_in_one_product(ends):
    loops = RelationIncidence(
        torch.tensor([2, 5]), torch.tensor([1, 1]), torch.tensor([0.5, 4.0]).double(), N, R
    )
    table = random(3 * R, 2, dtype=torch.float64)
    product, used = joint_product(ends, loops)
    expected = dense() @ table[: 2 * R]
    expected[2] += 0.5 * table[2 * R + 1]
    expected[5] += 4 * table[2 * R + 1]
    assert torch.equal(used, used.sort().values)
    assert torch.allclose(product(table[used]), expected, atol=1e-13)


def test_vertices_of_equal_rows_are_one_kind(ends):
    none = ends.where(torch.zeros(12, dtype=torch.bool))
    first, kind = equal_rows(ends, none)
    # 3 and 4 are each the head of one triple of relation 1 with weight 3.
    assert kind[3] == kind[4]
    assert first.numel() == kind.unique().numel() == N - 1
    assert torch.equal(dense()[first][kind], dense())
    apart = RelationIncidence(torch.tensor([3]), torch.tensor([0]), WEIGHT[:1], N, R)
    first, kind = equal_rows(ends, apart)
    assert kind.unique().numel() == N
