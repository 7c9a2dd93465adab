import json

import pytest
import torch
from benchmarks.service_benchmark import main
from benchmarks.tables.benchmark_tables import service_table


@pytest.mark.parametrize("models", [["transe", "rotate", "pairre"], ["transr", "se"]])
def test_the_benchmark_writes_what_the_table_prints(tmp_path, capsys, models):
    place = tmp_path / "new" / "service.json"
    busy = len(models) - 2
    options = ["--entities", "1500", "--width", "4", "--runs", "2", "--busy", str(busy)]
    main([*options, "--models", *models, "--json", str(place)])
    result = json.loads(place.read_text())
    assert capsys.readouterr().out.strip() == service_table(result)
    assert [case["model"] for case in result["cases"]] == models
    for case in result["cases"]:
        numbers = {key: value for key, value in case.items() if isinstance(value, int | float)}
        assert min(numbers.values()) >= 0
        assert (case["threads"], case["runs"]) == (torch.get_num_threads(), 2)
        assert case["busy_processes"] == busy
        for key, (low, high) in case["ranges"].items():
            assert low <= case[key] <= high
        # Of two runs, the median lies between.
        assert case["predict_seconds"] == pytest.approx(sum(case["ranges"]["predict_seconds"]) / 2)
