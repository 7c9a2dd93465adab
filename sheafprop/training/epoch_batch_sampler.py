from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data.distributed import DistributedSampler

from sheafprop.checks import check_integer


class EpochBatchSampler(DistributedSampler):
    """Batches of indices in an order that the seed and the epoch alone decide.

    Lightning sets the epoch, so a resumed run sees the batches an unbroken one would have seen.
    Several processes share every batch equally, so that their mean gradient is that of the batch.

    Args:
        size (int): Number of examples.
        batch_size (int): Examples in a batch, over all processes; the last one may be smaller.
        seed (int): The seed.
        drop_last (bool): Whether to drop a last batch that is smaller.
        num_replicas (int): Processes that share the batches.
        rank (int): Which of them this is.

    Raises:
        ValueError: If there is no batch, or one that the processes cannot share equally.
    """

    # Of DistributedSampler only the type is used: by it Lightning knows that the work is shared.
    def __init__(
        self,
        size: int,
        batch_size: int,
        seed: int,
        *,
        drop_last: bool = False,
        num_replicas: int = 1,
        rank: int = 0,
    ):
        check_integer("batch_size", batch_size, 1)
        if drop_last and size < batch_size:
            raise ValueError(
                f"'drop_last' leaves no batch: there are {size} triples and 'batch_size' is "
                f"{batch_size}"
            )
        if batch_size % num_replicas:
            raise ValueError(
                f"{num_replicas} processes share every batch equally: 'batch_size' must be a "
                f"multiple of {num_replicas} (got {batch_size})"
            )
        if not drop_last and size % batch_size % num_replicas:
            raise ValueError(
                f"{num_replicas} processes cannot share the last batch of {size % batch_size} "
                "triples equally: drop it with 'drop_last' (--data.drop_last true)"
            )
        super().__init__(
            range(size),  # type: ignore[arg-type]
            num_replicas=num_replicas,
            rank=rank,
            seed=seed,
            drop_last=drop_last,
        )
        self.size, self.batch_size = size, batch_size

    def __iter__(self) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(self.size, generator=generator)
        for batch in order.split(self.batch_size)[: len(self)]:
            yield batch[self.rank :: self.num_replicas]

    def __len__(self) -> int:
        return self.size // self.batch_size if self.drop_last else -(-self.size // self.batch_size)
