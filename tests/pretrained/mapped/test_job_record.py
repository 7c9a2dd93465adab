import os
import time
from types import SimpleNamespace

import pytest

from sheafprop.distributed import RankError, Ranks
from sheafprop.errors import DataError
from sheafprop.pretrained.mapped.job_record import (
    JobRecord,
    checksum,
    describe_input,
    is_unchanged,
    read_record,
    run_unhurried,
    work_folder,
)
from tests.distributed.rank_pool import pool


def test_what_is_no_record_is_none(tmp_path):
    for content in ("", "{", "[1]"):
        (tmp_path / "x.json").write_text(content)
        assert read_record(tmp_path / "x.json") is None
    assert read_record(tmp_path / "missing.json") is None
    (tmp_path / "x.json").write_text('{"a": 1}')
    assert read_record(tmp_path / "x.json") == {"a": 1}


def test_changes_of_a_file_are_noticed(tmp_path):
    path = tmp_path / "x.tsv"
    path.write_text("abc")
    recorded = describe_input(path)
    assert is_unchanged(path, recorded)
    os.utime(path, ns=(1, 1))
    assert is_unchanged(path, recorded)  # touched, with the same content
    path.write_text("abd")
    os.utime(path, ns=(2, 2))
    assert not is_unchanged(path, recorded)
    path.write_text("abcd")
    os.utime(path, ns=(recorded["mtime"], recorded["mtime"]))
    assert not is_unchanged(path, recorded)
    path.unlink()
    assert not is_unchanged(path, recorded)
    with pytest.raises(DataError, match="cannot be read"):
        describe_input(path)


def test_checksum_tells_contents_apart(tmp_path):
    path = tmp_path / "x.bin"
    path.write_bytes(b"a" * 5_000_000)
    first = checksum(path)
    path.write_bytes(b"a" * 4_999_999 + b"b")
    assert checksum(path) != first


def test_a_folder_of_work_is_without_what_a_killed_process_was_writing(tmp_path):
    folder = tmp_path / "x" / ".v.partial"
    for name in ("job.json", "rank-0/job.json", "rows/start.bin", ".sheafprop-ab.tmp/vectors.npy"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    kept = {"job.json", "rank-0", "rows"}
    for restart, left in ((False, kept), (True, set())):
        with work_folder(folder, Ranks.alone(), restart=restart):
            assert {path.name for path in folder.iterdir()} == left


def test_a_record_is_taken_up_by_the_same_work_alone(tmp_path):
    path = tmp_path / "x.tsv"
    path.write_text("abc")
    wanted = {"settings": {"iterations": 3}, "facts": ["x.tsv"]}
    first = JobRecord.take_up(tmp_path, wanted, [path])
    assert first.is_new
    first.save()
    other = {**wanted, "settings": {"iterations": 4}}
    # Nothing large has begun: other settings do, other facts begin anew.
    assert not JobRecord.take_up(tmp_path, other, [path]).is_new
    assert JobRecord.take_up(tmp_path, {**wanted, "facts": []}, [path]).is_new
    first.content["blocks"] = []
    first.save()
    assert not JobRecord.take_up(tmp_path, wanted, [path]).is_new
    with pytest.raises(DataError, match="another 'settings'"):
        JobRecord.take_up(tmp_path, other, [path])
    path.write_text("abcd")
    with pytest.raises(DataError, match="was changed since"):
        JobRecord.take_up(tmp_path, wanted, [path])


def work_on(ranks, folder, working, failing):
    """The results, or the error; ``working`` ranks return 10 and more, ``failing`` ones raise."""
    order = []

    def work():
        time.sleep(0.05 * ranks.rank)
        order.append("worked")
        if ranks.rank in failing:
            raise ValueError("the disk is full")
        return 10 + ranks.rank

    together = ranks.run_together

    def run_together(function):
        # The messages come once all marks are there, so that none has to wait for them.
        assert len(list(folder.glob("done-*.json"))) == ranks.size
        return together(function)

    ranks.run_together = run_together
    try:
        found = run_unhurried(ranks, folder, work if ranks.rank in working else None)
    except Exception as error:
        return type(error).__name__, str(error), order
    finally:
        del ranks.run_together
    return found, order


def test_all_ranks_get_the_results_once_all_are_done(tmp_path):
    folder = tmp_path / "new"
    found = pool(2).run(work_on, folder, [0, 1], [])
    assert found == [([10, 11], ["worked"])] * 2
    assert pool(2).run(work_on, folder, [0], []) == [([10, None], ["worked"]), ([10, None], [])]
    assert list(folder.iterdir()) == []


def test_an_error_ends_all_of_them(tmp_path):
    here, there = pool(2).run(work_on, tmp_path, [0, 1], [0])
    assert here[:2] == ("ValueError", "the disk is full")
    assert there[0] == "RankError"
    assert "rank 0 of 2" in there[1]
    assert "the disk is full" in there[1]


def test_a_rank_that_hears_of_a_lost_one_does_not_wait_for_its_mark(tmp_path):
    def lost():
        raise RankError("rank 1 of 2 ended")

    two = SimpleNamespace(size=2, rank=0, gather=lambda value: [value, value])
    with pytest.raises(RankError, match="rank 1 of 2 ended"):
        run_unhurried(two, tmp_path, lost)
    assert list(tmp_path.iterdir()) == []


def test_one_process_waits_for_nobody(tmp_path):
    assert run_unhurried(Ranks.alone(), tmp_path / "none", lambda: 3) == [3]
    with pytest.raises(ZeroDivisionError):
        run_unhurried(Ranks.alone(), tmp_path / "none", lambda: 1 // 0)
    assert not (tmp_path / "none").exists()
