"""The learning curve of a model for queries: what validation says while it trains."""

import copy
import sys
import time
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from tqdm.auto import tqdm

from benchmarks.query_cell import Record, mean_hits, trained, validation_rankings
from benchmarks.query_presets import QueryConfig
from benchmarks.query_task import QueryTask
from sheafprop.data.datasets.query_data import QueryData
from sheafprop.kge import KGEModel
from sheafprop.query import CONJUNCTIVE
from sheafprop.query.evaluation import Averaging

#: The shares of the batches after which the model is looked at.
SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 1)
_AVERAGINGS: tuple[Averaging, ...] = ("micro", "macro")


def run_curve(data: QueryData, config: QueryConfig, seed: int) -> list[Record]:
    """Trains for ``config.max_steps`` batches and ranks validation queries on the way.

    Test queries are not looked at. Each point takes the number of iterations that is best there,
    by the mean of micro Hits@10 over the seven conjunctive types.

    Returns:
        A record for each point: batches, seconds of training, and Hits@10 of both averagings.
    """
    valid = QueryTask(data, "valid", config.inverse_relations)
    curve = _Curve(valid, config, seed)
    trained(config, valid.completion, seed, callbacks=[curve])
    return curve.points


class _Curve(Callback):
    def __init__(self, valid: QueryTask, config: QueryConfig, seed: int) -> None:
        self.valid, self.config, self.seed = valid, config, seed
        self.steps = {round(share * config.max_steps) for share in SHARES}
        self.points: list[Record] = []
        self._begin, self._looking = time.perf_counter(), 0.0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any
    ) -> None:
        if trainer.global_step not in self.steps:
            return
        self.steps.discard(trainer.global_step)
        begin = time.perf_counter()
        # A copy, as the module constrains its own model only after this.
        model = copy.deepcopy(pl_module.model)
        assert isinstance(model, KGEModel)
        model.eval().constrain_entities_()
        with torch.no_grad():
            best = self._best(model)
        seconds = begin - self._begin - self._looking
        self._looking += time.perf_counter() - begin
        point = {"steps": trainer.global_step, "seconds": round(seconds, 1)} | best
        point["threads"] = torch.get_num_threads()
        tqdm.write(f"{point}", file=sys.stderr)
        self.points.append(point)

    def _best(self, model: KGEModel) -> Record:
        found = []
        for count, rankings in validation_rankings(
            self.valid, model, self.config, self.seed, CONJUNCTIVE
        ):
            point: Record = {"iterations": count}
            for averaging in _AVERAGINGS:
                point[averaging] = round(mean_hits(rankings, averaging), 6)
            found.append(point)
        return max(found, key=lambda point: (point["micro"], -point["iterations"]))
