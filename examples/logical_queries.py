"""
Logical queries with derivations
================================

Answers queries over several relations with a trained model. One fact is missing, that Lyon is a
city of France; derivations show the facts and predicted links of each answer.
"""

import torch

from sheafprop import KnowledgeGraph, SheafModel
from sheafprop.kge import CrossEntropyLoss, build_model
from sheafprop.pretrained import StoredModel

# %%
# Countries, their cities and languages.

places = {"France": "Paris Lyon Nice", "Spain": "Madrid Seville", "Italy": "Rome Milan"}
speaks = {"France": "French", "Spain": "Spanish", "Italy": "Italian"}
triples = [(country, "speaks", language) for country, language in speaks.items()]
for country, names in places.items():
    cities = names.split()
    triples += [(city, "city of", country) for city in cities]
    triples.append((cities[0], "capital of", country))
    triples += [(city, "near", other) for city in cities for other in cities if city != other]
triples.remove(("Lyon", "city of", "France"))

# %%
# Train RotatE. Queries need no further training.

graph = KnowledgeGraph.from_labels(triples)
kge = build_model(
    "rotate", num_nodes=graph.num_nodes, num_relations=graph.num_relations, hidden_channels=8
)
kge.reset_parameters(0)
optimizer, loss = torch.optim.Adam(kge.parameters(), lr=0.05), CrossEntropyLoss(scale=4)
for _ in range(150):
    optimizer.zero_grad()
    kge.loss_over_entities(loss, kge.entity_vectors(), graph.triples).backward()
    optimizer.step()
stored = StoredModel.from_training(kge, graph.entities, graph.relations, graph.triples)
model = SheafModel(stored)

# %%
# Which language is spoken in the country of Lyon? The first link is predicted, the second a fact.

answers = model.answer("via(speaks, via('city of', Lyon))", k=2)
print(answers[["answer", "truth", "known"]])
links = model.answer("via(speaks, via('city of', Lyon))", k=1, derivations=1)
print(links[["source", "relation", "target", "link", "link_probability"]])

# %%
# Cities of France that are not its capital.

query = "and(via(inverse('city of'), France), not(via(inverse('capital of'), France)))"
print(model.answer(query, k=3)[["answer", "truth", "known"]])
