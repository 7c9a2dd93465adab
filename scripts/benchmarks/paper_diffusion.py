"""The diffusion of the paper's text and of its released code, from either start.

The text's step is block-normalized. The released code divides by the degree times the dimension,
moves heads of RotatE without the conjugate rotation, and clamps what TransR has projected. It
starts from standard normal entries, since PyKEEN only calls the initializer of a new embedding
with those of the whole model; ours start with the length that the model trains with.
"""

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from benchmarks.paper_training import ProjectedTransR, clamp_rows
from sheafprop.data.inductive_data import InductiveData
from sheafprop.kge import KGEModel
from sheafprop.nn import SheafPropagation

Trajectory = Iterator[tuple[int, Tensor]]

#: Entries beyond this have squares that single precision cannot add up.
_LARGEST = 1e15


def own_start(model: KGEModel, data: InductiveData, seed: int) -> Tensor:
    """The random start of the library, ``[N, d]``."""
    assert data.inference.entities is not None
    return model.draw_entities(data.inference.entities.labels, seed)[:, 0]


def normal_start(model: KGEModel, data: InductiveData, seed: int) -> Tensor:
    """Standard normal entries, real and imaginary parts alike, ``[N, d]``."""
    width = model.node_emb.weight.shape[1]
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(data.inference.num_nodes or 0, width, generator=generator)
    return torch.view_as_complex(rows.unflatten(1, (-1, 2))) if model.is_complex else rows


@torch.no_grad()
def text_trajectory(
    model: KGEModel, data: InductiveData, start: Tensor, step_size: float, counts: Iterable[int]
) -> Trajectory:
    """Vectors ``[N, 1, d]`` after some numbers of steps of the text, all entities free."""
    graph = data.inference.triples[:, [0, 2]].T, data.inference.triples[:, 1]
    layer = SheafPropagation(1, step_size=step_size, normalization="block")
    plan = layer.plan(start, *graph, model.sheaf(), None, data.boundary_mask)
    yield from layer.trajectory(plan, start.unsqueeze(1), counts)


@torch.no_grad()
def released_trajectory(
    model: KGEModel, data: InductiveData, start: Tensor, step_size: float, counts: Iterable[int]
) -> Trajectory:
    """The same with the steps of the released code; ends where vectors have grown too large."""
    counts = sorted(counts)
    triples = data.inference.triples
    if model.name == "transe" and not bool((triples[:, 0] == triples[:, 2]).any()):
        # Maps are the identity, so that only the division by the dimension is left of it; a loop
        # counts for the degree here and not in the text.
        yield from text_trajectory(model, data, start, step_size / start.shape[1], counts)
        return
    step = released_step(model, triples, len(start))
    x = start
    for count in range(counts[-1] + 1):
        if count in counts:
            if not bool((x.abs() < _LARGEST).all()):
                return
            yield count, x.unsqueeze(1)
        x = step(x, step_size)


def released_step(
    model: KGEModel, triples: Tensor, num_nodes: int
) -> Callable[[Tensor, float], Tensor]:
    """One step of the released code on vectors ``[N, d]``."""
    head, relation, tail = triples[triples[:, 1].argsort(stable=True)].T
    degree = torch.bincount(triples[:, [0, 2]].flatten(), minlength=num_nodes).clamp(min=1)
    sheaf = model.sheaf()
    shift = sheaf.translation_of(relation)
    clamp = clamp_rows if isinstance(model, ProjectedTransR) else lambda rows: rows

    def step(x: Tensor, step_size: float) -> Tensor:
        residual = clamp(sheaf.restrict(x[head], relation, "head"))
        residual = residual - clamp(sheaf.restrict(x[tail], relation, "tail"))
        if shift is not None:
            residual = residual + shift
        to_tail = sheaf.restrict_adjoint(residual, relation, "tail")
        # Without the conjugate: heads of RotatE are moved by the residual itself.
        to_head = residual
        if not model.is_complex:
            to_head = sheaf.restrict_adjoint(residual, relation, "head")
        change = torch.zeros_like(x).index_add(0, tail, to_tail).index_add(0, head, -to_head)
        return x + step_size * change / (degree.unsqueeze(1) * x.shape[1])

    return step
