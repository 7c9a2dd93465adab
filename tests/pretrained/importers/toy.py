"""A small model of another library: labels, triples and tables, for tests of importers."""

import numpy as np
import torch

from sheafprop.pretrained.sheaf_model import SheafModel

ENTITIES, RELATIONS = ["ann", "bob c", "cleo", "dan", "eve"], ["knows", "likes"]
TRIPLES = torch.tensor([[0, 0, 1], [1, 1, 2], [4, 0, 3], [3, 1, 0], [2, 0, 4]])
FACTS = [(ENTITIES[h], RELATIONS[r], ENTITIES[t]) for h, r, t in TRIPLES.tolist()]


def tables(width, columns, relations=2):
    """Vectors of entities and of relations."""
    random = np.random.default_rng(7)
    return tuple(
        torch.from_numpy(random.standard_normal(shape).astype(np.float32))
        for shape in ((5, width), (relations, columns))
    )


def ends(vectors, rows):
    """The vectors of the triples' heads, relations and tails."""
    return vectors[TRIPLES[:, 0]], rows[TRIPLES[:, 1]], vectors[TRIPLES[:, 2]]


def rotate_distances(vectors, phases):
    """``|h e^(i phase) - t|`` of the triples, column by column, all real parts first."""
    head, phase, tail = ends(vectors, phases)
    (re_head, im_head), (re_tail, im_tail) = head.chunk(2, dim=1), tail.chunk(2, dim=1)
    re = re_head * phase.cos() - im_head * phase.sin() - re_tail
    im = re_head * phase.sin() + im_head * phase.cos() - im_tail
    return torch.stack([re, im]).norm(dim=0)


def scores(stored):
    """What the imported model gives the triples."""
    return torch.tensor(SheafModel(stored).score(FACTS)["score"].to_numpy(dtype=np.float32))
