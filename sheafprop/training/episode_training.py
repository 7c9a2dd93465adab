"""Episodic training: trains relations through the diffusion, and the walk of proximity.

Long because the search for the steps, both trainings and their resuming share one state.
"""

import copy
import hashlib
import json
import math
import shutil
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger
from torch import Tensor
from torch.utils.data import DataLoader

from sheafprop.data.splits import hold_out_mask
from sheafprop.errors import DataError, DivergenceError
from sheafprop.files import write_text
from sheafprop.inductive.episode_model import EpisodeModel, EpisodeSettings
from sheafprop.inductive.episode_scorer import EpisodeScorer, episode_loss
from sheafprop.inductive.feature_map import Anchors
from sheafprop.inductive.proximity_scorer import relations_with_loops
from sheafprop.inductive.training_graph import split_training_triples
from sheafprop.inductive.walk_weights import walk_loss
from sheafprop.kge import KGEModel
from sheafprop.nn.start import RelationPrototypes
from sheafprop.progress import progress_bar
from sheafprop.ranking import TripleFilter, evaluate
from sheafprop.seeding import combine_keys
from sheafprop.training.checkpoint_state import AtomicCheckpointIO

_WARM_UP = 20
# The exponential of a parameter of this size may not be finite in single precision.
_EXTREME = 80.0
#: Fraction of the triples of the held-out part that evaluate the number of steps.
_JUDGING_SHARE = 0.15
#: The first number of steps that is tried; it is doubled while validation improves.
_FIRST = 50
#: Minimum number of seconds between checkpoints.
_CHECKPOINT_SECONDS = 10.0


@dataclass
class EpisodeRecord:
    """The record of the training of an :class:`EpisodeModel`.

    Args:
        num_steps: Number of training steps.
        tried: Numbers of steps that were tried, with MRR + Hits@10 on the held-out part.
        seconds: Total CPU time.
        loss: Loss of the last step.
        walk_loss: Loss of the last step of the walk of proximity; None without one.
    """

    num_steps: int
    tried: list[list[float]] = field(default_factory=list)
    seconds: float = 0.0
    loss: float = math.nan
    walk_loss: float | None = None


class _HiddenTriples(LightningModule):
    """Trains parameters to rank hidden triples of a graph, with one draw of them per step.

    Draws depend only on the seed and on the number of the step, so a resumed training has the same
    result as an uninterrupted one.

    Args:
        model (EpisodeModel): The model.
        parameters (dict): The parameters that are trained, by name.
        triples (Tensor): Distinct triples of the training graph, ``[m, 3]``.
        num_nodes (int): Number of entities of the training graph.
        num_steps (int): Number of steps of the learning rate schedule.
        seed (int): Random seed.
        lr, weight_decay (float): Those of the optimizer.
    """

    #: The name of the loss in logs, and what it belongs to in messages.
    name: ClassVar[str]
    setting: ClassVar[str]

    def __init__(
        self,
        model: EpisodeModel,
        parameters: dict[str, torch.nn.Parameter],
        triples: Tensor,
        num_nodes: int,
        num_steps: int,
        seed: int,
        *,
        lr: float,
        weight_decay: float,
    ):
        super().__init__()
        self.model, self.num_steps, self.seed = model, num_steps, seed
        self.num_nodes, self._triples = num_nodes, triples
        self._trained, self._lr, self._weight_decay = parameters, lr, weight_decay
        self._known = TripleFilter(triples, num_nodes, model.num_relations)

    def loss(self, triples: Tensor, generator: torch.Generator) -> Tensor:
        """The loss of one draw."""
        raise NotImplementedError

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(
            self._trained.values(),
            lr=self._lr,
            betas=(0.9, 0.99),
            weight_decay=self._weight_decay,
        )

        def rate(step: int) -> float:
            warm = min((step + 1) / _WARM_UP, 1.0)
            return warm * (1 + math.cos(math.pi * min(step / self.num_steps, 1.0))) / 2

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def train_dataloader(self) -> DataLoader[int]:
        numbers: Any = range(self.num_steps)
        return DataLoader(numbers, batch_size=None)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        key = int(combine_keys(self.seed, self.global_step)[0] >> 1)
        generator = torch.Generator().manual_seed(key)
        where = (
            f"at step {self.global_step}; the likely cause is a learning rate that is too large "
            f"({self.setting}={self._lr})"
        )
        try:
            loss = self.loss(self._triples.to(self.device), generator)
        except (ValueError, DivergenceError) as error:
            # Maps and weights that are not finite are refused as any value is.
            if isinstance(error, ValueError) and not self._has_diverged():
                raise
            raise DivergenceError(f"{self.name}: {error} {where}") from error
        if not bool(torch.isfinite(loss)):
            raise DivergenceError(f"the loss of {self.name} became {loss.item()} {where}")
        self.log(f"{self.name}/loss", loss, on_step=True, on_epoch=False)
        return loss

    def _has_diverged(self) -> bool:
        return not all(bool((p.abs() < _EXTREME).all()) for p in self._trained.values())

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        for name, parameter in self._trained.items():
            if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
                raise DivergenceError(
                    f"the gradient of '{name}' is not finite at step {self.global_step} of the "
                    f"{self.name}: lower the learning rate ({self.setting}={self._lr})"
                )


