import json

import pytest
from benchmarks.reading_benchmark import main


@pytest.mark.parametrize("ending", [".nt", ".nt.gz"])
def test_a_small_file_is_measured(capsys, ending):
    main(["--lines", "1000", "--ending", ending])
    record = json.loads(capsys.readouterr().out)
    assert (record["lines"], record["triples"]) == (1000, 900)
    assert record["file"] == f"facts{ending}"
    assert 0 < record["peak_bytes"] < 1 << 28
