import torch
from torch import Tensor

from sheafprop.sheaf.dense_sheaf import DenseSheaf
from sheafprop.sheaf.diagonal_sheaf import DiagonalSheaf
from sheafprop.sheaf.identity_sheaf import IdentitySheaf
from sheafprop.sheaf.relation_sheaf import RelationSheaf


def add_identity_relation(sheaf: RelationSheaf) -> RelationSheaf:
    r"""Adds a relation, number :math:`R`, whose maps are the identity and whose translation is
    zero: the residual of a triple of it is :math:`x_t - x_h`.

    Identity and diagonal maps stay so; others are written out as matrices. Edge stalks that are
    smaller than the vertex stalks get coordinates that are zero for all other relations.

    Args:
        sheaf (RelationSheaf): A sheaf of :math:`R` relations.
    """
    if isinstance(sheaf, IdentitySheaf):
        if sheaf.translation is None:
            return IdentitySheaf(relations=sheaf.num_relations + 1)
        return IdentitySheaf(_add_row(sheaf.translation, 0.0))
    if isinstance(sheaf, DiagonalSheaf):
        head, tail = (
            None if table is None else _add_row(table, 1.0) for table in (sheaf.head, sheaf.tail)
        )
        shift = sheaf.translation
        return DiagonalSheaf(head, tail, None if shift is None else _add_row(shift, 0.0))
    tail = _add_identity(sheaf.matrices("tail"))
    head = tail if sheaf.shares_maps else _add_identity(sheaf.matrices("head"))
    shift = sheaf.translation_of(torch.arange(sheaf.num_relations, device=tail.device))
    if shift is not None:
        shift = torch.nn.functional.pad(shift, (0, tail.shape[1] - shift.shape[1], 0, 1))
    return DenseSheaf(head, tail, shift)


def _add_row(table: Tensor, value: float) -> Tensor:
    return torch.nn.functional.pad(table, (0, 0, 0, 1), value=value)


def _add_identity(maps: Tensor) -> Tensor:
    """Maps ``[R, k, d]`` and the identity, with edge stalks that are large enough for it."""
    _, k, d = maps.shape
    eye = torch.eye(max(k, d), d, dtype=maps.dtype, device=maps.device)
    return torch.cat([torch.nn.functional.pad(maps, (0, 0, 0, len(eye) - k)), eye.unsqueeze(0)])
