import pytest
import torch

from sheafprop import HarmonicExtension, SheafPropagation
from sheafprop.nn import add_anchors
from sheafprop.sheaf import DenseSheaf, DiagonalSheaf, IdentitySheaf, QuaternionSheaf

SIZE, WIDTH = 7, 4
KINDS = ["identity", "none", "diagonal", "complex", "quaternion", "dense", "small"]


def problem(kind, seed=0):
    """A graph with loops, parallel triples and a vertex without any, and anchors of some."""
    torch.manual_seed(seed)
    table = torch.randn(2, WIDTH, dtype=torch.double)
    sheaf = {
        "identity": lambda: IdentitySheaf(table),
        "none": lambda: IdentitySheaf(relations=2),
        "diagonal": lambda: DiagonalSheaf(table, None, table.flip(0)),
        "complex": lambda: DiagonalSheaf(torch.polar(torch.ones_like(table), table)),
        "quaternion": lambda: QuaternionSheaf(table, None, table.flip(0)),
        "dense": lambda: DenseSheaf(*torch.randn(2, 2, WIDTH, WIDTH, dtype=torch.double)),
        "small": lambda: DenseSheaf(*torch.randn(2, 2, 2, WIDTH, dtype=torch.double)),
    }[kind]()
    edge_index = torch.tensor([[0, 0, 1, 2, 3, 3, 4], [1, 1, 2, 0, 3, 4, 5]])
    edge_type = torch.tensor([0, 1, 1, 0, 0, 1, 0])
    dtype = torch.complex128 if kind == "complex" else torch.double
    x = torch.randn(SIZE, WIDTH, dtype=dtype)
    known = torch.tensor([True, False, False, False, False, False, False])
    nodes = torch.tensor([1, 3, 5, 6])
    anchors = {
        "target": torch.randn(4, WIDTH, dtype=dtype),
        "weight": torch.tensor([0.5, 2.0, 0.3, 3.0], dtype=torch.double),
        "nodes": nodes,
    }
    weight = torch.rand(7, dtype=torch.double) + 0.1
    return (x, edge_index, edge_type, sheaf), anchors, weight, known


def minimise(graph, anchors, weight, known):
    """The minimum of the whole energy, written out as least squares."""
    x, (head, tail), edge_type, sheaf = graph
    free = (~known).nonzero().flatten()
    rows, values = [], []
    for e in range(len(edge_type)):
        maps = {side: sheaf.restriction_map(int(edge_type[e]), side, WIDTH).to(x.dtype)
                for side in ("head", "tail")}  # fmt: skip
        row = x.new_zeros(len(maps["head"]), SIZE, WIDTH)
        row[:, tail[e]] += maps["tail"]
        row[:, head[e]] -= maps["head"]
        shift = sheaf.translation_of(edge_type[e : e + 1])
        value = x.new_zeros(len(row)) if shift is None else shift[0].to(x.dtype)
        rows.append(weight[e].sqrt() * row.flatten(1))
        values.append(weight[e].sqrt() * value)
    for node, target, gamma in zip(
        *(anchors[k] for k in ("nodes", "target", "weight")), strict=True
    ):
        row = x.new_zeros(WIDTH, SIZE, WIDTH)
        row[:, node] = torch.eye(WIDTH, dtype=x.dtype)
        rows.append(gamma.sqrt() * row.flatten(1))
        values.append(gamma.sqrt() * target)
    matrix, value = torch.cat(rows).view(-1, SIZE, WIDTH), torch.cat(values)
    value = value - matrix[:, known].flatten(1) @ x[known].flatten()
    inner = matrix[:, free].flatten(1)
    start = x[free].flatten()
    moved = torch.linalg.pinv(inner, rtol=1e-10) @ (value - inner @ start)
    out = x.clone()
    out[free] = (start + moved).view(-1, WIDTH)
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_every_solver_finds_the_minimum_of_the_energy_with_anchors(kind):
    graph, anchors, weight, known = problem(kind)
    regular = kind != "small"  # whose kernel takes a part of the start, in the metric of the solver
    expected = minimise(graph, anchors, weight, known)
    *inputs, edge_weight, mask = add_anchors(
        *graph, **anchors, edge_weight=weight, boundary_mask=known
    )
    extra = {"edge_weight": edge_weight, "boundary_mask": mask}
    anchored = anchors["nodes"]
    for solver in ("cg", "direct", "chebyshev", "euler"):
        layer = HarmonicExtension(solver, tol=1e-12, max_iterations=20_000)
        found = layer(*inputs, **extra)[:SIZE]
        rows = slice(None) if regular else anchored
        assert torch.allclose(found[rows], expected[rows], atol=1e-9, rtol=1e-9), solver
    steps = SheafPropagation(2000)(*inputs, **extra)[:SIZE]
    rows = slice(None) if regular else anchored
    assert torch.allclose(steps[rows], expected[rows], atol=1e-9, rtol=1e-9)


