"""Callbacks that keep the best weights, stop in time, and save the model."""

from sheafprop.training.callbacks.best_checkpoint import BestCheckpoint
from sheafprop.training.callbacks.patience import Patience
from sheafprop.training.callbacks.save_model import SaveModel

__all__ = ["BestCheckpoint", "Patience", "SaveModel"]