class EpisodeTraining(_HiddenTriples):
    """Trains an :class:`~sheafprop.inductive.EpisodeModel` on a graph, with one episode per step.

    Args:
        model (EpisodeModel): The model.
        triples (Tensor): Distinct triples of the training graph, ``[m, 3]``.
        num_nodes (int): Number of entities of the training graph.
        num_steps (int): Number of steps of the learning rate schedule.
        seed (int): Random seed.
        anchors (Anchors, optional): Vectors predicted from features.
    """

    name, setting = "episodes", "lr"

    def __init__(
        self,
        model: EpisodeModel,
        triples: Tensor,
        num_nodes: int,
        num_steps: int,
        seed: int = 0,
        anchors: Anchors | None = None,
    ):
        settings = model.settings
        super().__init__(
            model,
            model.trained_parameters(),
            triples,
            num_nodes,
            num_steps,
            seed,
            lr=settings.lr,
            weight_decay=settings.weight_decay,
        )
        self._anchors = anchors

    def loss(self, triples: Tensor, generator: torch.Generator) -> Tensor:
        return episode_loss(
            self.model, triples, self.num_nodes, self._known, generator, self._anchors
        )


class WalkTraining(_HiddenTriples):
    """Trains the weights that relations have in the walk of proximity.

    Args:
        model (EpisodeModel): The model, with ``settings.walk_steps``.
        triples (Tensor): Distinct triples of the training graph, ``[m, 3]``.
        num_nodes (int): Number of entities of the training graph.
        seed (int): Random seed.
    """

    name, setting = "walk", "walk_lr"

    def __init__(self, model: EpisodeModel, triples: Tensor, num_nodes: int, seed: int = 0):
        assert model.log_walk is not None
        settings = model.settings
        trained = {"log_walk": model.log_walk}
        more = {"lr": settings.walk_lr, "weight_decay": 0.0}
        super().__init__(model, trained, triples, num_nodes, settings.walk_steps, seed, **more)
        self._may_loop = relations_with_loops(triples, model.num_relations)

    def loss(self, triples: Tensor, generator: torch.Generator) -> Tensor:
        log_weight = self.model.log_walk
        assert log_weight is not None
        may_loop = self._may_loop.to(triples.device)
        return walk_loss(log_weight, triples, self.num_nodes, self._known, may_loop, generator)


