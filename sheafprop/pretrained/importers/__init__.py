"""Trained models of other libraries, and plain arrays, as models of our own."""

from sheafprop.pretrained.importers.arrays import import_arrays
from sheafprop.pretrained.importers.pyg import import_pyg
from sheafprop.pretrained.importers.pykeen import import_pykeen

__all__ = [
    "import_arrays",
    "import_pyg",
    "import_pykeen",
]