def test_an_isolated_vertex_comes_to_its_target_and_weights_draw():
    graph, anchors, weight, known = problem("dense")
    out = {}
    for scale in (1e-8, 1.0, 1e8):
        given = anchors | {"weight": scale * anchors["weight"]}
        *inputs, edge_weight, mask = add_anchors(
            *graph, **given, edge_weight=weight, boundary_mask=known
        )
        layer = HarmonicExtension("direct", tol=1e-12)
        out[scale] = layer(*inputs, edge_weight=edge_weight, boundary_mask=mask)[:SIZE]
        assert torch.allclose(out[scale][6], anchors["target"][3])
    plain = HarmonicExtension("direct", tol=1e-12)(*graph, edge_weight=weight, boundary_mask=known)
    assert torch.allclose(out[1e-8][1:3], plain[1:3], atol=1e-5)
    assert torch.allclose(out[1e8][anchors["nodes"]], anchors["target"], atol=1e-5)


def test_gradients_reach_targets_and_the_scale_of_weights():
    graph, anchors, weight, known = problem("diagonal")

    def solve(target, scale):
        *inputs, edge_weight, mask = add_anchors(
            *graph, target=target, weight=anchors["weight"], nodes=anchors["nodes"],
            edge_weight=weight, boundary_mask=known, scale=scale,
        )  # fmt: skip
        layer = SheafPropagation(5)
        return layer(*inputs, edge_weight=edge_weight, boundary_mask=mask)[:SIZE]

    target = anchors["target"].clone().requires_grad_()
    scale = torch.tensor(1.7, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(solve, (target, scale))


@pytest.mark.parametrize("kind", KINDS)
def test_a_scale_is_a_factor_of_all_weights(kind):
    graph, anchors, weight, known = problem(kind)
    found = []
    for given in ({"scale": torch.tensor(2.5).double()}, {"weight": 2.5 * anchors["weight"]}):
        *inputs, edge_weight, mask = add_anchors(
            *graph, **anchors | given, edge_weight=weight, boundary_mask=known
        )
        layer = HarmonicExtension("direct", tol=1e-12)
        found.append(layer(*inputs, edge_weight=edge_weight, boundary_mask=mask)[:SIZE])
    torch.testing.assert_close(*found, atol=1e-9, rtol=1e-9)


def test_sections_share_their_targets_and_sizes_are_checked():
    graph, anchors, _, known = problem("identity")
    x = torch.stack([graph[0], graph[0] + 1])
    more = add_anchors(x, *graph[1:], **anchors, boundary_mask=known)
    assert more.x.shape == (2, SIZE + 4, WIDTH)
    assert more.edge_weight.tolist()[:7] == [1.0] * 7
    for change in (
        {"target": anchors["target"][:3]},
        {"weight": anchors["weight"][:1]},
        {"nodes": anchors["nodes"][:2]},
        {"target": anchors["target"][:, :2]},
    ):
        with pytest.raises(ValueError, match=r"'target' must be"):
            add_anchors(x, *graph[1:], **anchors | change)
    for wrong in (-1.0, float("nan"), float("inf")):
        change = {"weight": torch.tensor([1.0, wrong, 1.0, 1.0])}
        with pytest.raises(ValueError, match=r"'weight' must be finite .*at anchor 1"):
            add_anchors(x, *graph[1:], **anchors | change)
    every = add_anchors(*graph, target=graph[0], weight=torch.ones(SIZE))
    assert every.edge_index[1, -SIZE:].tolist() == list(range(SIZE))
    assert not bool(every.boundary_mask[:SIZE].any())
