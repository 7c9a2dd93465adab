"""Data sets: the GraIL benchmark, small graphs of PyKEEN, and folders of files."""

from sheafprop.data.datasets.build import build_dataset
from sheafprop.data.datasets.folder import FolderDataset
from sheafprop.data.datasets.grail import GraILDataset
from sheafprop.data.datasets.inductive_dataset import InductiveDataset
from sheafprop.data.datasets.pykeen import PykeenDataset

__all__ = ["FolderDataset", "GraILDataset", "InductiveDataset", "PykeenDataset", "build_dataset"]
