"""Commands that are killed or refused leave their files as before or complete."""

import subprocess
import sys
from pathlib import Path


def test_killed_and_refused_commands_leave_nothing_half_done():
    script = Path(__file__).parents[2] / "scripts" / "check_interruptions.py"
    words = [sys.executable, str(script), "--kills", "2"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for name in ("fit", "resume", "test", "tune", "extend", "import"):
        assert f"\n{name}: 2 moments" in f"\n{done.stdout}"
    assert "refused: 2 times each" in done.stdout
