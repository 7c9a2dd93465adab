"""Work shared among processes: the processes of ``torchrun``, and what they exchange.

:func:`process_group` joins them and gives a process its :class:`Ranks`, whose collectives name the
rank that was lost. A :class:`PartitionedGraph` is the share of a graph that one of them works on,
and its :class:`PartitionedPlan` is what the layers take.
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
