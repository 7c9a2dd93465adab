"""Lightning modules and callbacks: train transductively, propagate, rank.

:class:`SheafCompletion` trains on the graphs of :class:`InductiveDataModule`. ``batch_loss``
computes the loss of a batch, ``optimization`` builds optimizers and schedules, ``checkpoint_state``
checks that a checkpoint fits the run, and ``sharded_training`` shards the entity table among
processes. ``callbacks`` selects the best epoch (``choose_monitor``) and saves the model;
``budget`` derives the number of training steps from the size of the graph.

Test triples are ranked only by ``test_step``. Before that, they are used only to filter known
triples from rankings, including those of validation. ``tests/inductive`` tests that they select
nothing (``test_propagation_search.py``) and that they are not facts
(``test_inductive_propagation.py``).
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
