"""Names the entities or relations whose numbers are not finite."""

import cmath
from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor

from sheafprop.checks import quote
from sheafprop.errors import DivergenceError


class Named(Protocol):
    """Labels by their numbers."""

    def __getitem__(self, number: int, /) -> str: ...


def name_nonfinite_rows(
    table: Tensor, labels: Named, kind: str = "entity", ids: Tensor | None = None
) -> str | None:
    r"""Returns which rows of a table hold NaN or infinity, in words, or None if all are finite.

    Args:
        table (Tensor): A row for each label, ``[n, ...]``, real or complex.
        labels (sequence of str): The labels of the rows, or of ``ids``.
        kind (str): What a row belongs to, ``"entity"`` or ``"relation"``.
        ids (Tensor, optional): The number of each row, ``[n]``. (default: its place in the table)
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
    r"""Refuses a table with NaN or infinity.

    Args:
        table, labels, kind, ids: See :func:`name_nonfinite_rows`.
        what (str): What the table is, for the message.

    Raises:
        DivergenceError: The message names the first such entity or relation, and its row.
    """
    named = name_nonfinite_rows(table, labels, kind, ids)
    if named is not None:
        raise DivergenceError(
            f"{what}: the row of {named} is not finite, so no score would mean anything. Train "
            "again with a smaller learning rate, or correct the table"
        )


def check_finite_parts(parts: Iterable[Tensor], labels: Named, what: str) -> None:
    """Refuses a table that comes in parts of its rows, in order; see :func:`check_finite_rows`."""
    start = 0
    for rows in parts:
        check_finite_rows(rows, labels, what, ids=torch.arange(start, start + len(rows)))
        start += len(rows)
