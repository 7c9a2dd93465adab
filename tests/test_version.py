import re

import sheafprop
from sheafprop.version import __version__


def test_the_version_is_a_release_and_the_same_everywhere(capsys):
    from sheafprop.cli.main import main

    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+|(a|b|rc)\d+)?", __version__)
    assert sheafprop.__version__ == __version__
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"sheafprop {__version__}\n"
