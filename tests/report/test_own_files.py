import json

import pytest

from sheafprop.errors import DataError
from sheafprop.report.group import group_report
from sheafprop.report.own_files import is_own, own_path
from sheafprop.report.run_report import write_report
from tests.report.records import record

FOREIGN = {
    "report.md": "# Quarterly report\n\nOf 2026.\n\n## Results\n\nGood.\n",
    "metrics.json": '{"accuracy": 0.9, "run": "baseline"}\n',
    "hits_by_iteration.png": "\x89PNG drawn by hand",
}


def group_of(folder):
    run = record("first")
    (folder / "first").mkdir()
    (folder / "first" / "metrics.json").write_text(json.dumps(run))
    return folder


@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_of_the_user_stays_and_ours_stands_beside(tmp_path, name):
    group = group_of(tmp_path)
    (group / name).write_text(FOREIGN[name])
    stem, _, suffix = name.partition(".")
    for _ in range(2):  # ours is replaced, as ever
        with pytest.warns(UserWarning, match=f"{name} was not written by sheafprop"):
            group_report(group)
        assert (group / name).read_text() == FOREIGN[name]
        assert is_own(group / f"{stem}.sheafprop.{suffix}")
    assert sum(path.is_file() for path in group.iterdir()) == 4
    if suffix == "png":
        assert f"]({stem}.sheafprop.png)" in (group / "report.md").read_text()


@pytest.mark.parametrize(
    "content", ["[]", "{}", "3", "[1]", '{"format": 1}', '{"format": "1", "run": {}}', "x", ""]
)
def test_json_that_is_no_record_is_not_ours(tmp_path, content):
    path = tmp_path / "metrics.json"
    path.write_text(content)
    assert not is_own(path)
    path.write_text(json.dumps([record()]))
    assert is_own(path)


def test_what_a_user_adds_to_a_report_stays(tmp_path):
    path = write_report(tmp_path, [record()])
    assert is_own(path)
    assert write_report(tmp_path, [record()]) == path
    picture = (tmp_path / "hits_by_iteration.png").read_bytes()
    edited = path.read_text() + "\nMy notes.\n"
    path.write_text(edited)
    with pytest.warns(UserWarning, match=r"see report\.sheafprop\.md"):
        assert write_report(tmp_path, [record()]).name == "report.sheafprop.md"
    assert path.read_text() == edited
    assert (tmp_path / "hits_by_iteration.png").read_bytes() == picture


def test_reports_and_figures_of_the_first_version_are_replaced(tmp_path):
    path = write_report(tmp_path, [record()])
    new = path.read_text()
    path.write_text(new[: new.rindex("\n<!-- written by sheafprop")])
    picture = tmp_path / "hits_by_iteration.png"
    old = b"Matplotlib version3.10.0, https://matplotlib.org/"
    picture.write_bytes(picture.read_bytes().replace(b"sheafprop", old))
    assert write_report(tmp_path, [record()]) == path
    assert path.read_text() == new
    assert {file.name for file in tmp_path.iterdir()} == {path.name, picture.name}


def test_two_files_of_the_user_are_an_error(tmp_path):
    for name in ("report.md", "report.sheafprop.md"):
        (tmp_path / name).write_text(FOREIGN["report.md"])
    with pytest.raises(DataError, match=r"neither .*report\.md nor .*report\.sheafprop\.md"):
        own_path(tmp_path, "report.md")


def test_the_record_of_a_run_may_stand_beside_a_file_of_the_user(tmp_path):
    group = group_of(tmp_path)
    run = group / "first"
    (run / "metrics.json").rename(run / "metrics.sheafprop.json")
    (run / "metrics.json").write_text('{"mine": 1}')
    (group / "notes").mkdir()
    (group / "notes" / "metrics.json").write_text('{"mine": 2}')
    group_report(group)
    assert json.loads((group / "metrics.json").read_text()) == [record("first")]
