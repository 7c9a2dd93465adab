from collections.abc import Iterable

import torch
from torch import Tensor

from sheafprop.checks import check_choice, quote
from sheafprop.kernels.rows import real_rows
from sheafprop.kge.base import Side
from sheafprop.pretrained.model_state import ModelState

# How far a map may be from one that keeps all lengths up to a factor.
_TOL = 1e-5


@torch.no_grad()
def query_vectors(
    state: ModelState, entities: str | Iterable[str], relation: str, side: Side
) -> Tensor:
    """Vectors whose nearest neighbours are predictions; see :meth:`SheafModel.query_vectors`."""
    check_choice("side", side, ("tail", "head"))
    kind = state.relations.ids([relation])
    if state.graph_scorer is not None:
        raise ValueError(
            "this model scores by the graph of its facts too, which no vector of a query holds: "
            "take with_scores(episodes=False, proximity=0, own_last=False)"
        )
    if state.kge.p != 2 or state.num_sections > 1:
        what = f"the {state.kge.p:g}-norm" if state.num_sections == 1 else "several vectors of each"
        raise ValueError(
            f"nearest neighbours by Euclidean distance are not predictions of this model, which "
            f"scores by {what}: ask predict_tails or predict_heads"
        )
    sheaf, width = state.trained.sheaf, state.kge.hidden_channels
    maps = sheaf.matrices(side, kind, width)[0]
    square = maps.mH @ maps
    scale = square.diagonal().real.mean()
    eye = torch.eye(width, dtype=square.dtype, device=square.device)
    if not (scale > 0 and bool(((square - scale * eye).abs() <= _TOL * scale).all())):
        raise ValueError(
            f"{type(state.kge).__name__} maps {side}s of {quote(relation)} so that distances "
            "change, and what is near in an index of the vectors need not be near there: ask "
            f"predict_{side}s"
        )
    x = state.rows.select(state.index.ids(entities))[:, 0]
    kinds = kind.expand(len(x))
    query = sheaf.restrict(x, kinds, "head" if side == "tail" else "tail")
    shift = sheaf.translation_of(kinds)
    if shift is not None:
        query = query + shift if side == "tail" else query - shift
    # || R x - q ||^2 = s || x - R* q / s ||^2 + what is the same for all x, where R* R = s I.
    return real_rows(sheaf.restrict_adjoint(query, kinds, side) / scale)
