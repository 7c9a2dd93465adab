import torch
from torch import Tensor
from torch.utils.data import Dataset


class TripleBatches(Dataset):
    """Triples that are fetched a batch at a time: an index list in, a tensor out.

    Args:
        triples (Tensor): ``[m, 3]``, head, relation, tail.
    """

    def __init__(self, triples: Tensor):
        self.triples = triples

    def __getitem__(self, index: list[int]) -> tuple[Tensor, Tensor]:
        """The triples ``[B, 3]`` and their numbers ``[B]``."""
        number = torch.as_tensor(index)
        return self.triples[number], number

    def __len__(self) -> int:
        return len(self.triples)
