import json

import pytest

from sheafprop.errors import FormatError
from sheafprop.report.group import group_report
from sheafprop.report.tables import terminal_table
from tests.report.records import record


def store(group, name, value):
    folder = group / name
    folder.mkdir(parents=True)
    text = value if isinstance(value, str | bytes) else json.dumps(value)
    path = folder / "metrics.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_reports_on_all_runs(tmp_path):
    runs = [record("rotate"), record("transe", "TransE", value=0.5)]
    for run in runs:
        store(tmp_path, run["run"]["name"], run)
    (tmp_path / "unfinished").mkdir()
    assert group_report(tmp_path) == terminal_table(runs)
    assert json.loads((tmp_path / "metrics.json").read_text("utf-8")) == runs
    text = (tmp_path / "report.md").read_text("utf-8")
    assert text.startswith(f"# {tmp_path.name}: 2 runs")
    assert (tmp_path / "hits_by_iteration.png").exists()
    before = text
    group_report(tmp_path)  # its own files are not taken for a run
    assert (tmp_path / "report.md").read_text("utf-8") == before


def test_the_folder_names_a_run_without_name(tmp_path):
    run = record()
    del run["run"]["name"]
    store(tmp_path, "größe", run)
    group_report(tmp_path)
    assert "| größe |" in (tmp_path / "report.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not valid JSON"),
        ('{"format": 1, "run"', "not valid JSON"),
        (b'{"format": 1, "run": "\xff"}', "not valid JSON"),
        ('{"format": 1, "run": {}, "peak_bytes": NaN}', "NaN is never a score"),
        ("3", "expected an object"),
        ('{"run": {}}', "expected format 1"),
        ('{"format": 2, "run": {}}', r"\(got 2\)"),
        ('{"format": 1}', "'run' is missing"),
        ('{"format": 1, "run": []}', "expected dict for 'run'"),
        ('{"format": 1, "run": {}, "test": [{"method": "a"}]}', "entry 0 of 'test'"),
        (
            '{"format": 1, "run": {}, "test": [{"method": "", "protocol": "", "metrics": 1}]}',
            "'metrics' in entry 0",
        ),
        ('{"format": 1, "run": {}, "selection": {"curve": [1]}}', "'curve'"),
    ],
)
def test_malformed_record_is_named(tmp_path, content, message):
    store(tmp_path, "good", record("good"))
    path = store(tmp_path, "odd", content)
    with pytest.raises(FormatError, match=message) as error:
        group_report(tmp_path)
    assert str(path) in str(error.value)
    assert not (tmp_path / "report.md").exists()


def test_no_run(tmp_path):
    with pytest.raises(FormatError, match="holds no run"):
        group_report(tmp_path / "nowhere")


def test_a_group_inside_a_group_is_not_a_run(tmp_path):
    outer = tmp_path / "runs"
    store(outer, "one", record("one"))
    store(outer / "inner", "two", record("two"))
    group_report(outer / "inner")
    group_report(outer)
    assert len(json.loads((outer / "metrics.json").read_text("utf-8"))) == 1
