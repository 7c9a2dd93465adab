"""Vectors by several ranks against those of one process."""

import pytest
import torch

from sheafprop.distributed import PartitionedGraph, PartitionedPlan
from sheafprop.nn import HarmonicExtension, SheafDiffusion, SheafPropagation
from sheafprop.sheaf import IdentitySheaf, PropagationPlan
from sheafprop.sheaf.spectrum import largest_eigenvalue, reaches_two, upper_bound
from tests.distributed.rank_pool import RankPool
from tests.distributed.shared_graphs import assignments, case_of, in_one_process, share, together
from tests.sheaf_cases import SHEAF_KINDS

COLUMN_WISE = [kind for kind in SHEAF_KINDS if not kind.startswith("dense")]


def jobs_of(layers, kinds, size, dtype, weighted=True, **options):
    """Every layer with all kinds of maps; partitions take turns, so that with both sizes and number
    types each kind and each layer has had all of them."""
    jobs, turn = [], size // 2 + 2 * (dtype == torch.float64)
    for number, layer in enumerate(layers):
        for seed, kind in enumerate(kinds):
            partitions = list(assignments(size, seed).values())
            assignment = partitions[(number + seed + turn) % len(partitions)]
            jobs.append((layer, case_of(kind, seed, dtype, **options), assignment, weighted))
    return jobs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_column_wise_maps_give_the_same_bits(two_ranks, four_ranks, dtype):
    for pool in (two_ranks, four_ranks):
        layers = [SheafPropagation(5), SheafPropagation(3, normalization="degree", teleport=0.2)]
        jobs = jobs_of(layers, COLUMN_WISE, pool.size, dtype)
        jobs += jobs_of(layers[:1], COLUMN_WISE, pool.size, dtype, weighted=False, boundary=0.0)
        for (layer, case, _, weighted), found in zip(jobs, together(pool, jobs), strict=True):
            assert torch.equal(found, in_one_process(layer, case, weighted)), (layer, case.sheaf)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-11)])
def test_all_other_maps_give_the_same_up_to_rounding(two_ranks, four_ranks, dtype, tolerance):
    dense = [kind for kind in SHEAF_KINDS if kind.startswith("dense")]
    for pool in (two_ranks, four_ranks):
        layers = [SheafPropagation(5), SheafPropagation(3, normalization="degree")]
        jobs = jobs_of(layers, dense, pool.size, dtype)
        for (layer, case, _, weighted), found in zip(jobs, together(pool, jobs), strict=True):
            expected = in_one_process(layer, case, weighted)
            scale = float(expected.abs().max())
            error = float((found - expected).abs().max()) / scale
            block = layer.normalization == "block"
            assert error <= (tolerance if block else {1e-5: 1e-6, 1e-11: 1e-14}[tolerance]), error


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="asks for two GPUs")
def test_processes_with_a_gpu_each_give_the_same_up_to_rounding():
    """By NCCL; untried on hardware."""
    cards = RankPool(2, "cuda")
    try:
        layers = [SheafPropagation(5), HarmonicExtension("cg", tol=1e-10), SheafDiffusion(2.0)]
        jobs = jobs_of(layers, SHEAF_KINDS, 2, torch.float64)
        for (layer, case, _, weighted), found in zip(jobs, together(cards, jobs), strict=True):
            expected = in_one_process(layer, case, weighted)
            assert torch.allclose(found, expected, atol=1e-7, rtol=1e-7), (layer, case.sheaf)
    finally:
        cards.close()


def test_limits_and_flows_are_those_of_one_process(two_ranks, four_ranks):
    kinds = ["identity", "diagonal, unitary", "diagonal, real pair", "dense, pair"]
    layers = [
        HarmonicExtension("cg", tol=1e-10),
        HarmonicExtension("chebyshev", tol=1e-10, teleport=0.5),
        HarmonicExtension("auto", tol=1e-10, normalization="degree"),
        SheafDiffusion(2.0),
        SheafDiffusion(0.3, normalization=None, teleport=0.2),
        SheafPropagation(200),
        SheafPropagation(40, tol=1e-3),
        SheafPropagation(33, step_size=0.02, normalization=None),
    ]
    for pool in (two_ranks, four_ranks):
        jobs = jobs_of(layers, kinds, pool.size, torch.float64, boundary=0.4)
        for (layer, case, _, weighted), found in zip(jobs, together(pool, jobs), strict=True):
            expected = in_one_process(layer, case, weighted)
            assert torch.allclose(found, expected, atol=1e-7, rtol=1e-7), (layer, case.sheaf)


def spectrum(ranks, case, assignment, normalization):
    plan = PartitionedPlan(share(ranks, case, assignment), case.sheaf, normalization=normalization)
    width, values = case.x.shape[1], torch.arange(3.0)
    assert plan.total(values).equal(values * ranks.size)
    return largest_eigenvalue(plan, width), upper_bound(plan), reaches_two(plan, width)


@pytest.mark.parametrize("normalization", ["block", "degree", None])
def test_the_spectrum_is_that_of_the_whole_graph(four_ranks, normalization):
    for kind in ("identity", "diagonal, real pair", "dense, pair"):
        case = case_of(kind, 5, boundary=0.0)
        plan = PropagationPlan(
            case.edge_index,
            case.edge_type,
            case.sheaf,
            len(case.x),
            edge_weight=case.edge_weight,
            normalization=normalization,
        )
        top = largest_eigenvalue(plan, case.x.shape[1])
        assignment = torch.arange(len(case.x)) % 3  # the fourth rank has nothing
        for found, bound, reaches in four_ranks.run(spectrum, case, assignment, normalization):
            assert found == pytest.approx(top, rel=1e-3)
            assert bound == pytest.approx(upper_bound(plan))
            assert reaches == (top >= 2 * (1 - 1e-4))


def iterations(ranks, layer, edges, kinds, sheaf, known, x):
    """How often a solver applied the operator, before its first step once, and added up sums."""
    graph = PartitionedGraph.of_triples(
        ranks, edges, kinds, torch.arange(len(x)) * ranks.size // len(x), boundary_mask=known
    )
    plan, reduce, sums = PartitionedPlan(graph, sheaf), ranks.all_reduce, []
    ranks.all_reduce = lambda *given: (sums.append(1), reduce(*given))[1]
    try:
        out = layer(x[graph.owned], *graph.edges, sheaf, plan=plan)
    finally:
        del ranks.all_reduce
    return graph.exchange.rounds - 1, len(sums), graph.owned, out


def test_conjugate_gradients_take_the_steps_of_one_process(two_ranks, four_ranks):
    g = torch.Generator().manual_seed(0)
    edges, kinds = (
        torch.randint(400, (2, 1500), generator=g),
        torch.randint(3, (1500,), generator=g),
    )
    sheaf = IdentitySheaf(torch.randn(3, 4, generator=g, dtype=torch.float64))
    known, x = torch.rand(400, generator=g) < 0.2, torch.randn(400, 4, generator=g).double()
    layer = HarmonicExtension("cg", tol=1e-10)
    wanted, result = layer(x, edges, kinds, sheaf, boundary_mask=known, return_result=True)
    for pool in (two_ranks, four_ranks):
        for count, sums, owned, out in pool.run(iterations, layer, edges, kinds, sheaf, known, x):
            assert abs(count - result.iterations) <= 1
            # Two an iteration, and those before the first and after the last.
            assert sums <= 2 * count + 12
            assert torch.allclose(out, wanted[owned], atol=1e-8)
    assert result.iterations > 15
