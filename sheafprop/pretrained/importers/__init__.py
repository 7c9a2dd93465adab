"""Importers of trained models of other libraries and of plain arrays."""

from sheafprop.pretrained.importers.ampligraph import import_ampligraph
from sheafprop.pretrained.importers.arrays import import_arrays
from sheafprop.pretrained.importers.dglke import import_dglke
from sheafprop.pretrained.importers.graphstorm import import_graphstorm
from sheafprop.pretrained.importers.libkge import import_libkge
from sheafprop.pretrained.importers.openke import import_openke
from sheafprop.pretrained.importers.pbg import import_pbg
from sheafprop.pretrained.importers.pyg import import_pyg
from sheafprop.pretrained.importers.pykeen import import_pykeen

__all__ = [
    "import_ampligraph",
    "import_arrays",
    "import_dglke",
    "import_graphstorm",
    "import_libkge",
    "import_openke",
    "import_pbg",
    "import_pyg",
    "import_pykeen",
]
