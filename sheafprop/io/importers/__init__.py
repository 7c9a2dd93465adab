"""Trained models of other libraries, and plain arrays, as models of our own."""

from sheafprop.io.importers.arrays import import_arrays
from sheafprop.io.importers.pyg import import_pyg
from sheafprop.io.importers.pykeen import import_pykeen

__all__ = ["import_arrays", "import_pyg", "import_pykeen"]
