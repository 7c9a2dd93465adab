"""Rows of other ranks: which come, in which order, and how many bytes are sent."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sheafprop.data.partition import Partition, partition_costs
from sheafprop.distributed import PartitionedGraph, PartitionedPlan
from sheafprop.distributed.halo_exchange import HaloExchange
from sheafprop.nn import SheafPropagation
from sheafprop.sheaf import IdentitySheaf
from tests.distributed.shared_graphs import assignments, case_of, share
from tests.sheaf_cases import NUM_NODES, NUM_RELATIONS


def exchange_ids(ranks, case, assignment, piece_bytes=None):
    """The ids that arrive in the halo, the ids expected there, and what was counted."""
    graph = share(ranks, case, assignment)
    exchange = graph.exchange
    exchange.piece_bytes = piece_bytes or exchange.piece_bytes
    buffer = torch.full((exchange.num_own + exchange.num_halo, 2, 3), -1, dtype=torch.float64)
    buffer[: exchange.num_own] = graph.owned[: exchange.num_own].view(-1, 1, 1)
    exchange.run(buffer)
    head, tail = graph.edge_index
    ends = torch.cat([head, tail]).unique()
    first = len(graph.owned)
    halo = ends[(ends >= first) & (ends < first + exchange.num_halo)]
    assert len(halo) == exchange.num_halo
    return buffer[exchange.num_own :, 1, 2].tolist(), exchange.bytes_sent, exchange.rounds


def expected_halo(case, assignment, rank):
    """Free vertices of other ranks that a free vertex of this one meets: by rank, then by id."""
    free = ~case.boundary_mask
    found = set()
    for h, t in case.edge_index.T.tolist():
        for a, b in ((h, t), (t, h)):
            if assignment[a] == rank != assignment[b] and free[a] and free[b]:
                found.add((int(assignment[b]), b))
    return [vertex for _, vertex in sorted(found)]


def test_the_halo_has_the_neighbours_and_bytes_are_its_rows(two_ranks, four_ranks):
    for pool in (two_ranks, four_ranks):
        for name, assignment in assignments(pool.size, 3).items():
            case = case_of("identity", 3)
            # Pieces of a row, which gloo would otherwise get at once.
            for piece_bytes in (None, 1):
                found = pool.run(exchange_ids, case, assignment, piece_bytes)
                wanted = [expected_halo(case, assignment, rank) for rank in range(pool.size)]
                assert [rows for rows, _, _ in found] == wanted, name
                row_bytes = 2 * 3 * 8
                assert sum(sent for _, sent, _ in found) == sum(map(len, wanted)) * row_bytes
                rounds = int(any(wanted))
                assert [count for _, _, count in found] == [rounds] * pool.size


def costs_of(ranks, case, assignment):
    """Entities, halo, messages and bytes sent of a rank."""
    graph = share(ranks, case, assignment)
    rows = graph.rows(NUM_RELATIONS, merge=False, ends=False, dtype=torch.float64)
    graph.exchange.run(torch.zeros(graph.num_free + graph.num_halo, 3))
    entries = int(rows.free.start[-1] + rows.known.start[-1])
    return len(graph.owned), graph.num_halo, entries, graph.exchange.bytes_sent


def test_what_partition_prints_is_what_a_step_takes(four_ranks):
    case = case_of("identity", 3, boundary=0.0)
    for assignment in assignments(4, 3).values():
        partition = Partition(assignment.int().numpy(), 4)
        costs = partition_costs(case.edge_index.numpy(), partition)
        found = zip(*four_ranks.run(costs_of, case, assignment), strict=True)
        entities, halo, messages, sent = found
        assert (entities, halo, messages) == (costs.entities, costs.halo, costs.messages)
        assert sum(sent) == pytest.approx(costs.rows_sent * NUM_NODES * 3 * 4)
        assert costs.balance == pytest.approx(4 * max(messages) / sum(messages))


def exchange_wrong(ranks):
    rows = [torch.zeros(1 + (rank == 1), dtype=torch.long) for rank in range(ranks.size)]
    rows[ranks.rank] = torch.zeros(0, dtype=torch.long)
    try:
        HaloExchange(ranks, rows, [int(rank != ranks.rank) for rank in range(ranks.size)], 3)
    except Exception as error:
        return str(error)
    return None


def test_parts_that_do_not_fit_are_refused_by_all(two_ranks):
    found = two_ranks.run(exchange_wrong)
    assert all("rank 0 sends 2 rows to rank 1, which expects 1" in text for text in found)


class Largest(TorchDispatchMode):
    """The largest number of elements of a tensor that an operation returns."""

    numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.numel = max(self.numel, out.untyped_storage().nbytes() // 8)
        return out


def largest_tensor(ranks, size, width):
    """The largest tensor of a run on a path of vertices that is cut once."""
    path = torch.arange(size)
    edge_index, kinds = torch.stack([path[:-1], path[1:]]), torch.zeros(size - 1, dtype=torch.long)
    graph = PartitionedGraph.of_triples(ranks, edge_index, kinds, path * ranks.size // size)
    sheaf = IdentitySheaf(relations=1)
    plan = PartitionedPlan(graph, sheaf, dtype=torch.float64)
    x = torch.ones(len(graph.owned), width, dtype=torch.float64)
    with Largest() as largest:
        SheafPropagation(4)(x, *graph.edges, sheaf, plan=plan)
    return largest.numel, len(graph.owned) + graph.num_halo


def test_no_tensor_has_a_row_for_every_vertex(two_ranks):
    size, width = 600, 8
    for numel, rows in two_ranks.run(largest_tensor, size, width):
        assert rows == size // 2 + 1
        assert width * size // 2 <= numel <= width * rows
