import subprocess

import pytest
import torch
from benchmarks.cells import read_records
from benchmarks.service_benchmark import busy_processes, main
from benchmarks.tables.benchmark_tables import service_table


@pytest.mark.parametrize("models", [["transe", "rotate", "pairre"], ["transr", "se"]])
def test_the_benchmark_writes_what_the_table_prints(tmp_path, capsys, models):
    place = tmp_path / "new" / "service.jsonl"
    busy = len(models) - 2
    options = ["--entities", "1500", "--width", "4", "--runs", "2", "--busy", str(busy)]
    main([*options, "--models", *models, "--json", str(place)])
    cases = read_records(place)
    assert capsys.readouterr().out.strip() == service_table(cases)
    assert [case["model"] for case in cases] == models
    for case in cases:
        numbers = {key: value for key, value in case.items() if isinstance(value, int | float)}
        assert min(numbers.values()) >= 0
        assert (case["threads"], case["runs"]) == (torch.get_num_threads(), 2)
        assert case["busy_processes"] == busy
        for key, (low, high) in case["ranges"].items():
            assert low <= case[key] <= high
        # Of two runs, the median lies between.
        assert case["predict_seconds"] == pytest.approx(sum(case["ranges"]["predict_seconds"]) / 2)


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
