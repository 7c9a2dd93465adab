"""Lightning modules and callbacks: train transductively, propagate, rank."""

from sheafprop.training.callbacks import BestCheckpoint, Patience, SaveModel
from sheafprop.training.inductive_data_module import InductiveDataModule
from sheafprop.training.sheaf_completion import SheafCompletion

__all__ = ["BestCheckpoint", "InductiveDataModule", "Patience", "SaveModel", "SheafCompletion"]
