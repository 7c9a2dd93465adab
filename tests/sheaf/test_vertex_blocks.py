import warnings

import pytest
import torch

from sheafprop.errors import DivergenceError
from sheafprop.nn import HarmonicExtension, SheafConv, SheafPropagation
from sheafprop.sheaf import DenseSheaf, DiagonalSheaf, IdentitySheaf, PropagationPlan
from sheafprop.sheaf.vertex_blocks import (
    DiagonalBlocks,
    check_blocks,
    relative_tolerance,
    warn_of_lost,
)


def test_the_cut_off_is_what_the_number_type_resolves():
    assert relative_tolerance(torch.float64, 4) == 1e-10
    assert relative_tolerance(torch.float32, 4) == 40 * torch.finfo(torch.float32).eps


def test_blocks_that_are_too_large_name_their_vertex():
    blocks = torch.ones(3, 2)
    check_blocks(blocks)
    blocks[1, 0] = torch.inf
    with pytest.raises(DivergenceError, match="free vertex 1 "):
        check_blocks(blocks)
    with pytest.raises(DivergenceError, match="free vertex 7 "):
        check_blocks(blocks, torch.tensor([9, 7, 8]))


def test_lost_coordinates_are_counted(recwarn):
    warn_of_lost(0, torch.float32)
    assert not recwarn.list
    with pytest.warns(UserWarning, match="maps of 3 coordinates"):
        warn_of_lost(3, torch.float32)


EDGE, LOOP = torch.tensor([[0], [1]]), torch.tensor([[1], [1]])
RELATION, KNOWN = torch.tensor([0]), torch.tensor([True, False])


def _sheaf(kind, head, tail, dtype):
    maps = [torch.full((1, 2), size, dtype=torch.float64).to(dtype) for size in (head, tail)]
    if kind == "diagonal":
        return DiagonalSheaf(*maps)
    maps = [torch.diag_embed(m).requires_grad_(kind == "dense, trained") for m in maps]
    return DenseSheaf(*maps)


@pytest.mark.parametrize("normalization", ["block", "degree", None])
@pytest.mark.parametrize("kind", ["diagonal", "dense", "dense, trained"])
@pytest.mark.parametrize(
    ("edge", "head", "tail", "dtype", "found"),
    [
        (EDGE, 3e-29, 2e-30, torch.float32, True),
        (EDGE, 4e-21, 4e-21, torch.float32, True),
        (EDGE, 2e-11, 1e-12, torch.float32, False),
        (EDGE, 1e-28, 1e-29, torch.float64, False),
        (EDGE, 1e-28, 1e-180, torch.float64, True),
        (EDGE, 0.0, 0.0, torch.float32, False),
        # What counts at a loop is the difference of its maps.
        (LOOP, 3e-29, 1e-29, torch.float32, True),
        (LOOP, 3e-29, 3e-29, torch.float32, False),
        (LOOP, 3.0, 1.0, torch.float32, False),
    ],
)
def test_maps_too_small_for_their_squares_are_reported(
    edge, head, tail, dtype, found, kind, normalization
):
    sheaf = _sheaf(kind, head, tail, dtype)
    x = torch.tensor([[3.0, -2], [1, 1]], dtype=dtype)
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", DeprecationWarning)  # of libraries
        SheafConv(normalization=normalization)(x, edge, RELATION, sheaf, boundary_mask=KNOWN)
    assert any("maps of 2 coordinates" in str(w.message) for w in log) == found


@pytest.mark.parametrize("kind", ["diagonal", "dense", "dense, trained"])
@pytest.mark.parametrize("normalization", ["block", "degree", None])
def test_maps_too_large_for_their_squares_are_refused(kind, normalization):
    sheaf = _sheaf(kind, 3e24, 7e23, torch.float32)
    layer = SheafConv(normalization=normalization, step_size=1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DeprecationWarning)  # of PyG, on Python 3.13
        with pytest.raises(DivergenceError, match=r"vertex 0.*weights down"):
            layer(torch.ones(2, 2), EDGE, RELATION, sheaf, boundary_mask=KNOWN)


