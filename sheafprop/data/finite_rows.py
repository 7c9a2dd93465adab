"""Finds entities and relations whose vectors are not finite."""

import cmath
from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor

from sheafprop.checks import quote
from sheafprop.errors import DivergenceError


class Named(Protocol):
    """A sequence of labels."""

    def __getitem__(self, number: int, /) -> str: ...


def name_nonfinite_rows(
    table: Tensor, labels: Named, kind: str = "entity", ids: Tensor | None = None
) -> str | None:
    r"""Describes the rows of a table that hold NaN or infinity; None if all rows are finite.

    Args:
        table (Tensor): One row per label, ``[n, ...]``, real or complex.
        labels (sequence of str): The labels by id.
        kind (str): What the rows are, ``"entity"`` or ``"relation"``.
        ids (Tensor, optional): The id of each row, ``[n]``. (default: its position)
    """
    if cmath.isfinite(table.sum().item()):  # no NaN and no infinity gets lost in a sum
        return None
    finite = torch.isfinite(torch.view_as_real(table) if table.is_complex() else table)
    if bool(finite.all()):
        return None
    bad = (~finite.flatten(1).all(1)).nonzero().flatten()
    row = int(bad[0]) if ids is None else int(ids[bad[0]])
    others = f", and {len(bad) - 1:,} more" if len(bad) > 1 else ""
    return f"{kind} {quote(labels[row])} (row {row}{others})"


def check_finite_rows(
    table: Tensor, labels: Named, what: str, *, kind: str = "entity", ids: Tensor | None = None
) -> None:
    r"""Checks that a table has no NaN and no infinity.

    Args:
        table, labels, kind, ids: See :func:`name_nonfinite_rows`.
        what (str): The name of the table for the message.

    Raises:
        DivergenceError: If a row is not finite. The message names the first one.
    """
    named = name_nonfinite_rows(table, labels, kind, ids)
    if named is not None:
        raise DivergenceError(
            f"{what}: the row of {named} is not finite, so its scores would be meaningless. Train "
            "again with a smaller learning rate, or correct the table"
        )


def check_finite_parts(parts: Iterable[Tensor], labels: Named, what: str) -> None:
    """Checks consecutive parts of a table, see :func:`check_finite_rows`."""
    start = 0
    for rows in parts:
        check_finite_rows(rows, labels, what, ids=torch.arange(start, start + len(rows)))
        start += len(rows)
