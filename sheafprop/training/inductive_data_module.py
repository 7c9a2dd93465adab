from collections.abc import Iterator
from typing import Literal

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from sheafprop.checks import check_integer
from sheafprop.data import InductiveData, build_dataset
from sheafprop.data.feature_files import read_features
from sheafprop.data.inductive_data import add_features, triple_set_keys
from sheafprop.data.label_checks import Mode
from sheafprop.data.read_options import InputFormat
from sheafprop.errors import DataError

#: Batch size of the transductive validation.
_VALID_BATCH = 4096


class EpochBatchSampler(DistributedSampler):
    """Samples batches of indices in an order that depends only on the seed and the epoch.

    Lightning sets the epoch, so a resumed run has the same batches as an uninterrupted one. Several
    processes split every batch equally, so that their mean gradient is that of the batch.

    Args:
        size (int): Number of examples.
        batch_size (int): Number of examples per batch, over all processes.
        seed (int): Random seed.
        drop_last (bool): Whether to drop a smaller last batch.
        num_replicas (int): Number of processes.
        rank (int): Rank of this process.

    Raises:
        ValueError: If there is no batch, or the processes cannot split a batch equally.
    """

    # Lightning recognizes distributed samplers by this base class; nothing else of it is used.
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
                f"{num_replicas} processes split every batch equally: 'batch_size' must be a "
                f"multiple of {num_replicas} (got {batch_size})"
            )
        if not drop_last and size % batch_size % num_replicas:
            raise ValueError(
                f"{num_replicas} processes cannot split the last batch of {size % batch_size} "
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


class InductiveDataModule(LightningDataModule):
    r"""Data module of a training graph and an inference graph to propagate into.

    Args:
        dataset: ``"grail"``: the GraIL benchmark; ``"pykeen"``: a small graph from the files of the
            installed PyKEEN, with some entities as new ones; ``"folder"``: your own files.
        name: Name of the graph: ``"fb237_v1"`` ..., ``"umls"`` ...; not for ``"folder"``.
        root: Folder of the files: your own, or that of the benchmark or its archives.
        mode: ``"semi-inductive"`` (entities of the training graph are fixed) or
            ``"fully-inductive"`` (all entities of the inference graph are new). Required for
            ``"folder"``; the others have a default.
        batch_size: Number of training triples per batch. Several processes split every batch
            equally.
        drop_last: Whether to drop the last batch of an epoch if it is smaller than the others.
            Required if several processes cannot split it equally.
        num_workers: Number of processes that load batches.
        hold_out: For ``"folder"`` without ``valid.txt``: fraction of the training triples held out
            for transductive validation.
        on_unknown_relation: For ``"folder"``: ``"error"``, or ``"drop"`` triples of relations
            without training triples (counted and reported).
        columns: For ``"folder"``: the columns of head, relation and tail in every file, as three
            numbers from 0 or three names of the header, such as ``"source,kind,target"``.
        header: For ``"folder"``: whether the first line of every file is a header, true (``"yes"``)
            or false (``"no"``). By default it is inferred from the fields.
        delimiter: For ``"folder"``: the character between fields.
        input_format: For ``"folder"``: the format of every file, see
            :func:`~sheafprop.data.read_triples`; by default inferred from content and name.
        prefixes: For ``"folder"``: how IRIs are shortened to labels: ``"common"`` (the default),
            ``"none"``, or a file of further prefixes.
        seed: Seed of splits made here; the order of the batches depends on the seed of the model.
        features: A file with features of entities of both graphs, see
            :func:`~sheafprop.data.read_features`: used for the vectors of new entities.

    Raises:
        ValueError: If the arguments do not identify the data.
        DataError: On :meth:`setup`, if the data cannot be used.
    """

    def __init__(
        self,
        dataset: Literal["grail", "pykeen", "folder"] = "grail",
        name: str | None = None,
        root: str | None = None,
        mode: Mode | None = None,
        batch_size: int = 512,
        drop_last: bool = False,
        num_workers: int = 0,
        hold_out: float = 0.0,
        on_unknown_relation: Literal["error", "drop"] = "error",
        seed: int = 0,
        columns: str | list[int | str] | None = None,
        header: bool | Literal["auto", "yes", "no"] | None = None,
        delimiter: str | None = None,
        input_format: InputFormat | None = None,
        prefixes: str | None = None,
        features: str | None = None,
    ):
        super().__init__()
        self._features = features
        check_integer("batch_size", batch_size, 1)
        self.batch_size, self.drop_last, self.num_workers = batch_size, drop_last, num_workers
        self.dataset = build_dataset(
            dataset,
            name=name,
            root=root,
            mode=mode,
            hold_out=hold_out,
            on_unknown_relation=on_unknown_relation,
            seed=seed,
            columns=columns,
            header=header,
            delimiter=delimiter,
            input_format=input_format,
            prefixes=prefixes,
        )
        self._data: InductiveData | None = None
        self._keys: dict[str, str] | None = None

    @classmethod
    def from_data(cls, data: InductiveData, **arguments: int) -> "InductiveDataModule":
        """Builds a data module from graphs in memory."""
        module = cls(dataset="folder", root=".", mode=data.mode, **arguments)  # type: ignore[arg-type]
        module._data = data
        return module

    @property
    def data(self) -> InductiveData:
        """The graphs, read at first access."""
        if self._data is None:
            self._data = self.dataset.load()
            if self._features is not None:
                self._data = add_features(self._data, read_features(self._features))
        return self._data

    @data.setter
    def data(self, data: InductiveData) -> None:
        self._data, self._keys = data, None

    @property
    def keys(self) -> dict[str, str]:
        """The hashes of the sets of triples and of the features."""
        if self._keys is None:
            features = self.data.features
            own = {} if features is None else {"features": features.key()}
            self._keys = triple_set_keys(self.data) | own
        return self._keys

    def setup(self, stage: str) -> None:
        _ = self.data

    def train_dataloader(self) -> DataLoader:
        """Returns batches of training triples with their indices, split among the processes.

        Raises:
            ValueError: If the processes cannot split them equally.
        """
        assert self.trainer is not None
        triples, module = self.data.train.triples, self.trainer.lightning_module
        batches = EpochBatchSampler(
            len(triples),
            self.batch_size,
            module.hparams["seed"],
            drop_last=self.drop_last,
            num_replicas=self.trainer.world_size,
            rank=self.trainer.global_rank,
        )
        return DataLoader(
            TensorDataset(triples, torch.arange(len(triples))),
            sampler=batches,
            batch_size=None,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
        )

    def val_dataloader(self) -> DataLoader | list:
        """Returns the transductive validation triples in batches, and those of the inference graph
        in one batch.

        Processes split the former; all of them rank the latter.
        """
        parts: list[tuple[str, Tensor]] = []
        if self.data.train_valid is not None:
            assert self.trainer is not None
            own = self.data.train_valid[self.trainer.global_rank :: self.trainer.world_size]
            parts += [("transductive", t) for t in own.split(_VALID_BATCH) if len(t)]
        if self.data.valid is not None:
            parts.append(("inductive", self.data.valid))
        return _load_unshuffled(parts) if parts else []

    def test_dataloader(self) -> DataLoader:
        if self.data.test is None:
            raise DataError(f"{self.data.name}: there are no test triples to rank")
        return _load_unshuffled([self.data.test])


def _load_unshuffled(batches: list) -> DataLoader:
    # Lightning would distribute the batches, with duplicates.
    sampler: DistributedSampler = DistributedSampler(
        batches,  # type: ignore[arg-type]
        num_replicas=1,
        rank=0,
        shuffle=False,
    )
    return DataLoader(batches, batch_size=None, sampler=sampler)  # type: ignore[arg-type]
