import json

import pytest

from sheafprop.experiments.service_benchmark import main
from sheafprop.report import service_table


@pytest.mark.parametrize("models", [["transe", "rotate", "pairre"], ["transr", "se"]])
def test_the_benchmark_writes_what_the_table_prints(tmp_path, capsys, models):
    place = tmp_path / "new" / "service.json"
    main(
        [
            "--entities",
            "1500",
            "--width",
            "4",
            "--models",
            *models,
            "--json",
            str(place),
            "--busy",
            str(len(models) - 2),
        ]
    )
    result = json.loads(place.read_text())
    assert capsys.readouterr().out.strip() == service_table(result)
    assert [case["model"] for case in result["cases"]] == models
    for case in result["cases"]:
        assert case["busy_processes"] == len(models) - 2
        assert min(value for value in case.values() if not isinstance(value, str | None)) >= 0
        assert case["ratio_bare"] == pytest.approx(case["predict_seconds"] / case["bare_seconds"])