@pytest.mark.parametrize(
    "sheaf",
    [
        IdentitySheaf(relations=1),
        DiagonalSheaf(torch.ones(1, 2)),
        DenseSheaf(torch.eye(2).unsqueeze(0), torch.eye(2).unsqueeze(0)),
    ],
)
@pytest.mark.parametrize("normalization", ["block", None])
def test_weights_too_small_for_an_inverse_are_reported(sheaf, normalization):
    weight = torch.tensor([7e-41])
    with pytest.warns(UserWarning, match="free vertices are not zero.*weights up"):
        SheafConv(normalization=normalization)(
            torch.ones(2, 2), EDGE, RELATION, sheaf, edge_weight=weight, boundary_mask=KNOWN
        )


ONE_TRIPLE = torch.tensor([[0], [1]]), torch.tensor([0])


@pytest.mark.parametrize("layer", [HarmonicExtension(), SheafPropagation(40)])
@pytest.mark.parametrize("small", [1e-2, 1e-5, 1e-9, 1e-15])
def test_a_small_map_beside_large_ones_moves_its_coordinate(layer, small):
    maps = torch.tensor([[2.0, small, 3e3]])
    x = torch.tensor([[1.0, -4.0, 2.0], [0.0, 0.0, 0.0]])
    out = layer(
        x, *ONE_TRIPLE, DiagonalSheaf(maps, maps), boundary_mask=torch.tensor([True, False])
    )
    # 40 steps of 0.9 leave a share of 1e-40; the rest is the rounding of a few products.
    torch.testing.assert_close(out[1], x[0], rtol=8 * torch.finfo(torch.float32).eps, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_entries_count_where_they_are_positive(dtype):
    tiny = torch.finfo(dtype).tiny
    entries = torch.tensor(
        [[1.0, 1e-30, tiny, 0.0], [0, 0, 0, 0], [1e30, 1, 1e-20, 1]], dtype=dtype
    )
    blocks = DiagonalBlocks(entries)
    assert blocks.num_frozen(4).tolist() == [1, 4, 0]
    assert blocks.singular.tolist() == [True, True, False]
    assert DiagonalBlocks(entries[:, 3:]).num_frozen(5).tolist() == [5, 5, 0]
    inverse = blocks.apply_pinv(torch.ones(3, 1, 4, dtype=dtype)).squeeze(1)
    torch.testing.assert_close(inverse * entries, (entries > 0).to(dtype))


def wide(*shape, g, decades):
    """Numbers of both signs whose sizes spread over some decades."""
    size = 10 ** (-decades * torch.rand(*shape, generator=g))
    return size * torch.randn(*shape, generator=g).sign()


def graph(g, n=40, m=160, relations=6):
    edges = torch.randint(n, (2, m), generator=g), torch.randint(relations, (m,), generator=g)
    return *edges, torch.rand(n, generator=g) < 0.3


@pytest.mark.parametrize("decades", [2, 6, 12])
@pytest.mark.parametrize("seed", range(3))
def test_wide_ranges_of_diagonal_maps_do_in_single_what_they_do_in_double(seed, decades):
    g = torch.Generator().manual_seed(seed)
    head, tail = (wide(6, 5, g=g, decades=decades) for _ in range(2))
    edge_index, edge_type, mask = graph(g)
    x, b = torch.randn(40, 5, generator=g), torch.zeros(6, 5)
    single = DiagonalSheaf(head, tail, b)
    double = DiagonalSheaf(head.double(), tail.double(), b.double())
    plans = [
        PropagationPlan(edge_index, edge_type, sheaf, 40, boundary_mask=mask)
        for sheaf in (single, double)
    ]
    assert torch.equal(*(plan.blocks.num_frozen(5) for plan in plans))
    steps = 12
    layer = SheafPropagation(steps)
    ours = layer(x, edge_index, edge_type, single, boundary_mask=mask)
    theirs = layer(x.double(), edge_index, edge_type, double, boundary_mask=mask)
    # In the norm of each coordinate's D a step is no longer than its argument, and rounds each of
    # the at most `most` terms of a sum, its two factors and the block.
    own = plans[1].blocks.entries.sqrt()
    free = ~mask
    error = (own * (ours.double() - theirs)[free]).norm(dim=0)
    degree = torch.bincount(edge_index.flatten(), minlength=40)
    bound = steps * (int(degree.max()) + 4) * torch.finfo(torch.float32).eps
    largest = (own * theirs[free]).norm(dim=0) + (own * x.double()[free]).norm(dim=0)
    known = torch.zeros(5).double()
    for e, (h, t) in enumerate(edge_index.T.tolist()):
        for vertex, table in ((h, double.head), (t, double.tail)):
            if mask[vertex]:
                known += (table[edge_type[e]] * x[vertex].double()).square()
    assert bool((error <= bound * (largest + known.sqrt())).all())


@pytest.mark.parametrize("spread", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("seed", range(3))
def test_dense_blocks_of_a_wide_range_freeze_in_single_what_they_freeze_in_double(seed, spread):
    """As those of TransR: one map for both ends, of singular values that spread over decades."""
    g = torch.Generator().manual_seed(seed)
    u, v = (torch.linalg.qr(torch.randn(6, 5, 5, generator=g)).Q for _ in range(2))
    maps = (u * 10 ** (-spread * torch.linspace(0, 1, 5))) @ v.mT
    b = torch.randn(6, 5, generator=g)
    # Few triples, so that some vertices meet one relation alone.
    edge_index, edge_type, mask = graph(g, m=40)
    x = torch.randn(40, 5, generator=g)
    single = DenseSheaf(maps, maps, b)
    double = DenseSheaf(maps.double(), maps.double(), b.double())
    plans = [
        PropagationPlan(edge_index, edge_type, sheaf, 40, boundary_mask=mask)
        for sheaf in (single, double)
    ]
    assert torch.equal(*(plan.blocks.singular for plan in plans))
    steps = 6
    layer = SheafPropagation(steps)
    ours = layer(x, edge_index, edge_type, single, boundary_mask=mask).double()
    theirs = layer(x.double(), edge_index, edge_type, double, boundary_mask=mask)
    # A pseudo-inverse that is rounded errs by its condition number times the precision.
    blocks = plans[1].blocks.blocks
    condition = float(torch.linalg.cond(blocks[blocks.abs().amax(dim=(1, 2)) > 0]).max())
    error = float((ours - theirs).norm() / (theirs - x).norm())
    assert error <= steps * condition * torch.finfo(torch.float32).eps


def test_what_is_frozen_is_counted():
    maps = torch.tensor([[1.0, 0.0, 2.0], [0.5, 0.0, 1e-5]])
    x, mask = torch.randn(4, 3), torch.tensor([True, False, False, False])
    edge_index, edge_type = torch.tensor([[0, 1], [1, 2]]), torch.tensor([0, 1])
    for sheaf in (DiagonalSheaf(maps, maps), DenseSheaf(*[torch.diag_embed(maps)] * 2)):
        _, result = HarmonicExtension()(
            x, edge_index, edge_type, sheaf, boundary_mask=mask, return_result=True
        )
        # One coordinate at each of two vertices; dense blocks cannot tell the share 4e-10 of the
        # third coordinate at vertex 2 from rounding. The isolated vertex 3 does not count.
        assert result.frozen == (2 if isinstance(sheaf, DiagonalSheaf) else 3)


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize(
    ("size", "dtype", "lost"),
    [
        (1e-12, torch.float32, False),
        (1e-21, torch.float32, True),
        (1e-33, torch.float32, True),
        (1e-33, torch.float64, False),
        (1e-170, torch.float64, True),
    ],
)
def test_limits_report_maps_too_small_for_their_squares(size, dtype, lost, dense):
    maps = torch.full((1, 2), 1.0).to(dtype) * size
    sheaf = DiagonalSheaf(maps, maps)
    if dense:
        sheaf = DenseSheaf(*[torch.diag_embed(maps)] * 2)
    x = torch.tensor([[3.0, -2], [1, 1]], dtype=dtype)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", DeprecationWarning)  # of libraries
        out, result = HarmonicExtension()(
            x, *ONE_TRIPLE, sheaf, boundary_mask=torch.tensor([True, False]), return_result=True
        )
    messages = [str(w.message) for w in found]
    assert any("2 coordinates" in m and "weights up" in m for m in messages) == lost
    assert not any("down" in m for m in messages)
    assert result.frozen == (2 if lost else 0)
    torch.testing.assert_close(out[1], x[1] if lost else x[0])
