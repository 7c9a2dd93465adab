"""Two processes that share every batch train the weights of one process."""

import pytest
import torch

from tests.forked import ROOT, python
from tests.training.two_processes import BATCH, RUNS, train, uneven_data


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    done = python("-m", "tests.training.two_processes", folder, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return folder, [torch.load(folder / f"results{rank}.pt") for rank in (0, 1)]


@pytest.mark.parametrize("name", RUNS)
def test_weights_and_metrics_are_those_of_one_process(tmp_path, shared, name):
    data = uneven_data()
    assert data.train.num_edges % BATCH  # a batch to be left out
    assert len(data.train_valid) % 2  # an uneven set to share
    single = train(tmp_path, name, 1, "0")
    assert single["steps"] == 2 * (data.train.num_edges // BATCH)
    for two in (process[name] for process in shared[1]):
        assert two["steps"] == single["steps"]
        assert two["count"] == single["count"] == 2 * len(data.train_valid)
        for key, weight in single["weights"].items():
            assert torch.allclose(two["weights"][key], weight, rtol=0, atol=1e-6), key
        assert two["metrics"] == pytest.approx(single["metrics"], abs=1e-6)


def test_only_one_process_writes(shared):
    folder, _ = shared
    assert not (folder / "1").exists()
    for name in RUNS:
        assert (folder / "0" / name / "checkpoints" / "best.ckpt").is_file()
        assert (folder / "0" / name / "model" / "model.safetensors").is_file()
        assert (folder / "0" / name / "metrics.json").is_file()
