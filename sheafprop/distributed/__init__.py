"""Distributed propagation, training and ranking with the processes of ``torchrun``.

:func:`process_group` initializes a process group and returns the :class:`Ranks` of a process, whose
collectives report which rank failed. A :class:`PartitionedGraph` is the part of a graph that a
process owns; layers take its :class:`PartitionedPlan`.
"""

from sheafprop.distributed.partitioned_graph import PartitionedGraph
from sheafprop.distributed.partitioned_plan import PartitionedPlan
from sheafprop.distributed.process_group import current_ranks, process_group
from sheafprop.distributed.rank_shards import rank_shards, rank_shares, shard_bounds
from sheafprop.distributed.ranks import Ranks
from sheafprop.distributed.roll_call import RankError
from sheafprop.distributed.sharded_table import ShardedTable

__all__ = [
    "PartitionedGraph",
    "PartitionedPlan",
    "RankError",
    "Ranks",
    "ShardedTable",
    "current_ranks",
    "process_group",
    "rank_shards",
    "rank_shares",
    "shard_bounds",
]
