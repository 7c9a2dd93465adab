"""Duplicates, overlaps and connected components of triples."""

import numpy as np
import torch
from scipy.sparse import coo_array, csgraph
from torch import Tensor


def triple_codes(*groups: Tensor) -> list[Tensor]:
    r"""Encodes triples as integers: equal triples get equal codes, across all sets.

    Args:
        *groups: Id triples of shape ``[m, 3]`` over the same entities and relations.

    Returns:
        The codes of each set, int64 of shape ``[m]``.
    """
    triples = torch.cat(groups).cpu()
    if len(triples) == 0:
        return [triples[:, 0] for _ in groups]
    num_nodes, num_relations = int(triples[:, [0, 2]].max()) + 1, int(triples[:, 1].max()) + 1
    pairs = triples[:, 0] * num_nodes + triples[:, 2]
    if num_nodes**2 * num_relations >= 2**63:
        # Numbering the pairs keeps the codes in range for any number of entities.
        pairs = torch.unique(pairs, return_inverse=True)[1]
    codes = pairs * num_relations + triples[:, 1]
    return list(codes.split([len(group) for group in groups]))


def count_duplicates(triples: Tensor) -> int:
    r"""Returns the number of rows of ``triples`` ``[m, 3]`` that repeat an earlier one."""
    (codes,) = triple_codes(triples)
    return len(codes) - len(codes.unique())


def first_occurrences(triples: Tensor) -> Tensor:
    r"""Returns a mask of the rows of ``triples`` ``[m, 3]`` that occur first, bool ``[m]``."""
    (codes,) = triple_codes(triples)
    ordered, order = torch.sort(codes, stable=True)
    first = torch.ones(len(codes), dtype=torch.bool)
    first[order[1:]] = ordered[1:] != ordered[:-1]
    return first


def connected_components(edge_index: Tensor, num_nodes: int) -> Tensor:
    r"""Labels every node with the smallest node of its component, ignoring directions.

    Args:
        edge_index: The edges, of shape ``[2, num_edges]``.
        num_nodes: The number of nodes.

    Returns:
        int64 of shape ``[num_nodes]``.
    """
    head, tail = edge_index.cpu().int().numpy()
    graph = coo_array((np.ones(len(head)), (head, tail)), shape=(num_nodes, num_nodes))
    label = csgraph.connected_components(graph, directed=False)[1][::-1]
    smallest = np.empty(num_nodes, dtype=np.int64)
    smallest[label] = np.arange(num_nodes)[::-1]  # backwards: the smallest is written last
    return torch.from_numpy(smallest[label[::-1]])
