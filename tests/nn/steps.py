"""Runs of single steps, which no expansion replaces."""

from sheafprop.nn import SheafPropagation


def run_steps(count, x, *graph, edge_weight=None, boundary_mask=None, **settings):
    """The features ``[N, F]`` after so many steps, one by one."""
    layer = SheafPropagation(**settings)
    plan = layer.plan(x, *graph, edge_weight, boundary_mask)
    *_, (_, out) = layer.trajectory(plan, x.unsqueeze(1), range(count + 1))
    return out.squeeze(1)
