"""Processes that share the entity table train the weights of one process that has all of it."""

import warnings
from functools import partial

import pytest
import torch

from sheafprop.data import InductiveData
from sheafprop.distributed import ShardedTable
from sheafprop.pretrained.model_folder import load_model_folder
from sheafprop.training import BestCheckpoint, InductiveDataModule, SaveModel, ShardedTableStrategy
from tests.distributed.rank_pool import pool
from tests.toy import toy_data
from tests.training.test_sheaf_completion import module, trainer

BATCH = 8
RUNS = {
    "rows": dict(kge="rotate", optimizer="rowwise_adagrad"),
    "adam": dict(kge="transe", optimizer="adam", lr_schedule="cosine", lr_epochs=4),
    "clipped": dict(kge="rotate", optimizer="sgd", lr=0.5),
}


def data() -> InductiveData:
    return toy_data()


def train(folder, epochs, name, size=1, resume=None, **changes):
    """Trains by one process, or as one of some; what this process has seen."""
    options = RUNS[name] | dict(loss="nssa", num_negatives=4, table="sharded") | changes
    model = module(**options)
    several = dict(devices=size, strategy=ShardedTableStrategy()) if size > 1 else {}
    run = trainer(
        folder,
        epochs,
        callbacks=[SaveModel(), BestCheckpoint()],
        gradient_clip_val=0.05 if name == "clipped" else None,
        **several,
    )
    batches = InductiveDataModule.from_data(data(), batch_size=BATCH, drop_last=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.fit(model, datamodule=batches, ckpt_path=resume)
    metrics = {key: float(value) for key, value in run.callback_metrics.items()}
    return {name: value.clone() for name, value in model.state_dict().items()}, metrics


def _train(ranks, folder, epochs, name, resume=None, **changes):
    seen = []
    original = ShardedTable.forward

    def forward(self, ids):
        seen.append(len(self.weight))
        return original(self, ids)

    ShardedTable.forward = forward
    try:
        weights, metrics = train(folder, epochs, name, ranks.size, resume, **changes)
    finally:
        ShardedTable.forward = original
    return weights, metrics, set(seen)


def close(found, want):
    assert found.keys() == want.keys()
    for key, value in want.items():
        assert torch.allclose(found[key], value, rtol=0, atol=1e-6), key


@pytest.mark.parametrize("name", RUNS)
def test_weights_metrics_and_model_are_those_of_one_process(tmp_path, name):
    one, metrics = train(tmp_path / "one", 2, name)
    for weights, seen, rows in pool(2).run(_train, tmp_path / "two", 2, name):
        close(weights, one)
        assert seen == pytest.approx(metrics, abs=1e-5)
        assert rows == {9}
    stored = [load_model_folder(tmp_path / part / "model").model for part in ("one", "two")]
    close(stored[1].state_dict(), stored[0].state_dict())
    # The best checkpoint is a whole one, and nothing is left but the rows of the last.
    best = torch.load(tmp_path / "two" / "checkpoints" / "best.ckpt", weights_only=True)
    one_best = torch.load(tmp_path / "one" / "checkpoints" / "best.ckpt", weights_only=True)
    close(best["state_dict"], one_best["state_dict"])
    names = sorted(path.name for path in (tmp_path / "two" / "checkpoints").iterdir())
    assert names[:2] == ["best.ckpt", "last.ckpt"]
    assert len(names) == 3
    assert names[2].startswith("rows-")
    assert [p.name for p in (tmp_path / "two").iterdir() if p.name.startswith(".")] == []


@pytest.mark.parametrize("name", ["rows", "adam"])
def test_another_number_of_processes_goes_on(tmp_path, name):
    one, _ = train(tmp_path / "one", 4, name)
    pool(2).run(_train, tmp_path / "two", 2, name)
    last = tmp_path / "two" / "checkpoints" / "last.ckpt"
    found = pool(4).run(_train, tmp_path / "four", 4, name, last)
    for weights, _, _ in found:
        close(weights, one)
    assert [rows for _, _, rows in found] == [{5}, {5}, {5}, {3}]
    weights, _ = train(tmp_path / "again", 4, name, resume=last)
    close(weights, one)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"table": "shared"}, "table"),
        ({"sparse": False}, "'sparse' is 'auto' or true"),
        ({"loss": "cross_entropy"}, "num_candidates"),
        ({"weight_decay": 0.1}, "weight decay"),
    ],
)
def test_options_that_need_the_whole_table_are_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        train(tmp_path, 1, "rows", **changes)


def _refuse(ranks, folder, resume, **changes):
    try:
        train(folder, 4, "rows", ranks.size, resume, **changes)
    except ValueError as error:
        return str(error)


def test_a_dense_run_cannot_go_on_with_a_shared_table(tmp_path):
    train(tmp_path / "one", 1, "rows", table="whole")
    last = tmp_path / "one" / "checkpoints" / "last.ckpt"
    for message in pool(2).run(_refuse, tmp_path / "two", last):
        assert "trained with a whole table" in message


def test_a_sparse_run_goes_on_with_a_shared_table(tmp_path):
    one, _ = train(tmp_path / "one", 4, "rows")
    train(tmp_path / "half", 2, "rows", table="whole", sparse=True)
    last = tmp_path / "half" / "checkpoints" / "last.ckpt"
    going_on = partial(_train, sparse=True)
    for weights, _, _ in pool(2).run(going_on, tmp_path / "two", 4, "rows", last):
        close(weights, one)


def test_a_model_of_nothing_but_its_table_does_not_share_it(tmp_path):
    first, _ = pool(2).run(partial(_refuse, kge="um"), tmp_path, None)
    assert "UM has nothing else" in first
