"""Graphs that ranks share, run by all of them and by one process."""

import torch

from sheafprop.distributed import PartitionedGraph, PartitionedPlan
from tests.sheaf_cases import NUM_NODES, make_case


def assignments(size, seed=0):
    """Partitions of the cases' vertices: drawn, with an empty rank, without cut edges, and one
    that keeps all vertices together."""
    g = torch.Generator().manual_seed(seed)
    drawn = torch.randint(size, (NUM_NODES,), generator=g)
    return {
        "drawn": drawn,
        "a rank is empty": drawn % max(1, size - 1),
        "one rank has all": torch.full((NUM_NODES,), size - 1),
        "only the isolated vertex is apart": (torch.arange(NUM_NODES) == NUM_NODES - 1).long(),
    }


def case_of(kind, seed, dtype=None, **options):
    """A case whose features and maps have a real number type."""
    case = make_case(kind, seed, **options)
    if dtype is not None:
        to = lambda t: t.to(dtype.to_complex() if t.is_complex() else dtype)  # noqa: E731
        case.x, case.sheaf, case.edge_weight = (
            to(case.x),
            case.sheaf.map_tensors(to),
            to(case.edge_weight),
        )
    return case


def in_one_process(layer, case, weighted=True):
    """The vectors of all entities by one process."""
    return layer(
        case.x,
        *case.graph,
        edge_weight=case.edge_weight if weighted else None,
        boundary_mask=case.boundary_mask,
    )


def share(ranks, case, assignment, weighted=True):
    """This rank's share of a case."""
    return PartitionedGraph.of_triples(
        ranks,
        case.edge_index,
        case.edge_type,
        assignment,
        edge_weight=case.edge_weight if weighted else None,
        boundary_mask=case.boundary_mask,
    )


def run_shared(ranks, jobs):
    """The vectors of owned entities for some ``(layer, case, assignment, weighted)``."""
    results = []
    for layer, case, assignment, weighted in jobs:
        graph = share(ranks, case, assignment, weighted)
        x = case.x.to(ranks.device)
        sheaf = case.sheaf.map_tensors(lambda tensor: tensor.to(ranks.device))
        plan = PartitionedPlan(graph, sheaf, normalization=layer.normalization, dtype=x.dtype)
        out = layer(x[graph.owned], *graph.edges, sheaf, plan=plan)
        results.append((graph.owned.cpu(), out.cpu()))
    return results


def together(pool, jobs):
    """The vectors of all entities by the ranks of a pool, for each job."""
    found = pool.run(run_shared, jobs)
    results = []
    for i, (_, case, _, _) in enumerate(jobs):
        out = torch.full_like(case.x, float("nan"))
        for of_rank in found:
            owned, x = of_rank[i]
            out[owned] = x
        results.append(out)
    return results
