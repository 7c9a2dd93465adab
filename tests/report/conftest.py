import pytest
from matplotlib.figure import Figure


@pytest.fixture
def drawn(monkeypatch):
    """The figures as they were when they were saved."""
    figures = []
    save = Figure.savefig

    def keep(self, *args, **kwargs):
        figures.append(self)
        return save(self, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures
