import pytest
import torch

from sheafprop.sheaf import IdentitySheaf
from sheafprop.sheaf.graph_checks import (
    GraphInput,
    check_features,
    check_finite_features,
    check_graph,
    check_places,
)

SHEAF = IdentitySheaf(torch.ones(2, 3))
EDGES = torch.tensor([[0, 1], [1, 2]]), torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"edge_index": EDGES[0].T[:, :, None]}, r"\[2, num_edges\]"),
        ({"edge_index": EDGES[0] + 1}, r"num_nodes - 1 = 2 .got 3"),
        ({"edge_type": EDGES[1] - 1}, r"num_relations - 1 = 1 .got -1"),
        ({"edge_type": EDGES[1].float()}, "must hold integers"),
        ({"edge_weight": torch.tensor([1.0, -2.0])}, "got -2.0 at edge 1"),
        ({"boundary_mask": torch.ones(2, dtype=torch.bool)}, "one entry for each of the 3 nodes"),
        ({"sheaf": IdentitySheaf(torch.tensor([[1.0], [torch.nan]]))}, "at relation 1"),
    ],
)
def test_bad_graphs_are_named(change, message):
    good = GraphInput(*EDGES, SHEAF)
    check_graph(good, 3)
    with pytest.raises(ValueError, match=message):
        check_graph(good._replace(**change), 3)


def test_features_must_fit_the_sheaf():
    x = torch.ones(4, 3)
    check_features(x, SHEAF)
    check_places(x, GraphInput(*EDGES, SHEAF))
    for wrong, message in ((x[:, :2], "stalks, 3 .got 2"), (x.long(), "floating point or complex")):
        with pytest.raises(ValueError, match=message):
            check_features(wrong, SHEAF)
    with pytest.raises(ValueError, match="must be complex too"):
        check_features(x, IdentitySheaf(torch.ones(2, 3, dtype=torch.complex64)))
    with pytest.raises(ValueError, match="'edge_type' must be a tensor"):
        check_places(x, GraphInput(EDGES[0], [0, 1], SHEAF))


def test_rows_must_be_finite():
    x = torch.ones(4, 3)
    x[2, 1] = torch.nan
    with pytest.raises(ValueError, match="row 2"):
        check_finite_features(x)
