import pytest
import torch

from sheafprop.kernels import typed_entries
from sheafprop.kernels.typed_entries import TypedEntries
from tests.kernels.cases import RELATIONS, make_entries, random


def listed(dst, src, label, weight):
    weight = torch.ones(len(dst)) if weight is None else weight
    columns = (part.tolist() for part in (dst, src, label, weight))
    return sorted(zip(*columns, strict=True))


@pytest.mark.parametrize("weighted", [True, False])
def test_entries_are_those_of_the_coupling_sorted(weighted):
    coupling = make_entries(weighted=weighted)
    entries = TypedEntries.from_coupling(coupling, RELATIONS)
    assert (entries.weight is None) == (not weighted)
    assert entries.num_dst == coupling.num_dst
    found = listed(entries.dst(), entries.src, entries.label, entries.weight)
    assert found == listed(coupling.dst, coupling.src, coupling.label, coupling.weight)
    order = list(zip(entries.dst().tolist(), entries.src.tolist(), strict=True))
    assert order == sorted(order)


@pytest.mark.parametrize("symmetric", [True, False])
def test_the_adjoint_exchanges_both_ends(symmetric):
    entries = TypedEntries.from_coupling(make_entries(symmetric=symmetric), RELATIONS)
    table = random(2 * RELATIONS, 1, dtype=torch.float64)

    def dense(entries, table):
        out = torch.zeros(entries.num_dst, entries.num_src, dtype=torch.float64)
        value = table.flatten()[entries.label.long()] * entries.weight
        return out.index_put((entries.dst(), entries.src.long()), value, accumulate=True)

    adjoint, renamed = entries.adjoint(table)
    assert torch.allclose(dense(adjoint, renamed), dense(entries, table).T, atol=1e-13)


def test_pieces_hold_one_label_and_all_entries(monkeypatch):
    monkeypatch.setattr(typed_entries, "_PIECE", 4)
    entries = TypedEntries.from_coupling(make_entries(num_edges=70), RELATIONS)
    pieces = entries.pieces
    sizes = pieces.start.diff()
    assert int(sizes.max()) <= 4
    label = torch.repeat_interleave(pieces.label, sizes)
    found = listed(pieces.dst, pieces.src, label, pieces.weight)
    assert found == listed(entries.dst(), entries.src, entries.label, entries.weight)
