"""Mini-batches against the full graph."""

import warnings

import pytest
import torch
import torch_geometric
from torch.utils.data import DataLoader
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NeighborLoader
from torch_geometric.utils import k_hop_subgraph, to_undirected

from sheafprop.nn import (
    HarmonicExtension,
    HeteroGraph,
    SheafConv,
    SheafDiffusion,
    SheafPropagation,
    draw_sections,
    k_hop_batch,
    rescale_sections,
)
from sheafprop.nn.sheaf_diffusion import exponential_weights
from tests.sheaf_cases import SHEAF_KINDS, WIDTH, make_case, make_sheaf

NUM_NODES = 60


def make_graph(kind: str, *, known: float = 0.25, seed: int = 0) -> tuple[Data, object]:
    """A long sparse graph, so that some hops do not reach everywhere, with parallel triples,
    loops, an isolated node and weights."""
    g = torch.Generator().manual_seed(seed)
    head = torch.randint(0, NUM_NODES - 1, (90,), generator=g)
    tail = (head + torch.randint(-2, 3, (90,), generator=g)).clamp(0, NUM_NODES - 2)
    swap = torch.rand(90, generator=g) < 0.5
    head, tail = torch.where(swap, tail, head), torch.where(swap, head, tail)
    edge_index = torch.cat([torch.stack([head, tail]), torch.stack([head, tail])[:, :5]], 1)
    sheaf = make_sheaf(kind, seed)
    x = torch.randn(NUM_NODES, WIDTH, generator=g, dtype=torch.float64)
    if sheaf.dtype is not None and sheaf.dtype.is_complex:
        x = torch.complex(x, x.flip(0))
    data = Data(
        x=x,
        edge_index=edge_index,
        edge_type=torch.randint(0, 4, (95,), generator=g),
        edge_weight=torch.rand(95, generator=g, dtype=torch.float64) + 0.1,
        boundary_mask=torch.rand(NUM_NODES, generator=g) < known,
    )
    return data, sheaf


def run(layer, data, sheaf):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return layer(
            data.x,
            data.edge_index,
            data.edge_type,
            sheaf,
            edge_weight=data.edge_weight,
            boundary_mask=data.get("boundary_mask"),
        )


