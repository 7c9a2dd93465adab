"""Walks with return by definition: dense matrices, one step after the other."""

import torch


def transition_matrix(edge_index, num_nodes, weight=None):
    """The walk along edges in both directions; nodes without an edge to another one stay."""
    weight = torch.ones(edge_index.shape[1]) if weight is None else weight
    a = torch.zeros(num_nodes, num_nodes, dtype=torch.float64)
    for (head, tail), w in zip(edge_index.T.tolist(), weight.tolist(), strict=True):
        if head != tail:
            a[head, tail] += w
            a[tail, head] += w
    total = a.sum(1, keepdim=True)
    return torch.where(total > 0, a / total, torch.eye(num_nodes, dtype=torch.float64))


def walk(p, teleport=0.15, steps=20):
    """The distributions of the walks from all nodes."""
    one = torch.eye(len(p), dtype=torch.float64)
    rows = one
    for _ in range(steps):
        rows = teleport * one + (1 - teleport) * rows @ p
    return rows
