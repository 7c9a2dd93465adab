"""The step of a rank: rows of others arrive while it computes."""

import torch

from sheafprop.distributed import PartitionedPlan
from sheafprop.distributed.halo_coupling import HaloCoupling
from sheafprop.kernels.backend import use_backend
from sheafprop.nn import HarmonicExtension, SheafPropagation
from tests.distributed.shared_graphs import case_of, share


def combine_all(ranks, kind, backend):
    """Results of a step with and without a place for it, and by whole operations."""
    case = case_of(kind, 1)
    graph = share(ranks, case, torch.arange(len(case.x)) % ranks.size)
    with use_backend(backend):
        plan = PartitionedPlan(graph, case.sheaf)
        x = case.x[graph.owned][: graph.num_free].unsqueeze(1).expand(-1, 2, -1).contiguous()
        constant = plan.constant(case.x[graph.owned].unsqueeze(1).expand(-1, 2, -1))
        first = plan.step(x, constant, 0.7)
        second = plan.step(first, constant, 0.7)
        kept = first.clone()
        # The second result has a place of its own, the third takes that of the first.
        third = plan.step(second, constant, 0.7, out=first)
        again = plan.step(plan.step(plan.step(x, constant, 0.7), constant, 0.7), constant, 0.7)
        by_parts = kept + 0.7 * plan.precondition(
            plan.couple(kept) + constant - plan.blocks.apply(kept)
        )
    assert isinstance(plan._free_coupling, HaloCoupling)
    return torch.equal(third, again), torch.allclose(second, by_parts, atol=1e-12)


def test_results_do_not_depend_on_where_they_are_put(two_ranks):
    for kind in ("identity", "diagonal, unitary", "diagonal, real pair", "dense, pair"):
        for backend in ("numba", "torch"):
            assert two_ranks.run(combine_all, kind, backend) == [(True, True)] * 2, (kind, backend)


def order_of_events(ranks):
    """What a step does, in order: rows are computed before those of the other rank are there."""
    case = case_of("identity", 1, boundary=0.0)
    # Vertex 11 is isolated and with rank 0, so that this rank has a row of the interior.
    graph = share(ranks, case, (torch.arange(len(case.x)) < 6).long())
    plan = PartitionedPlan(graph, case.sheaf)
    coupling, events = plan._free_coupling, []
    combine, start = coupling._inner.combine_rows, graph.exchange.start

    def combine_rows(rows, *given):
        events.append(rows)
        return combine(rows, *given)

    def begin(buffer):
        wait = start(buffer)
        events.append("sent")
        return lambda: (wait(), events.append("received"))

    coupling._inner.combine_rows, graph.exchange.start = combine_rows, begin
    plan.step(case.x[graph.owned].unsqueeze(1), None, 0.5)
    return events, graph.num_interior, graph.num_free


def test_the_interior_is_computed_while_rows_are_under_way(two_ranks):
    for events, interior, free in two_ranks.run(order_of_events):
        assert events == ["sent", (0, interior), "received", (interior, free)]
    assert two_ranks.run(order_of_events)[0][1] > 0


def refusals(ranks):
    case = case_of("identity", 1)
    graph = share(ranks, case, torch.arange(len(case.x)) % ranks.size)
    plan = PartitionedPlan(graph, case.sheaf)
    x = case.x[graph.owned].requires_grad_()
    messages = []
    layer = SheafPropagation(1)
    layer.register_message_forward_hook(lambda *_: None)
    for call in (
        lambda: layer(case.x[graph.owned], *graph.edges, case.sheaf, plan=plan),
        lambda: HarmonicExtension("direct")(
            case.x[graph.owned], *graph.edges, case.sheaf, plan=plan
        ),
        lambda: HarmonicExtension("cg")(
            case.x[graph.owned], *graph.edges, case.sheaf, plan=plan, return_result=True
        ),
        lambda: plan.couple(x[: graph.num_free].unsqueeze(1)),
        lambda: PartitionedPlan(
            graph, case.sheaf.map_tensors(lambda t: t.clone().requires_grad_())
        ),
        lambda: plan.components_without_boundary,
    ):
        try:
            call()
        except ValueError as error:
            messages.append(str(error))
    return messages


def test_what_processes_that_share_a_graph_cannot_do_is_refused(two_ranks):
    for messages in two_ranks.run(refusals):
        assert len(messages) == 6
        assert "hooks and explainers" in messages[0]
        assert "take solver='cg'" in messages[1]
        assert "no 'return_result'" in messages[2]
        assert "under torch.no_grad()" in messages[3]
        assert "detach the maps" in messages[4]
        assert "components" in messages[5]
