"""
Inductive completion with Lightning's Trainer
=============================================

Trains RotatE on a part of a graph, propagates into the whole graph, and ranks the test triples of
new entities, with the Lightning module, data module and callbacks of ``sheafprop fit`` and
``sheafprop test``.
"""

import tempfile
from pathlib import Path

from lightning.pytorch import Trainer

from sheafprop import SheafModel
from sheafprop.data import split_graph
from sheafprop.training import BestCheckpoint, InductiveDataModule, SaveModel, SheafCompletion

# %%
# Entities on a circle; each relation is a shift by a number of positions. A quarter of the entities
# are new; most of their triples are observed, and the others are to be predicted.

rows = [(f"e{i}", f"plus {k}", f"e{(i + k) % 120}") for i in range(120) for k in (1, 2, 5, 10, 17)]
split = split_graph(rows, "semi-inductive", seed=0)
print(split.summary())
folder = Path(tempfile.mkdtemp())
split.save(folder / "circle")

# %%
# Training uses the training graph only. The number of iterations is selected on the validation
# triples of the inference graph.

data = InductiveDataModule(
    "folder", root=str(folder / "circle"), mode="semi-inductive", batch_size=128
)
module = SheafCompletion("rotate", hidden_channels=32, lr=0.03)
quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
trainer = Trainer(
    max_epochs=40,
    check_val_every_n_epoch=10,
    default_root_dir=folder / "run",
    callbacks=[BestCheckpoint(), SaveModel()],
    **quiet,
)
trainer.fit(module, data)

# %%
# ``test`` ranks the test triples once, together with baselines that need no training.

trainer.test(module, data, ckpt_path="best", verbose=False)
for row in module.results:
    if row["protocol"] == "full":
        print(f"{row['method']:45s} MRR {row['metrics']['mrr']:.3f}")

# %%
# The saved model can be extended by further entities.

model = SheafModel.load(folder / "run")
larger = model.extend([("e0", "plus 1", "new"), ("new", "plus 10", "e11")])
print(larger.predict_tails("new", "plus 2", k=3))
