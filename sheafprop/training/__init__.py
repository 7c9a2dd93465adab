"""Lightning modules and callbacks: train transductively, propagate, rank.

:class:`SheafCompletion` trains on the graphs of :class:`InductiveDataModule`; ``batch_loss`` has
the loss of a batch, ``optimization`` the optimizers and schedules,
``checkpoint_state`` what a checkpoint must agree with, ``sharded_training`` the table that
processes share. ``callbacks`` says which epoch is the best
(``choose_monitor``) and saves the model after the last one. ``budget`` has the length of a training
that follows from the size of the graph.

Test triples are ranked by ``test_step`` alone. Before, they are read for one purpose: every
ranking, also those of validation, filters all known triples. That they select nothing is tested in
``tests/inductive/test_propagation_search.py``, that they are not facts in
``test_inductive_propagation.py`` beside it.
"""

from sheafprop.training.budget import StepBudget, count_candidates, count_training_steps
from sheafprop.training.callbacks import BestCheckpoint, Patience, SaveModel
from sheafprop.training.inductive_data_module import InductiveDataModule
from sheafprop.training.sharded_training import ShardedTableStrategy
from sheafprop.training.sheaf_completion import SheafCompletion

__all__ = [
    "BestCheckpoint",
    "InductiveDataModule",
    "Patience",
    "SaveModel",
    "ShardedTableStrategy",
    "SheafCompletion",
    "StepBudget",
    "count_candidates",
    "count_training_steps",
]
