"""Batches of the data module, in an order that the seed and the epoch alone decide."""

import pytest
import torch

from sheafprop.errors import DataError
from sheafprop.pretrained.model_folder import load_model_folder
from sheafprop.training import BestCheckpoint, InductiveDataModule, SaveModel
from sheafprop.training.inductive_data_module import EpochBatchSampler
from tests.toy import toy_data, write_folder
from tests.training.test_sheaf_completion import module, trainer


@pytest.mark.parametrize("mode", ["semi-inductive", "fully-inductive"])
def test_a_folder_is_the_same_data(tmp_path, mode):
    folder = InductiveDataModule(
        "folder", root=str(write_folder(tmp_path / "ring", mode)), mode=mode
    )
    expected = toy_data(mode)
    assert torch.equal(folder.data.inference.triples, expected.inference.triples)
    assert torch.equal(folder.data.test, expected.test)
    assert folder.data.mode == mode


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(dataset="folder"), "data.root"),
        (dict(dataset="folder", root="."), "data.mode"),
        (dict(dataset="grail"), "data.name"),
        (dict(dataset="pykeen", name="umls", mode="fully-inductive"), "semi-inductively"),
        (dict(dataset="other", name="x"), "'grail', 'pykeen' or 'folder'"),
    ],
)
def test_missing_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        InductiveDataModule(**arguments)


def test_missing_files_are_named(tmp_path):
    folder = InductiveDataModule("folder", root=str(tmp_path), mode="semi-inductive")
    with pytest.raises(DataError, match=r"train\.txt"):
        folder.setup("fit")


def test_batches_are_triples_with_their_numbers(tmp_path):
    data = InductiveDataModule.from_data(toy_data(), batch_size=16)
    run = trainer(tmp_path, 1)
    run.fit(module(), datamodule=data)
    batches = list(data.train_dataloader())
    triples = torch.cat([batch[0] for batch in batches])
    number = torch.cat([batch[1] for batch in batches])
    assert torch.equal(triples, data.data.train.triples[number])
    assert sorted(number.tolist()) == list(range(data.data.train.num_edges))


def test_batches_follow_seed_and_epoch_alone():
    sampler = EpochBatchSampler(10, 4, seed=1)
    first = [batch.tolist() for batch in sampler]
    assert [len(batch) for batch in first] == [4, 4, 2]
    assert len(sampler) == 3
    assert sorted(i for batch in first for i in batch) == list(range(10))
    sampler.set_epoch(1)
    second = [batch.tolist() for batch in sampler]
    assert second != first
    sampler.set_epoch(0)
    assert [batch.tolist() for batch in sampler] == first
    assert [batch.tolist() for batch in EpochBatchSampler(10, 4, seed=2)] != first
    with pytest.raises(ValueError, match="batch_size"):
        EpochBatchSampler(10, 0, seed=1)


def test_processes_share_every_batch_and_the_last_one_only_if_it_can_be():
    whole = list(EpochBatchSampler(12, 4, seed=1, drop_last=True))
    shares = [list(EpochBatchSampler(12, 4, seed=1, num_replicas=2, rank=r)) for r in (0, 1)]
    assert [sorted(torch.cat(both).tolist()) for both in zip(*shares, strict=True)] == [
        sorted(b.tolist()) for b in whole
    ]
    assert all(len(batch) == 2 for share in shares for batch in share)
    assert len(EpochBatchSampler(13, 4, seed=1, drop_last=True, num_replicas=2)) == 3
    for size, batch_size, options, message in [
        (13, 4, dict(num_replicas=2), "last batch of 1 triples.*drop_last"),
        (12, 3, dict(num_replicas=2), "multiple of 2"),
        (3, 4, dict(drop_last=True), "leaves no batch: there are 3 triples"),
    ]:
        with pytest.raises(ValueError, match=message):
            EpochBatchSampler(size, batch_size, seed=1, **options)


def test_features_of_a_file_come_with_the_data_and_into_the_model(tmp_path):
    lines = ["id,place,kind", *(f"a{i},{i},k{i % 2}" for i in range(10))]
    (tmp_path / "features.csv").write_text("\n".join(lines))
    folder = str(write_folder(tmp_path / "ring"))
    data = InductiveDataModule(
        "folder", root=folder, mode="semi-inductive", features=str(tmp_path / "features.csv")
    )
    assert len(data.data.features) == 10
    run = trainer(tmp_path, 1, callbacks=[BestCheckpoint(), SaveModel()])
    run.fit(module(), datamodule=data)
    stored = load_model_folder(tmp_path / "model")
    assert stored.features.map.count == sum(
        label in data.data.features.labels for label in data.data.train.entities.labels
    )
    assert InductiveDataModule.from_data(data.data).data.features is data.data.features
    rows = run.test(module(), datamodule=data, ckpt_path=None, verbose=False)
    assert rows
