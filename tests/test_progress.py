import sys

import pytest
from tqdm import tqdm

from sheafprop import progress
from sheafprop.progress import ProgressLines, progress_bar


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_line_now_and_then_on_standard_error(clock, capsys):
    lines = ProgressLines(1200, desc="training", unit="steps", initial=200, interval=10)
    for second in range(1, 26):
        clock[0] = 100.0 + second
        lines.set_postfix_str("loss 1.5")
        lines.update(20)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "training: 400 of 1,200 (steps), 10 s, about 40 s left, loss 1.5\n"
        "training: 600 of 1,200 (steps), 20 s, about 30 s left, loss 1.5\n"
    )


def test_what_ends_soon_writes_nothing(clock, capsys):
    with ProgressLines(3, desc="rank") as lines:
        for _ in range(3):
            clock[0] += progress.INTERVAL / 4
            lines.update()
    assert capsys.readouterr() == ("", "")


def test_nothing_is_left_at_the_end(clock, capsys):
    lines = ProgressLines(2, desc="rank", interval=1)
    clock[0] += 5
    lines.update(2)
    assert capsys.readouterr().err == "rank: 2 of 2 (it), 5 s\n"


@pytest.mark.parametrize(
    ("terminal", "shown", "kind"),
    [(True, True, tqdm), (False, True, ProgressLines), (False, False, tqdm), (True, False, tqdm)],
)
def test_a_bar_on_a_terminal_and_lines_elsewhere(monkeypatch, terminal, shown, kind):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    with progress_bar(4, desc="rank", shown=shown) as bar:
        assert isinstance(bar, kind)
        assert getattr(bar, "disable", not shown) == (not shown) or kind is ProgressLines
        bar.update()


def test_a_notebook_has_a_bar(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    with progress_bar(4, desc="rank") as bar:
        assert isinstance(bar, tqdm)
