"""The subpackage ``service`` of 0.1.0: see ``inductive`` and ``pretrained``."""

from typing import Any

from sheafprop.renamed import find_renamed


def __getattr__(name: str) -> Any:
    return find_renamed(__name__, name)
