import runpy
import sys

import pytest

from sheafprop.version import __version__


def test_the_package_runs_as_the_command(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["sheafprop", "--version"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_module("sheafprop", run_name="__main__")
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"sheafprop {__version__}\n"
