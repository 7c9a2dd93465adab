"""A table whose rows are shared among ranks: looked up and updated where they are."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from sheafprop.distributed.rank_shards import shard_bounds, shard_size
from sheafprop.distributed.ranks import Ranks
from sheafprop.distributed.roll_call import describe_error
from sheafprop.files import StorageError, storage_errors


class ShardedTable(torch.nn.Module):
    """An embedding of which each rank has some rows.

    A look-up sends ids to the owners of their rows, which send the rows back. The backward pass
    sends gradients the same way; :obj:`weight` then has a sparse gradient of the rows of this rank,
    each contribution divided by the number of ranks, so that losses that are means over the shares
    of a batch give the gradient of the mean over the batch. An optimizer that takes sparse
    gradients steps the rows of each rank there.

    Args:
        num_embeddings (int): The rows of all ranks.
        embedding_dim (int): The width of a row.
        ranks (Ranks): The ranks, all of which look up and go backward equally often.
        **factory: Arguments of :func:`torch.empty`; rows are not initialized.

    Shapes:
        - **weight:** the rows of this rank from :obj:`first_row` on, :math:`(n, m)`
        - **input:** ids :math:`(B)`, :obj:`int64`
        - **output:** :math:`(B, m)`
    """

    #: As in :class:`torch.nn.Embedding`; a table that is shared has sparse gradients.
    sparse = True

    def __init__(self, num_embeddings: int, embedding_dim: int, ranks: Ranks, **factory: Any):
        super().__init__()
        self.num_embeddings, self.embedding_dim, self.ranks = num_embeddings, embedding_dim, ranks
        self.first_row, end = shard_bounds(num_embeddings, ranks)
        self.weight = torch.nn.Parameter(
            torch.empty(end - self.first_row, embedding_dim, **factory)
        )

    def forward(self, ids: Tensor) -> Tensor:
        """The rows of some ids, which may be those of other ranks."""
        return _LookUp.apply(self.weight, ids, self)

    def extra_repr(self) -> str:
        """The size of the whole table, and the rank."""
        return f"{self.num_embeddings}, {self.embedding_dim}, {self.ranks}"

    # Storage --------------------------------------------------------------------------------------

    def write(self, folder: str | Path, tensors: Mapping[str, Tensor]) -> None:
        """Writes tensors with a row for each row of this rank, by torch's distributed checkpoint.

        Its metadata has the offset of each part, so that any number of ranks reads it: see
        :func:`read_rows`.

        Args:
            folder (str or Path): A new folder that all ranks reach.
            tensors (mapping): By name, ``[n, ...]`` each.

        Raises:
            StorageError: If a rank cannot write.
        """
        from torch.distributed import checkpoint as dcp

        with _checkpoint_errors(folder, "written"), self.ranks.watch("saving a checkpoint"):
            dcp.save(self._distribute(tensors), checkpoint_id=str(folder))

    def read(self, folder: str | Path, tensors: Mapping[str, Tensor]) -> None:
        """Reads this rank's rows of tensors that :meth:`write` has written, in place.

        Args:
            folder (str or Path): The folder.
            tensors (mapping): Where to read to by name, ``[n, ...]`` each.

        Raises:
            StorageError: If a rank cannot read them.
        """
        with self.ranks.watch("loading a checkpoint"):
            read_rows(folder, self._distribute(tensors))

    def _distribute(self, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        if not dist.is_initialized():
            return dict(tensors)
        # Not at the head: they take a second to import.
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.tensor import DTensor, Shard

        mesh, whole = DeviceMesh(self.ranks.device.type, list(range(self.ranks.size))), {}
        for name, part in tensors.items():
            shape = torch.Size((self.num_embeddings, *part.shape[1:]))
            stride = torch.empty(shape, device="meta").stride()
            whole[name] = DTensor.from_local(
                part.detach(), mesh, [Shard(0)], run_check=False, shape=shape, stride=stride
            )
        return whole

    def map_whole(self, file: str | Path) -> torch.nn.Embedding:
        """The whole table as it is now, in a file that all ranks write into and map.

        It takes the disk's place, and none in memory that cannot be given back. The file has no
        name any more once all ranks have mapped it.

        Args:
            file (str or Path): A new file on a disk that all ranks reach.
        """
        rows = self.weight.detach().cpu().contiguous()
        size = rows.element_size() * self.embedding_dim

        def create() -> None:
            if self.ranks.is_first:
                with storage_errors(file, "written"), open(file, "xb") as new:
                    new.truncate(self.num_embeddings * size)

        def fill() -> None:
            with storage_errors(file, "written"), open(file, "r+b") as shared:
                shared.seek(self.first_row * size)
                shared.write(rows.flatten().view(torch.uint8).numpy().data)

        self.ranks.run_together(create)
        self.ranks.run_together(fill)
        count = self.num_embeddings * self.embedding_dim
        mapped = torch.from_file(str(file), shared=True, size=count, dtype=rows.dtype)
        self.ranks.barrier()
        if self.ranks.is_first:
            Path(file).unlink()
        table = torch.nn.Embedding.from_pretrained(mapped.view(-1, self.embedding_dim), sparse=True)
        return table.to(self.weight.device)


def read_rows(folder: str | Path, tensors: Mapping[str, Tensor]) -> None:
    """Reads tensors that :meth:`ShardedTable.write` has written, as a whole and in place.

    Args:
        folder (str or Path): The folder.
        tensors (mapping): Where to read to, by name.

    Raises:
        StorageError: If they cannot be read.
    """
    from torch.distributed import checkpoint as dcp

    with _checkpoint_errors(folder, "read"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.distributed is .*unavailable")
        dcp.load(dict(tensors), checkpoint_id=str(folder))


@contextmanager
def _checkpoint_errors(folder: str | Path, action: Literal["read", "written"]) -> Iterator[None]:
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        with storage_errors(folder, action):
            yield
    except CheckpointException as error:
        first = min(error.failures)
        cause = error.failures[first][0]
        raise StorageError(
            f"'{folder}' cannot be {action} by rank {first}: {describe_error(cause)}; it must be "
            "on a disk that all ranks reach"
        ) from cause


class _LookUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor, table: ShardedTable) -> Tensor:
        ranks = table.ranks
        owner = ids // shard_size(table.num_embeddings, ranks.size)
        order = torch.argsort(owner, stable=True)
        sent = torch.bincount(owner, minlength=ranks.size).tolist()
        received, most = ranks.exchange_counts(sent)
        asked = ids.new_empty(sum(received))
        ranks.exchange(asked, ids[order], received=received, sent=sent, most=most)
        place = asked - table.first_row
        found = weight.new_empty(len(ids), weight.shape[1])
        ranks.exchange(found, weight[place], received=sent, sent=received, most=most)
        ctx.table, ctx.counts, ctx.shape = table, (received, sent, most), weight.shape
        ctx.save_for_backward(order, place)
        return torch.empty_like(found).index_copy_(0, order, found)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        order, place = ctx.saved_tensors
        received, sent, most = ctx.counts
        ranks = ctx.table.ranks
        got = grad.new_empty(len(place), grad.shape[1])
        ranks.exchange(got, grad[order], received=received, sent=sent, most=most)
        # In order of the ranks: torch adds up repeated rows of a sparse tensor in any order.
        rows, inverse = place.unique(return_inverse=True)
        total = got.new_zeros(len(rows), got.shape[1]).index_add_(0, inverse, got.div_(ranks.size))
        sparse = torch.sparse_coo_tensor(
            rows.unsqueeze(0), total, ctx.shape, check_invariants=False, is_coalesced=True
        )
        return sparse, None, None
