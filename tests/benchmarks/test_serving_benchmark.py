import threading

import pytest
from benchmarks.cells import read_records
from benchmarks.serving_benchmark import load_service, main, measure, serving_table

from tests.pretrained.models import sheaf_model


def test_the_benchmark_writes_what_the_table_prints(tmp_path, capsys):
    place = tmp_path / "serving.jsonl"
    words = ["--entities", "100", "--clients", "1", "3", "--width", "4", "--seconds", ".2"]
    main([*words, "--runs", "1", "--json", str(place)])
    cases = read_records(place)
    assert capsys.readouterr().out.strip() == serving_table(cases)
    assert [case["clients"] for case in cases] == [1, 3]
    assert all(0 < case["median_ms"] <= case["p99_ms"] for case in cases)
    assert all(case["answers_per_second"] > 0 for case in cases)


def test_answers_that_are_errors_are_not_counted():
    service = load_service()(sheaf_model("transe"))
    threading.Thread(target=service.serve_forever, daemon=True).start()
    with pytest.raises(RuntimeError, match="requests failed, such as with status 400"):
        measure(service, 1, 0.1)
    service.shutdown()
    service.server_close()
