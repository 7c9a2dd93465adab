import torch
from torch import Tensor

from sheafprop.sheaf.dense_sheaf import DenseSheaf
from sheafprop.sheaf.identity_sheaf import IdentitySheaf
from sheafprop.sheaf.relation_sheaf import RelationSheaf
from sheafprop.sheaf.table_sheaf import TableSheaf


def add_identity_relation(
    sheaf: RelationSheaf, scale: Tensor | None = None, width: int | None = None
) -> RelationSheaf:
    r"""Adds a relation, number :math:`R`, whose maps are the identity and whose translation is
    zero: the residual of a triple of it is :math:`x_t - x_h`.

    Identity maps and tables of diagonal maps or quaternions stay so; other maps are written out as
    matrices. Edge stalks that are smaller than the vertex stalks get coordinates that are zero for
    all other relations.

    Args:
        sheaf (RelationSheaf): A sheaf of :math:`R` relations.
        scale (Tensor, optional): A positive factor of the energy of the new relation, by whose root
            its maps are multiplied, so that gradients reach it.
        width (int, optional): Dimension :math:`d`, for a scale with a sheaf that has none.
    """
    if scale is not None and isinstance(sheaf, IdentitySheaf):
        sheaf = sheaf.scale_energy(scale.new_ones(sheaf.num_relations), width)
    if isinstance(sheaf, IdentitySheaf):
        if sheaf.translation is None:
            return IdentitySheaf(relations=sheaf.num_relations + 1)
        return IdentitySheaf(_add_zeros(sheaf.translation))
    root = 1.0 if scale is None else scale.sqrt()
    if isinstance(sheaf, TableSheaf):
        some = sheaf.tail if sheaf.head is None else sheaf.head
        assert some is not None
        # Also where there is no relation yet.
        one = sheaf.algebra.one(some.new_empty(1, some.shape[1])) * root
        given = [sheaf.head, sheaf.tail]
        if scale is not None:
            given = [sheaf.algebra.one(some) if table is None else table for table in given]
        head, tail = (
            None if table is None else torch.cat([table, one.to(table.dtype)]) for table in given
        )
        shift = sheaf.translation
        return type(sheaf)(head, tail, None if shift is None else _add_zeros(shift))
    tail = _add_identity(sheaf.matrices("tail"), root)
    head = tail if sheaf.shares_maps else _add_identity(sheaf.matrices("head"), root)
    shift = sheaf.translation_of(torch.arange(sheaf.num_relations, device=tail.device))
    if shift is not None:
        shift = torch.nn.functional.pad(shift, (0, tail.shape[1] - shift.shape[1], 0, 1))
    return DenseSheaf(head, tail, shift)


def _add_zeros(table: Tensor) -> Tensor:
    return torch.nn.functional.pad(table, (0, 0, 0, 1))


def _add_identity(maps: Tensor, root: Tensor | float) -> Tensor:
    """Maps ``[R, k, d]`` and multiples of the identity, with edge stalks that are large enough."""
    _, k, d = maps.shape
    eye = torch.eye(max(k, d), d, dtype=maps.dtype, device=maps.device) * root
    rows = torch.nn.functional.pad(maps, (0, 0, 0, len(eye) - k))
    return torch.cat([rows, eye.to(maps.dtype).unsqueeze(0)])
