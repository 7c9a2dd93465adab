"""
Propagation by several processes
================================

Each process owns some entities of the graph and exchanges vectors with the others before each step.

Run it with two processes::

    torchrun --standalone --nproc-per-node 2 examples/two_ranks.py

With ``python``, the same script is one process with the whole graph.
"""

import torch

from sheafprop import IdentitySheaf, SheafPropagation
from sheafprop.data.partition import hash_partition, metis_partition, partition_costs
from sheafprop.distributed import PartitionedGraph, PartitionedPlan, process_group

# %%
# Streets of houses: adjacent houses have distance one, and some streets are connected.

streets, houses = 20, 50
house = torch.arange(streets * houses).view(streets, houses)
along = torch.stack([house[:, :-1].flatten(), house[:, 1:].flatten()])
across = torch.stack([house[:-1, ::10].flatten(), house[1:, ::10].flatten()])
edge_index = torch.cat([along, across], dim=1)
edge_type = torch.cat([torch.zeros(along.shape[1]), torch.ones(across.shape[1])]).long()
sheaf = IdentitySheaf(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))

known = torch.zeros(house.numel(), dtype=torch.bool)
known[::3] = True
place = torch.stack([house % houses, house // houses], dim=-1).view(-1, 2).float()
x = torch.where(known.unsqueeze(1), place, 0.0)
layer = SheafPropagation(num_iterations=100)

# %%
# Every process runs this code. METIS keeps neighbors together, so that few vectors are sent.

with process_group() as ranks:
    parts = metis_partition(edge_index.numpy(), house.numel(), ranks.size)
    graph = PartitionedGraph.of_triples(
        ranks, edge_index, edge_type, parts.assignment, boundary_mask=known
    )
    plan = PartitionedPlan(graph, sheaf)
    mine = layer(x[graph.owned], *graph.edges, sheaf, plan=plan)

    # The vectors equal those of one process bit for bit.
    whole = layer(x, edge_index, edge_type, sheaf, boundary_mask=known)
    equal = bool((mine == whole[graph.owned]).all())
    print(f"{ranks}: {len(graph.owned)} entities, {graph.num_halo} of others, equal: {equal}")
    if ranks.is_first:
        for name, found in (("METIS", parts), ("hash", hash_partition(house.numel(), ranks.size))):
            costs = partition_costs(edge_index.numpy(), found)
            print(f"{name}: cut {costs.cut:.1%} of the edges, {costs.rows_sent:.2f} rows an entity")