class _Progress(Callback):
    """Shows a progress bar on standard error and saves checkpoints."""

    def __init__(self, text: str, path: Path | None, progress: bool):
        self.text, self.path, self.progress = text, path, progress
        self._saved = time.monotonic()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.bar = progress_bar(
            trainer.max_steps, initial=trainer.global_step, desc=self.text, shown=self.progress
        )

    def on_train_batch_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        self.bar.update()
        due = time.monotonic() - self._saved >= _CHECKPOINT_SECONDS
        if self.path is not None and due and trainer.global_step < trainer.max_steps:
            trainer.save_checkpoint(self.path)
            self._saved = time.monotonic()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.bar.close()


def train_episodes(
    kge: KGEModel,
    triples: Tensor,
    settings: EpisodeSettings,
    *,
    seed: int = 0,
    folder: Path | None = None,
    loggers: Sequence[Logger] = (),
    progress: bool = False,
    anchors: Anchors | None = None,
) -> tuple[EpisodeModel, EpisodeRecord]:
    """Trains an :class:`EpisodeModel`, using only the training graph.

    Unless ``settings.num_steps`` is set, the number of steps is selected first. The entities are
    split into two parts; relations are trained on one part and evaluated on held-out triples of the
    other one by MRR + Hits@10. The number of steps is doubled while this improves. A graph that is
    too small to be split uses the first number, with a warning.

    With ``settings.walk_steps``, the weights of relations in the walk of proximity are trained
    afterwards, on their own: they learn which relations lead from an entity to its answers.

    Args:
        kge (KGEModel): The trained model of the training graph.
        triples (Tensor): The training triples ``[m, 3]``.
        settings (EpisodeSettings): The settings of the training.
        seed (int): Random seed.
        folder (Path, optional): The folder of checkpoints from which an interrupted training is
            resumed.
        loggers (sequence of Logger): Loggers of the loss of the final training.
        progress (bool): Whether to show progress on standard error.
        anchors (Anchors, optional): For each training entity, the vector predicted from its
            features by the other entities. Its weight is learned.

    Raises:
        DivergenceError: If a loss is not finite.
    """
    begin = time.process_time()
    if kge.node_emb.weight.device.type != "cpu":
        kge = copy.deepcopy(kge).cpu()
    triples = torch.unique(triples.cpu(), dim=0)
    more = (
        ()
        if anchors is None
        else (
            anchors.nodes,
            torch.view_as_real(anchors.target) if anchors.target.is_complex() else anchors.target,
        )
    )
    state = _State(folder, settings, seed, fingerprint(kge, triples, *more))
    record = EpisodeRecord(settings.num_steps or 0, state.tried, state.seconds)
    if settings.num_steps is None:
        record.num_steps = _find_num_steps(kge, triples, settings, seed, state, progress, anchors)
        record.tried = state.tried
    model = EpisodeModel(
        kge,
        _prototypes(kge.entity_vectors(), triples, kge.num_relations),
        settings,
        seed,
        _gamma(anchors),
    )
    record.loss = _fit(
        EpisodeTraining(model, triples, kge.num_nodes, record.num_steps, seed, anchors),
        "training relations through the diffusion",
        state.path("whole"),
        loggers,
        progress,
    )
    if settings.walk_steps:
        record.walk_loss = _fit(
            WalkTraining(model, triples, kge.num_nodes, seed),
            "training the walk of proximity",
            state.path("walk"),
            loggers,
            progress,
        )
    record.seconds += time.process_time() - begin
    state.clear()
    return model.eval(), record


