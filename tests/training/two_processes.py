"""Trains some models with as many processes as asked for; every process runs this program.

Each process is given a folder of its own to write to, so that what one of them wrote is seen.
"""

import os
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import torch

from sheafprop.data import InductiveData
from sheafprop.report.run_report_callback import RunReport
from sheafprop.training import BestCheckpoint, InductiveDataModule, SaveModel
from tests.toy import toy_data
from tests.training.test_sheaf_completion import module, trainer

BATCH = 6
#: Options of the module; the last ones draw negatives.
RUNS = {
    "transe": dict(kge="transe"),
    "rotate": dict(kge="rotate"),
    "transr": dict(kge="transr"),
    "se": dict(kge="se"),
    "negatives": dict(kge="rotate", loss="nssa", num_negatives=4, lr_schedule="cosine"),
    "sparse": dict(kge="rotate", loss="nssa", num_negatives=4, sparse=True),
    "rows": dict(kge="um", loss="nssa", num_negatives=4, sparse=True, optimizer="rowwise_adagrad"),
}


def uneven_data() -> InductiveData:
    """Three triples to validate on, which two processes cannot share equally."""
    data = toy_data()
    assert data.train_valid is not None
    return replace(data, train_valid=data.train_valid[:3])


def train(folder: Path, name: str, devices: int, own: str) -> dict:
    """Weights and metrics after two epochs, as every process sees them."""
    model = module(**RUNS[name])
    run = trainer(
        folder / own / name,
        2,
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        callbacks=[SaveModel(), BestCheckpoint(), RunReport()],
    )
    data = InductiveDataModule.from_data(uneven_data(), batch_size=BATCH, drop_last=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.fit(model, datamodule=data)
        metrics = {key: float(value) for key, value in run.callback_metrics.items()}
        count = model._transductive.metrics.compute()["count"]
        run.test(model, datamodule=data, verbose=False)
    return {
        "weights": {key: value.clone() for key, value in model.model.state_dict().items()},
        "metrics": metrics | {k: float(v) for k, v in run.callback_metrics.items()},
        "count": count,
        "steps": run.fit_loop.epoch_loop.global_step,
    }


if __name__ == "__main__":
    rank = os.environ.get("LOCAL_RANK", "0")
    results = {name: train(Path(sys.argv[1]), name, 2, rank) for name in RUNS}
    torch.save(results, Path(sys.argv[1]) / f"results{rank}.pt")
