"""What every kind of map must agree with."""

import torch

from sheafprop.sheaf import DenseSheaf

EVERY = torch.arange(3)


def as_dense(sheaf, width=4):
    maps = [sheaf.matrices(side, width=width) for side in ("head", "tail")]
    return DenseSheaf(*maps, sheaf.translation_of(EVERY))


def close_dtype(dtype):
    return torch.float32 if dtype is None else dtype.to_real()


def assert_agrees(sheaf):
    """What a kind of map knows to be cheap is what its matrices give."""
    dense, close = as_dense(sheaf), torch.testing.assert_close
    dtype = sheaf.dtype
    queries, candidates = torch.randn(2, 6, 4, dtype=dtype)
    edge_type = torch.tensor([2, 0, 2, 1, 1, 0])
    for side in ("head", "tail"):
        energy = sheaf.pairwise_energy(queries, candidates, edge_type, side)
        close(energy, dense.pairwise_energy(queries, candidates, edge_type, side))
        one = sheaf.pairwise_energy(queries[:1], candidates, edge_type[:1], side)
        close(one, energy[:1])
        assert torch.equal(sheaf.is_injective(side, 1e-8), dense.is_injective(side, 1e-8))
        parameters = sheaf.map_parameters(side, torch.tensor([1]))[0]
        close(sheaf.apply_map(candidates, parameters), candidates @ dense.matrices(side)[1].T)
        rows = candidates.view(3, 2, 4)
        image = dense.restrict(rows.transpose(0, 1), EVERY, side).transpose(0, 1)
        close(sheaf.restrict_sections(rows, EVERY, side), image)
    close(sheaf.end_norms(), dense.end_norms())
    weight = torch.tensor([0.25, 1.0, 3.0], dtype=close_dtype(dtype))
    ours, theirs = sheaf.scale_energy(weight, 4), dense.scale_energy(weight)
    for side in ("head", "tail"):
        close(ours.matrices(side, width=4).to(dense.dtype), theirs.matrices(side))
        close(theirs.matrices(side), dense.matrices(side) * weight.sqrt().view(-1, 1, 1))
    if sheaf.translation_of(EVERY) is not None:
        close(ours.translation_of(EVERY), sheaf.translation_of(EVERY) * weight.sqrt()[:, None])
    part = sheaf.select(torch.tensor([2, 2]))
    assert type(part) is type(sheaf)
    assert part.num_relations == 2
    close(part.matrices("head", width=4), dense.matrices("head")[[2, 2]])
    for ours, theirs in zip(sheaf.block_terms(), dense.block_terms(), strict=True):
        diagonal = ours.expand(-1, 4) if ours.dim() == 2 else ours.diagonal(dim1=1, dim2=2)
        close(diagonal.to(theirs.dtype), theirs.diagonal(dim1=1, dim2=2))
