import subprocess
import sys
from pathlib import Path

import torch

from tests.training.spawned_workers import train


def test_batches_from_spawned_workers_are_those_of_the_process_itself(tmp_path):
    words = [sys.executable, "-m", "tests.training.spawned_workers", str(tmp_path)]
    root = Path(__file__).parents[2]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert torch.equal(torch.load(tmp_path / "weights.pt"), train(tmp_path / "own", 0))
