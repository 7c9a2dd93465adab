"""Shares of a graph: every partition gives the vectors of one process."""

import hypothesis.strategies as st
import torch
from hypothesis import HealthCheck, given, settings

from sheafprop.nn import SheafPropagation
from tests.distributed.shared_graphs import case_of, in_one_process, share, together
from tests.sheaf_cases import NUM_NODES


@settings(
    max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None
)
@given(data=st.data())
def test_any_partition_gives_the_same_bits(four_ranks, data):
    parts = st.lists(st.integers(0, 3), min_size=NUM_NODES, max_size=NUM_NODES)
    assignment = torch.tensor(data.draw(parts))
    seed, boundary = data.draw(st.integers(0, 50)), data.draw(st.sampled_from([0.0, 0.4, 0.9]))
    options = {"boundary": boundary, "num_edges": data.draw(st.integers(8, 40))}
    layer = SheafPropagation(3)
    jobs = [
        (layer, case_of(kind, seed, torch.float32, **options), assignment, weighted)
        for kind in ("identity", "diagonal, complex pair")
        for weighted in (True, False)
    ]
    for (_, case, _, weighted), found in zip(jobs, together(four_ranks, jobs), strict=True):
        assert torch.equal(found, in_one_process(layer, case, weighted))


def test_fewer_entities_than_ranks(four_ranks):
    case = case_of("diagonal, real pair", 0, num_edges=60)
    few = case.edge_index.max(0).values < 3
    case.edge_index, case.edge_type = case.edge_index[:, few], case.edge_type[few]
    case.x, case.edge_weight = case.x[:3], case.edge_weight[few]
    case.boundary_mask = torch.tensor([True, False, False])
    layer = SheafPropagation(3)
    assert case.edge_index.unique().numel() == 3
    jobs = [(layer, case, torch.tensor(at), True) for at in ([3, 1, 0], [2, 2, 2], [0, 3, 3])]
    wanted = in_one_process(layer, case)
    assert all(torch.equal(found, wanted) for found in together(four_ranks, jobs))


def describe(ranks, case, assignment):
    graph = share(ranks, case, assignment)
    head, tail = graph.edge_index
    ids = graph.owned
    assert bool(((head < graph.num_free) | (tail < graph.num_free)).all())
    assert repr(graph).startswith("PartitionedGraph(rank=")
    return ids.tolist(), graph.num_interior, graph.num_free, len(graph.edge_type)


def test_owned_entities_are_in_the_order_of_their_rows(two_ranks):
    case = case_of("identity", 2)
    assignment = torch.arange(NUM_NODES) % 2
    known = case.boundary_mask
    for rank, (ids, interior, free, _) in enumerate(two_ranks.run(describe, case, assignment)):
        assert sorted(ids) == (assignment == rank).nonzero().flatten().tolist()
        assert not known[ids[:free]].any()
        assert known[ids[free:]].all()
        meets = set()
        for h, t in case.edge_index.T.tolist():
            if assignment[h] != assignment[t] and not known[h] and not known[t]:
                meets |= {h, t}
        assert meets.isdisjoint(ids[:interior])
        assert meets.issuperset(ids[interior:free])
        for part in (ids[:interior], ids[interior:free], ids[free:]):
            assert part == sorted(part)


def refused(ranks, assignment, other):
    case = case_of("identity", 2)
    if other == "assignment":
        assignment = (assignment + ranks.rank) % ranks.size
    elif other and ranks.rank == 1:
        setattr(case, other, getattr(case, other).roll(1, -1))
    try:
        share(ranks, case, assignment)
    except Exception as error:
        return type(error).__name__, str(error)
    return None


def test_what_does_not_go_together_is_refused(two_ranks):
    assignment = torch.arange(NUM_NODES) % 3
    for name, text in two_ranks.run(refused, assignment, None):
        assert (name, "from 0 to 1 (got 0 to 2)" in text) == ("ValueError", True)
    for other in ("edge_index", "edge_type", "edge_weight", "boundary_mask", "assignment"):
        for name, text in two_ranks.run(refused, assignment % 2, other):
            assert (name, text.startswith("the graph of rank 1")) == ("RankError", True), other
