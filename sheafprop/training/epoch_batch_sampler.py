from collections.abc import Iterator

import torch
from torch.utils.data import Sampler


class EpochBatchSampler(Sampler[list[int]]):
    """Batches of indices in an order that the seed and the epoch alone decide.

    Lightning tells it the epoch, so a resumed run sees the batches an unbroken one would have seen.

    Args:
        size (int): Number of examples.
        batch_size (int): Examples in a batch; the last one may be smaller.
        seed (int): The seed.
    """

    def __init__(self, size: int, batch_size: int, seed: int):
        if batch_size < 1:
            raise ValueError(f"'batch_size' must be at least 1 (got {batch_size})")
        self.size, self.batch_size, self.seed = size, batch_size, seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by the trainer before each epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(self.size, generator=generator)
        for batch in order.split(self.batch_size):
            yield batch.tolist()

    def __len__(self) -> int:
        return -(-self.size // self.batch_size)
