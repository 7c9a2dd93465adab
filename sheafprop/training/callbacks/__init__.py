"""Callbacks that work with and without validation triples."""

from sheafprop.training.callbacks.best_checkpoint import BestCheckpoint
from sheafprop.training.callbacks.patience import Patience

__all__ = ["BestCheckpoint", "Patience"]
