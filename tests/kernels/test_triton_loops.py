"""The Triton kernels where there is no CUDA device: interpreted, in a process of their own."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_interpreted_kernels_equal_the_written_sums_and_the_gradients_of_torch(tmp_path):
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "tests/kernels/test_numba_loops.py"]
    # Single precision: what the kernels are for.
    command += ["-k", "triton and (float32 or complex64)", f"--junitxml={report}"]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist"]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]
    cases = list(ElementTree.parse(report).iter("testcase"))
    run = [case.get("name") for case in cases if case.find("skipped") is None]
    for name in ("messages_equal", "combination", "gradients_equal", "nothing_to_add"):
        assert sum(name in case for case in run) >= 4, run
