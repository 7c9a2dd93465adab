"""What the tests of the benchmarks share."""

import pytest
from benchmarks import cells


class Pool:
    """Runs at once, in this process."""

    def __init__(self, *_, **__):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_, **__):
        pass

    shutdown = __exit__

    def submit(self, function, *arguments):
        return Work(lambda: function(*arguments))


class Work:
    """A result that is made when it is asked for."""

    def __init__(self, result):
        self.result = result


@pytest.fixture
def at_once(monkeypatch):
    """Cells run at once and in this process."""
    monkeypatch.setattr(cells, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(cells, "as_completed", list)
