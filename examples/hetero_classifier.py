"""
Node classification in a heterogeneous graph
============================================

A :class:`~sheafprop.SheafPropagation` layer between the two linear layers of a node classifier.
The graph is a :class:`~torch_geometric.data.HeteroData` of papers, authors and venues; only
papers have features, and these are noisy. The maps of the relations are trained with the rest of
the network.
"""

import torch
from torch.nn import Linear, Module
from torch.nn.functional import cross_entropy, one_hot
from torch_geometric.data import HeteroData

from sheafprop import DiagonalSheaf, HeteroGraph, SheafPropagation, TrainableSheaf

# %%
# Papers have one of four topics. Most papers of an author or of a venue have the same topic.

torch.manual_seed(0)
num_papers, num_authors, num_venues, num_topics = 300, 80, 12, 4
topic = torch.randint(num_topics, (num_papers,))


def neighbours(num_others, each):
    """Samples nodes for every paper, most of which have its topic."""
    others = torch.randint(num_others // num_topics, (num_papers, each)) * num_topics
    off_topic = torch.rand(num_papers, each) < 0.25
    drawn = torch.where(off_topic, torch.randint(num_topics, (num_papers, each)), topic[:, None])
    papers = torch.arange(num_papers).repeat_interleave(each)
    return papers, (others + drawn).flatten()


data = HeteroData()
data["paper"].x = one_hot(topic, num_topics) + 1.2 * torch.randn(num_papers, num_topics)
data["author"].num_nodes, data["venue"].num_nodes = num_authors, num_venues
papers, authors = neighbours(num_authors, 3)
data["author", "writes", "paper"].edge_index = torch.stack([authors, papers])
data["paper", "appears_in", "venue"].edge_index = torch.stack(neighbours(num_venues, 1))

# %%
# ``HeteroGraph`` converts the data to the inputs of the layer: node features, edges and relation
# ids of one graph.

graph = HeteroGraph.from_hetero(data)
print(graph)


class Classifier(Module):
    def __init__(self, num_iterations, width=16):
        super().__init__()
        ones = torch.ones(graph.num_relations, width)
        self.embed = Linear(num_topics, width)
        self.sheaf = TrainableSheaf(DiagonalSheaf(ones, ones.clone()))
        self.propagate = SheafPropagation(num_iterations)
        self.classify = Linear(width, num_topics)

    def forward(self, graph):
        x = self.propagate(self.embed(graph.x), *graph.edges, self.sheaf())
        return graph.split(self.classify(x.relu()))["paper"]


# %%
# Train on a third of the papers, without and with propagation.

train = torch.arange(num_papers) < num_papers // 3
for num_iterations in (0, 4):
    torch.manual_seed(1)
    model = Classifier(num_iterations)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=1e-3)
    for _ in range(150):
        optimizer.zero_grad()
        cross_entropy(model(graph)[train], topic[train]).backward()
        optimizer.step()
    correct = model(graph)[~train].argmax(-1) == topic[~train]
    print(f"{num_iterations} steps: test accuracy {correct.float().mean():.2f}")