def close(out, expected):
    # Sums of a row may be ordered otherwise: rounding of a few steps in double precision.
    return torch.allclose(out, expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("kind", SHEAF_KINDS)
@pytest.mark.parametrize("normalization", ["block", "degree", None])
@pytest.mark.parametrize("steps", [1, 3])
def test_steps_on_a_batch_are_those_on_the_full_graph(kind, normalization, steps):
    data, sheaf = make_graph(kind)
    step_size = 0.9 if normalization else 0.005
    layer = SheafPropagation(steps, step_size=step_size, normalization=normalization)
    expected = run(layer, data, sheaf)
    for seeds in torch.randperm(NUM_NODES).split(7):
        batch = k_hop_batch(data, seeds, steps)
        assert torch.equal(batch.n_id[: batch.batch_size], seeds)
        assert close(run(layer, batch, sheaf)[: batch.batch_size], expected[seeds])


def test_one_hop_less_is_too_few_and_the_limit_of_hops_is_tight():
    data, sheaf = make_graph("dense, pair", known=0.0)
    layer = SheafPropagation(3)
    expected = run(layer, data, sheaf)
    seeds = torch.arange(10, 14)
    batch = k_hop_batch(data, seeds, 2)
    assert batch.num_nodes < k_hop_batch(data, seeds, 3).num_nodes < NUM_NODES
    assert not close(run(layer, batch, sheaf)[:4], expected[seeds])


def test_hops_stop_at_known_nodes():
    path = torch.stack([torch.arange(9), torch.arange(1, 10)])
    data = Data(
        x=torch.randn(10, WIDTH).double(),
        edge_index=path,
        edge_type=torch.zeros(9, dtype=torch.long),
        known=torch.zeros(10, dtype=torch.bool),
    )
    data.known[[3, 6]] = True
    batch = k_hop_batch(data, [4], 8, boundary_mask="known")
    assert batch.n_id.tolist() == [4, 3, 5, 6]
    assert batch.e_id.tolist() == [3, 4, 5]
    assert batch.known.tolist() == [False, True, False, True]
    # A known seed keeps its value: nothing around it matters.
    assert k_hop_batch(data, [3], 2, boundary_mask="known").n_id.tolist() == [3]
    assert k_hop_batch(data, [4], 8).num_nodes == 10


@pytest.mark.parametrize("kind", SHEAF_KINDS)
def test_stacked_layers_add_their_hops(kind):
    data, sheaf = make_graph(kind)
    conv, many = SheafConv(), SheafPropagation(2, teleport=0.2)

    def network(part):
        hidden = part.clone()
        hidden.x = run(conv, part, sheaf)
        hidden.x = torch.cat([torch.tanh(hidden.x[:, :1]), hidden.x[:, 1:]], dim=1)
        return run(many, hidden, sheaf)

    # The nonlinearity changes known rows too, each by itself.
    expected, seeds = network(data), torch.tensor([31, 5, 17])
    assert close(network(k_hop_batch(data, seeds, 3))[:3], expected[seeds])


@pytest.mark.parametrize("kind", ["identity", "diagonal, unitary", "dense, shared"])
def test_without_a_limit_of_hops_the_harmonic_extension_agrees(kind):
    data, sheaf = make_graph(kind)
    layer = HarmonicExtension("cg", tol=1e-12)
    expected, seeds = run(layer, data, sheaf), torch.tensor([40, 2, 21])
    batch = k_hop_batch(data, seeds, None)
    assert batch.num_nodes < NUM_NODES
    assert torch.allclose(run(layer, batch, sheaf)[:3], expected[seeds], atol=1e-7)


def test_diffusion_needs_as_many_hops_as_operator_applications():
    data, sheaf = make_graph("diagonal, unitary", known=0.1)
    layer = SheafDiffusion(0.5, eps=1e-3)
    hops = len(exponential_weights(0.5, 1e-3)) - 1
    seeds = torch.tensor([30, 9])
    out = run(layer, k_hop_batch(data, seeds, hops), sheaf)[:2]
    assert close(out, run(layer, data, sheaf)[seeds])


def test_random_starts_of_a_batch_follow_the_ids_of_the_full_graph():
    data, sheaf = make_graph("identity", known=0.0)
    layer = SheafPropagation(2)

    def run(data, node_keys=None):
        nobody = torch.zeros(data.num_nodes, dtype=torch.bool)
        start = draw_sections(data.x.unsqueeze(1), nobody, node_keys=node_keys)
        out = layer(start.squeeze(1), data.edge_index, data.edge_type, sheaf)
        return rescale_sections(out.unsqueeze(1), nobody, 1.0).squeeze(1)

    seeds = torch.tensor([12, 50])
    batch = k_hop_batch(data, seeds, 2)
    assert close(run(batch, batch.n_id)[:2], run(data)[seeds])


def test_gradients_of_a_batch_are_those_of_the_full_graph():
    data, sheaf = make_graph("diagonal, real pair")
    grads = []
    seeds = torch.tensor([7, 23, 44])
    for part, rows in ((data, seeds), (k_hop_batch(data, seeds, 2), slice(0, 3))):
        maps = sheaf.map_tensors(lambda t: t.clone().requires_grad_())
        run(SheafPropagation(2), part, maps)[rows].square().sum().backward()
        grads.append([t.grad for t in maps.tensors().values()])
    assert all(close(a, b) for a, b in zip(*grads, strict=True))


def test_a_data_loader_makes_batches_of_all_nodes():
    data, sheaf = make_graph("dense, pair")
    layer = SheafPropagation(2)
    loader = DataLoader(
        torch.arange(NUM_NODES),
        batch_size=16,
        shuffle=True,
        collate_fn=lambda seeds: k_hop_batch(data, seeds, 2),
    )
    out = torch.zeros_like(data.x)
    for batch in loader:
        out[batch.n_id[: batch.batch_size]] = run(layer, batch, sheaf)[: batch.batch_size]
    assert close(out, run(layer, data, sheaf))


samples_neighbors = pytest.mark.skipif(
    not (torch_geometric.typing.WITH_PYG_LIB or torch_geometric.typing.WITH_TORCH_SPARSE),
    reason="NeighborLoader needs pyg-lib or torch-sparse",
)


@samples_neighbors
def test_subgraphs_of_pyg_agree_where_they_follow_edges_both_ways():
    data, sheaf = make_graph("diagonal, real pair")
    del data.boundary_mask
    layer, seeds = SheafPropagation(2), torch.tensor([3, 33])
    expected = run(layer, data, sheaf)[seeds]
    subset, _, place, _ = k_hop_subgraph(seeds, 2, to_undirected(data.edge_index))
    part = data.subgraph(subset)
    assert close(run(layer, part, sheaf)[place], expected)
    # A loader samples the nodes of the undirected graph; the triples are those of the full one.
    nodes = Data(edge_index=to_undirected(data.edge_index), num_nodes=NUM_NODES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        (sampled,) = NeighborLoader(nodes, [-1, -1], input_nodes=seeds, batch_size=2)
    assert close(run(layer, data.subgraph(sampled.n_id), sheaf)[:2], expected)


@samples_neighbors
def test_batches_of_neighbor_loader_differ_and_are_reported():
    data, sheaf = make_graph("identity")
    layer, seeds = SheafPropagation(1), torch.tensor([20, 41, 30])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        (batch,) = NeighborLoader(data, [-1], input_nodes=seeds, batch_size=3)
    assert not close(run(layer, batch, sheaf)[:3], run(layer, data, sheaf)[seeds])
    with pytest.warns(UserWarning, match="k_hop_batch"):
        k_hop_batch(batch, [0], 1)
    hetero = HeteroData()
    hetero["a"].x, hetero["b"].x = torch.zeros(4, WIDTH), torch.zeros(5, WIDTH)
    hetero["a", "to", "b"].edge_index = torch.tensor([[0, 1, 3], [1, 1, 4]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DeprecationWarning)  # of PyG, on Python 3.13
        HeteroGraph.from_hetero(hetero)
        k_hop_batch(k_hop_batch(data, seeds, 3), [0], 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        (batch,) = NeighborLoader(hetero, [-1], input_nodes=("b", torch.tensor([1])), batch_size=1)
    with pytest.warns(UserWarning, match="k_hop_batch"):
        HeteroGraph.from_hetero(batch)


def test_odd_batches():
    data, sheaf = make_graph("identity")
    batch = k_hop_batch(data, torch.zeros(0, dtype=torch.long), 2)
    assert batch.num_nodes == batch.num_edges == batch.batch_size == 0
    assert run(SheafConv(), batch, sheaf).shape == (0, WIDTH)
    alone = k_hop_batch(data, [NUM_NODES - 1], None)
    assert alone.num_nodes == 1
    assert torch.equal(run(SheafConv(), alone, sheaf), data.x[-1:])
    assert k_hop_batch(data, [4, 2], 0).n_id.tolist() == [4, 2]
    bare = Data(edge_index=data.edge_index, edge_type=data.edge_type, num_nodes=NUM_NODES)
    assert k_hop_batch(bare, [NUM_NODES - 1, 3], 0).num_nodes == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(seeds=[1, 4, 1]), "distinct.*node 1 twice"),
        (dict(seeds=[1, NUM_NODES]), f"from 0 to {NUM_NODES - 1}.*got {NUM_NODES}"),
        (dict(seeds=[-1]), "got -1"),
        (dict(seeds=torch.ones(NUM_NODES, dtype=torch.bool)), "nonzero"),
        (dict(num_hops=-1), "num_hops"),
        (dict(data=HeteroData()), "got HeteroData"),
        (dict(data=Data(x=torch.zeros(3, 1))), "edge_index"),
        (dict(boundary_mask="edge_weight"), "boundary_mask"),
    ],
)
def test_bad_batches_are_named(change, message):
    data, _ = make_graph("identity")
    arguments = dict(data=data, seeds=[1], num_hops=1) | change
    with pytest.raises(ValueError, match=message):
        k_hop_batch(**arguments)


def test_the_graphs_of_other_tests_in_batches():
    for kind in SHEAF_KINDS:
        case = make_case(kind, 5)
        data = Data(
            x=case.x,
            edge_index=case.edge_index,
            edge_type=case.edge_type,
            edge_weight=case.edge_weight,
            boundary_mask=case.boundary_mask,
        )
        expected = run(SheafConv(), data, case.sheaf)
        for seed in range(case.x.shape[0]):
            batch = k_hop_batch(data, [seed], 1)
            assert close(run(SheafConv(), batch, case.sheaf)[:1], expected[seed : seed + 1])