class _State:
    """The state of an interrupted training of the same model, graph and settings."""

    def __init__(self, folder: Path | None, settings: EpisodeSettings, seed: int, fingerprint: str):
        self.folder = folder
        self.tried: list[list[float]] = []
        self.seconds = 0.0
        self._begin = time.process_time()
        self._of = {"settings": settings.to_dict(), "seed": seed, "start": fingerprint}
        if folder is None:
            return
        file = folder / "state.json"
        stored = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        if stored.get("of") == self._of:
            self.tried, self.seconds = stored["tried"], stored["seconds"]
            return
        self.clear()  # of others
        folder.mkdir(parents=True)
        self._write()

    def path(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{name}.ckpt"

    def add(self, num_steps: int, value: float) -> None:
        self.tried.append([num_steps, value])
        if self.folder is not None:
            self._write()

    def _write(self) -> None:
        assert self.folder is not None
        seconds = self.seconds + time.process_time() - self._begin
        plain = {"of": self._of, "tried": self.tried, "seconds": seconds}
        write_text(self.folder / "state.json", json.dumps(plain))

    def clear(self) -> None:
        if self.folder is not None and self.folder.exists():
            shutil.rmtree(self.folder)


def _find_num_steps(
    kge: KGEModel,
    triples: Tensor,
    settings: EpisodeSettings,
    seed: int,
    state: _State,
    progress: bool,
    anchors: Anchors | None,
) -> int:
    try:
        parts = split_training_triples(triples, kge.num_nodes, seed=seed)
    except DataError as error:
        warnings.warn(f"{error}; {_FIRST} steps of episodic training are used")
        return _FIRST
    other, num_other = parts.other, len(parts.other_entities)
    held = hold_out_mask(other, fraction=_JUDGING_SHARE, seed=seed)
    known = TripleFilter({"observed": other}, num_other, kge.num_relations)
    x = kge.entity_vectors()[parts.part_entities]
    prototypes = _prototypes(x, parts.part, kge.num_relations)
    own = judged = None
    if anchors is not None:
        own = anchors.among(parts.part_entities, kge.num_nodes)
        judged = anchors.among(parts.other_entities, kge.num_nodes)
    count = _FIRST
    while count <= settings.max_steps and bool(held.any()):
        done = [value for steps, value in state.tried if steps == count]
        if not done:
            model = EpisodeModel(kge, prototypes, settings, seed, _gamma(anchors))
            training = EpisodeTraining(
                model, parts.part, len(parts.part_entities), count, seed, own
            )
            text = f"looking for the number of steps ({count})"
            _fit(training, text, state.path(f"part_{count}"), (), progress)
            labels = [str(i) for i in range(num_other)]
            scorer = EpisodeScorer(model.eval(), other[~held], labels, seed, judged)
            result = evaluate(scorer.score_tails, scorer.score_heads, other[held], known)
            metrics = result.metrics("full")
            state.add(count, metrics["mrr"] + metrics["hits@10"])
        if len(state.tried) > 1 and state.tried[-1][1] <= state.tried[-2][1]:
            break
        count *= 2
    best = max(state.tried, key=lambda row: (row[1], -row[0]), default=[_FIRST, 0.0])
    return int(best[0])


def _fit(
    training: _HiddenTriples,
    text: str,
    path: Path | None,
    loggers: Sequence[Logger],
    progress: bool,
) -> float:
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=training.num_steps,
        max_epochs=-1,
        gradient_clip_val=1.0,
        logger=list(loggers) or False,
        log_every_n_steps=1,
        callbacks=[_Progress(text, path, progress)],
        plugins=[AtomicCheckpointIO()],
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        num_sanity_val_steps=0,
    )
    last = path if path is not None and path.is_file() else None
    with warnings.catch_warnings():
        # A step depends only on its number, not on the data loader.
        for text in (".*dataloader is not resumable", ".*does not have many workers", ".*LeafSpec"):
            warnings.filterwarnings("ignore", message=text)
        trainer.fit(training, ckpt_path=last)
    return float(trainer.callback_metrics.get(f"{training.name}/loss", math.nan))


def _prototypes(x: Tensor, triples: Tensor, num_relations: int) -> Tensor:
    head, relation, tail = triples.unbind(1)
    return RelationPrototypes.from_triples(
        x.detach(), torch.stack([head, tail]), relation, num_relations
    ).mean


def _gamma(anchors: Anchors | None) -> float | None:
    return None if anchors is None else float(anchors.weight.mean())


def fingerprint(kge: KGEModel, *more: Tensor) -> str:
    """Returns a hash of the weights of a model and of further tensors."""
    digest = hashlib.sha256()
    for tensor in (*kge.state_dict().values(), *more):
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()
