"""
Extending a PyKEEN model
========================

Trains RotatE with PyKEEN on Nations, imports the model, and computes the vector of a new country.
This example requires the extra ``pykeen``.
"""

import tempfile

from pykeen.pipeline import pipeline

from sheafprop import SheafModel
from sheafprop.pretrained.importers import import_pykeen

# %%
# A PyKEEN pipeline, saved to a folder.

result = pipeline(
    dataset="nations",
    model="RotatE",
    model_kwargs={"embedding_dim": 32},
    training_kwargs={"num_epochs": 50, "use_tqdm": False},
    evaluation_kwargs={"use_tqdm": False},
    random_seed=0,
)
folder = tempfile.mkdtemp()
result.save_to_directory(folder)

# %%
# The import reads weights, labels and training triples. It executes no code from the files.

model = SheafModel(import_pykeen(folder))
print(model.num_entities, "countries")

# %%
# Three facts about Atlantis. The vectors of the other countries do not change.

larger = model.extend(
    [
        ("atlantis", "embassy", "uk"),
        ("usa", "treaties", "atlantis"),
        ("netherlands", "exports3", "atlantis"),
    ]
)
print(larger.report.summary())
print(larger.predict_tails("atlantis", "exports3", k=3))

# %%
# ``explain`` divides the energy of each fact by its mean in training for the relation (above one:
# the fact fits worse than the mean).

print(larger.explain("atlantis")[["head", "relation", "tail", "energy", "ratio"]])
