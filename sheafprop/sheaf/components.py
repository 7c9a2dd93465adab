"""Connected components of a graph with a boundary."""

import torch
from torch import Tensor


def component_labels(head: Tensor, tail: Tensor, num_nodes: int) -> Tensor:
    """Labels ``[N]``: two vertices share a label exactly if an undirected path joins them.

    The label is the smallest vertex id of the component. Each round takes the smallest label of
    the neighbours and then jumps along labels, so the number of rounds grows with the logarithm of
    the diameter.
    """
    label = torch.arange(num_nodes, device=head.device)
    while True:
        low = torch.minimum(label[head], label[tail])
        new = label.clone()
        # Lower the labels of the roots too, so that whole trees are joined at once.
        for place in (head, tail, label[head], label[tail]):
            new = new.scatter_reduce(0, place, low, "amin")
        new = new[new]
        if torch.equal(new, label):
            return label
        label = new


def count_unanchored_components(head: Tensor, tail: Tensor, boundary_mask: Tensor) -> int:
    """Number of components that hold no vertex of the boundary (isolated free vertices count)."""
    label = component_labels(head, tail, boundary_mask.numel())
    anchored = torch.zeros_like(boundary_mask).index_fill(0, label[boundary_mask], True)
    return int((~anchored[torch.unique(label)]).sum())
