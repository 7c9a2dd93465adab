"""Maps labels to ids and back."""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from sheafprop.checks import quote
from sheafprop.data.label_checks import fold
from sheafprop.data.triples import LABEL, as_label
from sheafprop.errors import DataError

# Fuzzy matching is quadratic in the lengths of labels, so large vocabularies skip it.
MAX_SUGGESTION_LABELS = 100_000
_MAX_SUGGESTION_LENGTH = 1000


class Labels(Protocol):
    """Interface of vocabularies, in memory or on disk; see :class:`Vocabulary`."""

    def lookup(self, labels: Iterable[str]) -> Tensor:
        """Returns the ids of labels, -1 for unknown labels, int64 ``[n]``."""

    def ids(self, labels: Iterable[str]) -> Tensor:
        """Returns the ids of labels, int64 ``[n]``. Unknown labels raise a :class:`DataError`."""

    def labels_of(self, ids: Tensor | Iterable[int]) -> list[str]:
        """Returns the labels of ids."""

    def __len__(self) -> int: ...


def unknown_labels(
    missing: Sequence[str], size: int, kind: str, suggestion: Callable[[str], str]
) -> DataError:
    """Builds the error for unknown labels, which names the first ones with similar labels.

    Args:
        missing: Unknown labels, possibly with duplicates.
        size: Number of known labels.
        kind: What the labels denote, in the plural.
        suggestion: Maps an unknown label to a suggestion.
    """
    missing = list(dict.fromkeys(missing))
    named = ", ".join(quote(label) + suggestion(label) for label in missing[:3])
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    return DataError(
        f"{len(missing)} of the given labels {'is' if len(missing) == 1 else 'are'} not "
        f"among the {size} {kind}: {named}{more}"
    )


class Vocabulary:
    r"""An immutable sequence of labels. The id of a label is its position.

    Args:
        labels: Distinct labels. Integers are converted to decimal text, here and in every method.
        kind: What the labels denote, in the plural, for error messages.

    Raises:
        DataError: If a label is not a string or an integer, or occurs twice.
    """

    __slots__ = ("_index", "_labels", "kind")

    def __init__(self, labels: Iterable[str] = (), *, kind: str = "labels") -> None:
        self._labels = _texts(labels, kind)
        self._index = {label: number for number, label in enumerate(self._labels)}
        self.kind = kind
        for number, label in enumerate(self._labels):
            if self._index[label] != number:
                raise DataError(
                    f"every label must occur once among the {kind} "
                    f"(got {quote(label)} at {number} and at {self._index[label]})"
                )

    @property
    def labels(self) -> tuple[str, ...]:
        r"""The labels in the order of their ids."""
        return self._labels

    @property
    def index(self) -> Mapping[str, int]:
        r"""The ids by label."""
        return MappingProxyType(self._index)

    def lookup(self, labels: Iterable[str]) -> Tensor:
        r"""Returns the ids of labels, -1 for unknown ones, as int64 of shape ``[n]``."""
        get = self._index.get
        ids = (get(label if isinstance(label, str) else as_label(label), -1) for label in labels)
        return torch.from_numpy(np.fromiter(ids, dtype=np.int64))

    def ids(self, labels: Iterable[str]) -> Tensor:
        r"""Returns the ids of labels, as int64 of shape ``[n]``.

        Raises:
            DataError: If labels are unknown. The message names the first ones with similar labels.
        """
        wanted = list(_texts([labels] if isinstance(labels, LABEL) else labels, self.kind))
        ids = self.lookup(wanted)
        if missing := [wanted[row] for row in (ids < 0).nonzero().flatten().tolist()]:
            raise unknown_labels(missing, len(self), self.kind, self.suggestion)
        return ids

    def labels_of(self, ids: Tensor | Iterable[int]) -> list[str]:
        r"""Returns the labels of ids.

        Raises:
            DataError: If an id is out of range.
        """
        numbers = ids.flatten().tolist() if isinstance(ids, Tensor) else [int(i) for i in ids]
        wrong = [number for number in numbers if not 0 <= number < len(self)]
        if wrong:
            raise DataError(
                f"ids of {self.kind} must be between 0 and {len(self) - 1} (got {wrong[0]})"
            )
        return [self._labels[number] for number in numbers]

    def extend(self, labels: Iterable[str]) -> "Vocabulary":
        r"""Returns a vocabulary with new labels appended in the order of first appearance.

        Known labels keep their ids.
        """
        merged = dict.fromkeys(self._labels)
        merged.update(dict.fromkeys(_texts(labels, self.kind)))
        return Vocabulary(merged, kind=self.kind)

    def suggestion(self, label: Any) -> str:
        r"""Returns `` (did you mean 'x'?)`` for an unknown label; empty if no label is similar."""
        if not isinstance(label, str) or len(label) > _MAX_SUGGESTION_LENGTH:
            return ""
        folded = fold(label)
        near = next((known for known in self._labels if fold(known) == folded), None)
        if near is None and len(self) <= MAX_SUGGESTION_LABELS:
            near = next(
                iter(difflib.get_close_matches(label, self._labels, n=1, cutoff=0.75)), None
            )
        return "" if near is None else f" (did you mean {near!r}?)"

    def __len__(self) -> int:
        return len(self._labels)

    def __contains__(self, label: object) -> bool:
        if isinstance(label, int | np.integer) and not isinstance(label, bool):
            label = as_label(label)
        return label in self._index

    def __iter__(self) -> Iterator[str]:
        return iter(self._labels)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self._labels == other._labels

    def __hash__(self) -> int:
        return hash(self._labels)

    def __copy__(self) -> "Vocabulary":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Vocabulary":
        return self

    def __repr__(self) -> str:
        return f"{self.__class__.__name__}({len(self)} {self.kind})"


def _texts(labels: Iterable[Any], kind: str) -> tuple[str, ...]:
    given = tuple(labels)
    if all(isinstance(label, str) for label in given):
        return given
    return tuple(as_label(label, f"a label of the {kind}") for label in given)
