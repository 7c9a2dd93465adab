"""The energy of a whole query graph, minimised by dense least squares; imports nothing of query/.

A query is nested tuples: ``("anchor", entity)``, ``("via", query, relation, inverse, weight)``,
``("and", queries)`` and ``("or", queries)``.
"""

import math

import numpy as np
import torch


def vertices_and_edges(tree):
    """Anchors {vertex: entity}, edges (head vertex, tail vertex, relation, weight) and, for each
    edge, its source and whether it is walked backwards; target 0."""
    anchors, edges, walked, count = {}, [], [], [1]

    def visit(node, vertex):
        if node[0] == "anchor":
            anchors[vertex] = node[1]
        elif node[0] == "and":
            for branch in node[1]:
                visit(branch, vertex)
        else:
            _, inner, relation, inverse, weight = node
            source = count[0]
            count[0] += 1
            head, tail = (vertex, source) if inverse else (source, vertex)
            visit(inner, source)
            edges.append((head, tail, relation, weight))
            walked.append((source, inverse))

    visit(tree, 0)
    return anchors, edges, walked, count[0]


def conjunctions(tree):
    """The disjunctive normal form, by hand."""
    if tree[0] == "anchor":
        return [tree]
    if tree[0] == "via":
        return [("via", inner, *tree[2:]) for inner in conjunctions(tree[1])]
    if tree[0] == "or":
        return [term for branch in tree[1] for term in conjunctions(branch)]
    terms = [()]
    for branch in tree[1]:
        terms = [(*term, other) for term in terms for other in conjunctions(branch)]
    return [("and", term) for term in terms]


def minimal_energies(tree, sheaf, x, prior=None):
    """The least energy of the conjunctive query with every entity as the answer, ``[N]``.

    A prior is centres ``[2R, d]`` and weights ``[2R, d]`` of the vertices that relations leave.
    """
    anchors, edges, walked, count = vertices_and_edges(tree)
    d = x.shape[1]
    free = [v for v in range(1, count) if v not in anchors]
    column = {v: slice(i * d, i * d + d) for i, v in enumerate(free)}
    blocks, known, at_target = [], [], []
    for head, tail, relation, weight in edges:
        maps = {
            end: sheaf.restriction_map(relation, side, d).detach().numpy().astype(x.dtype)
            for end, side in (("h", "head"), ("t", "tail"))
        }
        k = maps["h"].shape[0]
        root = math.sqrt(weight)
        block = np.zeros((k, d * len(free)), dtype=x.dtype)
        constant = np.zeros(k, dtype=x.dtype)
        target = np.zeros((k, d), dtype=x.dtype)
        for vertex, matrix in ((tail, maps["t"]), (head, -maps["h"])):
            if vertex in column:
                block[:, column[vertex]] += root * matrix
            elif vertex == 0:
                target += root * matrix
            else:
                constant += root * matrix @ x[anchors[vertex]]
        constant -= root * translation(sheaf, relation, k).astype(x.dtype)
        blocks.append(block)
        known.append(constant)
        at_target.append(target)
    for (source, inverse), (_, _, relation, _) in zip(walked, edges, strict=True):
        if prior is not None and source in column:
            row = relation + (sheaf.num_relations if inverse else 0)
            root = np.sqrt(prior[1][row])
            block = np.zeros((d, d * len(free)), dtype=x.dtype)
            block[:, column[source]] = np.diag(root)
            blocks.append(block)
            known.append(-root * prior[0][row])
            at_target.append(np.zeros((d, d), dtype=x.dtype))
    matrix, constant = np.concatenate(blocks), np.concatenate(known)
    right = -(constant[:, None] + np.concatenate(at_target) @ x.T)
    if matrix.shape[1]:
        solution = np.linalg.lstsq(matrix, right, rcond=1e-5)[0]
        right = right - matrix @ solution
    return np.sum(np.abs(right) ** 2, axis=0)


def translation(sheaf, relation, k):
    b = sheaf.translation_of(torch.tensor([relation]))
    return np.zeros(k) if b is None else b[0].detach().numpy()


def best_scores(tree, sheaf, x, weights=None, prior=None):
    """Scores ``[N]``: minus the sum over sections of the root of the least energy."""
    sections = x.shape[1]

    def energies(term, i):
        own = None if prior is None else (prior[0][:, i], prior[1])
        return minimal_energies(term, sheaf, x[:, i], own)

    weights = [1.0] * sections if weights is None else weights
    total = [
        sum(-a * np.sqrt(energies(term, i)) for i, a in enumerate(weights))
        for term in conjunctions(tree)
    ]
    return np.max(total, axis=0)
