"""
Extension of a PyKEEN model
===========================

Trains RotatE by PyKEEN on Nations, imports the model, and gives a vector to a country that it has
never seen. This example needs the extra pykeen.
"""

import tempfile

from pykeen.pipeline import pipeline

from sheafprop import SheafModel
from sheafprop.pretrained.importers import import_pykeen

# %%
# A pipeline of PyKEEN, saved as PyKEEN saves it.

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
# The import reads weights, labels and training triples. Nothing in the files is run.

model = SheafModel(import_pykeen(folder))
print(model.num_entities, "countries")

# %%
# Three facts about Atlantis. The vectors of the other countries stay as they are.

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
# ``explain`` compares the energy of each fact with what is usual for its relation (above one: the
# fact fits worse).

print(larger.explain("atlantis")[["head", "relation", "tail", "energy", "ratio"]])
