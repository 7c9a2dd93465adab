import pytest
import torch

from sheafprop.errors import DataError
from sheafprop.training import InductiveDataModule
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
