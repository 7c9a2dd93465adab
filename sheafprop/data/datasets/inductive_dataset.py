"""The common face of all data sets."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sheafprop.data.inductive_data import InductiveData


class InductiveDataset(ABC):
    r"""A recipe for :class:`~sheafprop.data.InductiveData`: cheap to make, read by :meth:`load`.

    Args:
        name: The name of the data set.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def load(self) -> "InductiveData":
        r"""Reads the data set, with all checks.

        Raises:
            DataError: If a file is missing, malformed or not the expected one.
        """

    @abstractmethod
    def check(self) -> None:
        r"""Reads the files and checks their labels, without importing torch.

        Raises:
            DataError: As :meth:`load` does, for what can be seen so early.
        """

    def __repr__(self) -> str:
        return f"{self.__class__.__name__}({self.name})"
