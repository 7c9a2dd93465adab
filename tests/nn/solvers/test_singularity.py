import pytest

from sheafprop.nn.solvers.singularity import is_singular, known_regular
from sheafprop.sheaf import PropagationPlan
from tests.nn.solvers.cases import WIDTH, system_of
from tests.sheaf_cases import NUM_NODES, SHEAF_KINDS, make_case, normalized_rank


@pytest.mark.parametrize("boundary", [0.0, 0.3])
@pytest.mark.parametrize("kind", SHEAF_KINDS)
def test_small_operators_are_singular_where_the_dense_matrix_is(kind, boundary):
    for seed in range(3):
        case = make_case(kind, seed, boundary=boundary)
        plan = PropagationPlan(
            *case.graph, NUM_NODES, edge_weight=case.edge_weight,
            boundary_mask=case.boundary_mask, dtype=case.x.dtype,
        )  # fmt: skip
        rank, rank_of_metric = normalized_rank(case, "block")
        assert is_singular(plan, case.x.shape[1]) == (rank < rank_of_metric)
        if known_regular(plan):
            assert rank == rank_of_metric


def test_singular_operators_are_recognised_at_any_size():
    for known in (0.0, 0.1):
        plan, _ = system_of("identity", "path", 300, known)
        assert is_singular(plan, WIDTH) == (known == 0) == (not known_regular(plan))
        # Unitary maps on a tree can be undone vertex by vertex: singular as the identity is.
        plan, _ = system_of("unitary", "tree", 300, known)
        assert is_singular(plan, WIDTH) == (known == 0)
    plan, _ = system_of("unitary", "power", 300, 0.0)
    assert not is_singular(plan, WIDTH)
