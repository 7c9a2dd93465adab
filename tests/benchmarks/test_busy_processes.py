import subprocess

import pytest
from benchmarks.busy_processes import busy_processes


@pytest.fixture
def started(monkeypatch):
    processes, popen = [], subprocess.Popen

    def start(*arguments, **options):
        processes.append(popen(*arguments, **options))
        return processes[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    return processes


def test_busy_processes_run_meanwhile_and_end_in_any_case(started):
    def fail():
        with busy_processes(2):
            assert [process.poll() for process in started] == [None, None]
            raise ArithmeticError

    with busy_processes(0):
        assert started == []
    with pytest.raises(ArithmeticError):
        fail()
    assert None not in [process.poll() for process in started]


def test_a_measurement_longer_than_the_processes_is_an_error(started):
    def measure():
        with busy_processes(1, most_seconds=0.01):
            started[0].wait()

    with pytest.raises(RuntimeError, match="1 of 1 busy processes ended"):
        measure()
