"""Base class of data sets."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sheafprop.data.inductive_data import InductiveData


class InductiveDataset(ABC):
    r"""Base class of data sets. :meth:`load` reads :class:`~sheafprop.data.InductiveData`.

    Args:
        name: The name of the data set.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def load(self) -> "InductiveData":
        r"""Reads and checks the data set.

        Raises:
            DataError: If a file is missing, malformed or not the expected one.
        """

    @abstractmethod
    def check(self) -> None:
        r"""Reads the files and checks their labels, without importing torch.

        Raises:
            DataError: As :meth:`load`, as far as the labels show it.
        """

    def __repr__(self) -> str:
        return f"{self.__class__.__name__}({self.name})"
