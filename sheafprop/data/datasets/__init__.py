"""Data sets: the GraIL benchmark, small graphs that come with PyKEEN, the user's own folder."""

from sheafprop.data.datasets.build import build_dataset
from sheafprop.data.datasets.folder import FolderDataset
from sheafprop.data.datasets.grail import GraILDataset
from sheafprop.data.datasets.inductive_dataset import InductiveDataset
from sheafprop.data.datasets.pykeen import PykeenDataset

__all__ = ["FolderDataset", "GraILDataset", "InductiveDataset", "PykeenDataset", "build_dataset"]
