import torch

from sheafprop.sheaf import IdentitySheaf
from sheafprop.sheaf.graph_checks import GraphInput
from sheafprop.sheaf.plan_inputs import PlanInputs


def inputs():
    return GraphInput(
        edge_index=torch.tensor([[0, 1], [1, 2]]),
        edge_type=torch.tensor([0, 1]),
        sheaf=IdentitySheaf(torch.ones(2, 3)),
        edge_weight=torch.tensor([1.0, 2.0]),
        boundary_mask=torch.tensor([True, False, False]),
    )


def test_equal_values_are_the_same_and_others_are_named():
    given = inputs()
    plan = PlanInputs(given)
    assert plan.difference(given) is None
    assert plan.difference(inputs()) is None
    for name, other, found in (
        ("edge_type", torch.tensor([1, 1]), "another 'edge_type'"),
        ("edge_type", torch.tensor([1]), "2 edges .got 1."),
        ("edge_weight", None, "another 'edge_weight'"),
        ("boundary_mask", None, "another 'boundary_mask'"),
        ("sheaf", IdentitySheaf(torch.zeros(2, 3)), "another sheaf"),
        ("sheaf", IdentitySheaf(relations=2), "another sheaf"),
    ):
        said = plan.difference(given._replace(**{name: other}))
        assert said is not None
        assert said.startswith(found.replace(".", "(", 1).split(" (")[0])


def test_what_is_written_in_place_is_noticed():
    given = inputs()
    plan = PlanInputs(given)
    given.edge_weight[0] = 5
    assert "changed in place" in plan.difference(given)


def test_gradients_that_the_plan_was_built_without():
    given = inputs()._replace(sheaf=IdentitySheaf(torch.ones(2, 3, requires_grad=True)))
    with torch.no_grad():
        plan = PlanInputs(given)
        assert not plan.misses_gradients
    assert plan.misses_gradients
    assert not PlanInputs(given).misses_gradients
