"""Trained models of other libraries, and plain arrays, as models of our own."""

from sheafprop.pretrained.importers.arrays import import_arrays
from sheafprop.pretrained.importers.dglke import import_dglke
from sheafprop.pretrained.importers.graphstorm import import_graphstorm
from sheafprop.pretrained.importers.pbg import import_pbg
from sheafprop.pretrained.importers.pyg import import_pyg
from sheafprop.pretrained.importers.pykeen import import_pykeen

__all__ = [
    "import_arrays",
    "import_dglke",
    "import_graphstorm",
    "import_pbg",
    "import_pyg",
    "import_pykeen",
]
