"""
A custom sheaf
==============

Every relation reflects its heads. A sheaf has three methods and a first tensor ``[R, ..., d]``.
"""

from dataclasses import dataclass

import torch
from torch.nn.functional import normalize

from sheafprop import KnowledgeGraph, SheafModel, SheafPropagation
from sheafprop.kge import KGE_REGISTRY, CrossEntropyLoss, KGEModel
from sheafprop.pretrained.stored_model import StoredModel
from sheafprop.sheaf import RelationSheaf


@dataclass(frozen=True, eq=False)
class ReflectionSheaf(RelationSheaf):
    """Heads are reflected at the hyperplane with normal ``[R, d]``; tails are not mapped."""

    normal: torch.Tensor

    def restrict(self, x, edge_type, side):
        if side == "tail":
            return x
        normal = normalize(self.normal[edge_type], dim=-1)
        return x - 2 * (x * normal).sum(-1, keepdim=True) * normal

    def restrict_adjoint(self, y, edge_type, side):
        return self.restrict(y, edge_type, side)

    def translation_of(self, edge_type):
        return None  # no relation moves anything


class Reflection(KGEModel):
    """Scores a triple by the distance between the reflected head and the tail."""

    name = "reflection"

    def __init__(self, num_nodes, num_relations, hidden_channels, **options):
        super().__init__(num_nodes, num_relations, hidden_channels, **options)
        self.rel_normal = torch.nn.Parameter(torch.empty(num_relations, hidden_channels))
        self.reset_parameters()

    def _reset_relations(self, generator):
        torch.nn.init.normal_(self.rel_normal, generator=generator)

    def sheaf(self):
        return ReflectionSheaf(self.rel_normal)


# %%
# Register the model, so that it can be saved and loaded, and train it on a graph of reflections.

KGE_REGISTRY[Reflection.name] = Reflection
triples = [(f"a{i}", "swaps", f"a{i ^ 1}") for i in range(16)]
triples += [(f"a{i}", "flips", f"a{15 - i}") for i in range(16)]
graph = KnowledgeGraph.from_labels(triples)
model = Reflection(graph.num_nodes, graph.num_relations, 8)
model.reset_parameters(0)
optimizer, loss = torch.optim.Adam(model.parameters(), lr=0.05), CrossEntropyLoss(scale=8)
for _ in range(200):
    optimizer.zero_grad()
    model.loss_over_entities(loss, model.entity_vectors(), graph.triples).backward()
    optimizer.step()
    model.constrain_entities_()

# %%
# Use the sheaf in a layer, and extend the model by a new entity.

x, edges = model.entity_vectors().detach(), (graph.edge_index, graph.edge_type)
print("propagated:", SheafPropagation(4)(x, *edges, model.sheaf()).shape)
stored = StoredModel.from_training(model, graph.entities, graph.relations, graph.triples)
larger = SheafModel(stored).extend([("new", "swaps", "a3"), ("a12", "flips", "new")])
print(larger.rank([("a3", "swaps", "new")]))
print(larger.answer("via(flips, via(swaps, new))", k=3))
