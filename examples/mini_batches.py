"""
Mini-batches
============

Trains relation vectors on mini-batches with the same node vectors as on the full graph. A batch of
:func:`~sheafprop.k_hop_batch` contains all edges, in both directions, of every node whose vector
changes, so the result is exact.
"""

import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader
from torch_geometric.data import Data

from sheafprop import IdentitySheaf, SheafPropagation, TrainableSheaf, k_hop_batch

# %%
# Points on a grid. Relation 0 is one step east, relation 1 one step north; half of the edges are
# observed, and the positions of a third of the points are known.

torch.manual_seed(0)
side = 40
grid = torch.arange(side * side).view(side, side)
east = torch.stack([grid[:, :-1].flatten(), grid[:, 1:].flatten()])
north = torch.stack([grid[:-1].flatten(), grid[1:].flatten()])
edge_index = torch.cat([east, north], dim=1)
edge_type = torch.cat([torch.zeros(east.shape[1]), torch.ones(north.shape[1])]).long()
kept = torch.rand(edge_type.numel()) < 0.5
edge_index, edge_type = edge_index[:, kept], edge_type[kept]
position = torch.stack([grid % side, grid // side], dim=-1).view(-1, 2).float()
known = torch.rand(side * side) < 1 / 3
x = torch.where(known[:, None], position, position + torch.randn_like(position))
data = Data(x=x, edge_index=edge_index, edge_type=edge_type, boundary_mask=known, y=position)

# %%
# A module with the translations as parameters, initialized to zero.


class Locator(torch.nn.Module):
    def __init__(self, num_iterations=3):
        super().__init__()
        self.sheaf = TrainableSheaf(IdentitySheaf(torch.zeros(2, 2)))
        self.propagate = SheafPropagation(num_iterations)

    def forward(self, data):
        graph = data.x, data.edge_index, data.edge_type, self.sheaf()
        return self.propagate(*graph, boundary_mask=data.boundary_mask)


model = Locator()
nodes = torch.arange(data.num_nodes)
loader = DataLoader(nodes, 256, shuffle=True, collate_fn=lambda seeds: k_hop_batch(data, seeds, 3))

# %%
# The first ``batch_size`` rows of a batch, its seed nodes, have the vectors of the full graph.

batch = next(iter(loader))
seeds = batch.n_id[: batch.batch_size]
gap = (model(batch)[: batch.batch_size] - model(data)[seeds]).abs().max()
print(f"{batch.batch_size} seeds, {batch.num_nodes} nodes in the batch, gap {gap:.0e}")

# %%
# The translations are learned: one step east, one step north.

optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
print(f"before: {mse_loss(model(data), data.y):.3f}")
for _ in range(10):
    for batch in loader:
        optimizer.zero_grad()
        mse_loss(model(batch)[: batch.batch_size], batch.y[: batch.batch_size]).backward()
        optimizer.step()
print(f"after:  {mse_loss(model(data), data.y):.3f}")
print("translations:", model.sheaf().translation.detach().round(decimals=1).flatten().numpy())
