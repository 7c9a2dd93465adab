"""Which version of the code made a result."""

import subprocess
from pathlib import Path


def current_commit() -> str | None:
    """The short hash of the commit that is checked out, or None outside a repository."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
