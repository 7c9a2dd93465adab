import torch

from tests.forked import ROOT, python
from tests.training.spawned_workers import train


def test_batches_from_spawned_workers_are_those_of_the_process_itself(tmp_path):
    done = python("-m", "tests.training.spawned_workers", tmp_path, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert torch.equal(torch.load(tmp_path / "weights.pt"), train(tmp_path / "own", 0))
