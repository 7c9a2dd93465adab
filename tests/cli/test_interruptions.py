"""Commands that are killed or refused leave their files as before or complete."""

from tests.forked import ROOT, python


def test_killed_and_refused_commands_leave_nothing_half_done():
    done = python(ROOT / "scripts" / "check_interruptions.py", "--kills", "2")
    assert done.returncode == 0, done.stderr[-3000:]
    for name in ("fit", "resume", "test", "tune", "extend", "import"):
        assert f"\n{name}: 2 moments" in f"\n{done.stdout}"
    assert "refused: 2 times each" in done.stdout
