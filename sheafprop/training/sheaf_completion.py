"""The Lightning module that trains, propagates and ranks.

Long because the stages of a run, their hooks and their checkpoints are those of one module.
"""

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import LightningCLI, LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.loggers import Logger
from torch import Tensor

from sheafprop.checks import check_choice, check_integer
from sheafprop.data import Vocabulary
from sheafprop.data.inductive_data import InductiveData, renumber
from sheafprop.distributed import Ranks, ShardedTable
from sheafprop.errors import DataError, DivergenceError
from sheafprop.inductive.episode_model import FIXED_BEFORE, EpisodeModel, EpisodeSettings
from sheafprop.inductive.feature_map import Anchors, FeatureMap
from sheafprop.inductive.inductive_propagation import fit_features
from sheafprop.inductive.propagation_search import PropagationSearch, Selection
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.inductive.proximity_scorer import ProximitySettings
from sheafprop.inductive.proximity_search import ProximitySearch, selected_weights
from sheafprop.inductive.rank_completion import rank_completion
from sheafprop.kge import KGEModel, build_model
from sheafprop.pretrained.sheaf_model import SheafModel
from sheafprop.pretrained.stored_model import StoredModel
from sheafprop.ranking import TripleFilter
from sheafprop.ranking.protocols import MAIN_METRICS
from sheafprop.training.batch_loss import BatchLoss
from sheafprop.training.checkpoint_state import (
    KEY,
    check_checkpoint,
    check_trainer,
    describe_other_options,
    describe_training,
    describe_unfinished_training,
    is_other_data,
    renumber_like,
    stored_selection,
    vocabularies,
)
from sheafprop.training.episode_training import fingerprint, train_episodes
from sheafprop.training.optimization import (
    build_optimizer,
    check_optimizer,
    check_options,
    choose_sparse,
    clip_gradients,
    cosine_schedule,
    count_schedule_steps,
    find_obstacle,
    move_schedule,
    prefer_options,
)
from sheafprop.training.reference import reference_scorers
from sheafprop.training.sharded_training import (
    TABLE,
    restore_rows,
    share_table,
    table_ranks,
    temporary_table,
)
from sheafprop.training.transductive_ranking import TransductiveRanking

_INJECTABLE = ("optimizer", "lr_schedule")


class SheafCompletion(LightningModule):
    r"""Trains a knowledge graph embedding model and completes an inference graph with new entities.

    ``fit`` trains on the training graph only. ``validate`` ranks the transductive validation
    triples, propagates into the inference graph and ranks its validation triples. These select the
    start, the step size and the number of iterations; without them, training entities that are
    treated as new do. ``test`` propagates with the selected settings (on other data with validation
    triples, with settings selected there) and ranks the test triples once, together with baselines
    that need no training: random vectors without propagation, the start without propagation, and
    the edge-type heuristic.

    Args:
        kge: ``"transe"``, ``"rotate"``, ``"transr"``, ``"se"``, ``"pairre"``, ``"transh"``,
            ``"stranse"``, ``"lineare"``, ``"um"`` or ``"su2e"``.
        hidden_channels: Dimension :math:`d` of the entity stalks (complex numbers for RotatE, a
            multiple of four for SU2E).
        kge_args: Further arguments of the model, such as ``squared`` or ``entity_constraint``.
        loss: ``"cross_entropy"`` over all entities, ``"nssa"`` or ``"margin_ranking"``.
        loss_args: Arguments of the loss.
        sides: Whether the cross entropy predicts ``"both"`` ends of a triple, or only its
            ``"tail"``.
        num_candidates: Number of candidate entities of the cross entropy, sampled for every batch
            in addition to its own; None for all entities. Fewer candidates make training on large
            graphs cheaper: ``"auto"`` uses :func:`~sheafprop.training.count_candidates`. Each
            process samples candidates for its part of a batch.
        leave_out_known: Whether the cross entropy excludes other true answers of the training graph
            from the candidates.
        num_negatives: Number of negatives per triple, for losses with negatives.
        sparse: Whether a step reads and writes only the rows of the entity table in its batch
            (triples and sampled entities), so that its cost does not depend on the size of the
            table. ``"auto"``: for more than 200 000 entities, if loss and optimizer support it.
            Adagrad and SGD give the same results as without it. Adam does not update rows and
            moments of other entities, see :class:`~sheafprop.training.optimization.RowAdam`.
        table: ``"whole"``: every process holds all entities. ``"sharded"``: the processes of
            ``torchrun`` shard the entity table by rows, and training is sparse. See
            :class:`~sheafprop.training.ShardedTableStrategy`.
        optimizer: ``"adam"``, ``"adagrad"``, ``"rowwise_adagrad"`` (one accumulator for each
            entity) or ``"sgd"``; or a function from parameters to an optimizer (in YAML,
            ``class_path`` and ``init_args``), which checkpoints do not store.
        lr: Learning rate of an optimizer given by name.
        weight_decay: Its weight decay.
        lr_schedule: ``"constant"``, or ``"cosine"`` decay to zero; or a function from the optimizer
            to a scheduler, which steps after every epoch.
        lr_epochs: Number of epochs of the schedule; None for those of the trainer (``max_epochs``
            or ``max_steps``). If a run is resumed with more epochs, the schedule spans all of them.
        propagation: The settings to try on validation; a
            :class:`~sheafprop.inductive.PropagationSearch` or its plain values.
        episodes: Trains relations through the diffusion after ``fit``, on the training graph; an
            :class:`~sheafprop.inductive.EpisodeSettings` or its plain values. None for no episodes.
        proximity: Adds proximity in the observed graph to the scores, with fixed weights or with
            ``"auto"`` to select them after training; a
            :class:`~sheafprop.inductive.ProximitySearch` or its plain values. None for none.
        protocols: Protocols to report at test.
        reference: Whether to also train a model on the observed inference graph and rank with it,
            as a reference (not an upper bound).
        seed: Seed of the parameters, the batches, the negatives and the random starts.

    Raises:
        ValueError: If an argument is out of range, or invalid for the model or the loss.

    Example:
        A checkpoint contains the weights, the labels and the selected propagation settings;
        together with the training triples it gives a :class:`~sheafprop.SheafModel`, as in the
        folder ``model`` of a run.

        .. code-block:: python

            module = SheafCompletion.load_from_checkpoint("runs/umls/rotate/checkpoints/best.ckpt")
            data = InductiveDataModule("pykeen", name="umls").data
            model = module.to_sheaf_model(data)
            model.extend([("gene_therapy", "treats", "virus")]).save("extended")
    """

    def __init__(
        self,
        kge: Literal[
            "transe",
            "rotate",
            "transr",
            "se",
            "pairre",
            "transh",
            "stranse",
            "lineare",
            "um",
            "su2e",
        ] = "rotate",
        hidden_channels: int = 64,
        kge_args: dict[str, Any] | None = None,
        loss: Literal["cross_entropy", "nssa", "margin_ranking"] = "cross_entropy",
        loss_args: dict[str, Any] | None = None,
        sides: Literal["both", "tail"] = "both",
        num_candidates: int | Literal["auto"] | None = None,
        leave_out_known: bool = False,
        num_negatives: int = 32,
        sparse: bool | Literal["auto"] = "auto",
        table: Literal["whole", "sharded"] = "whole",
        optimizer: Literal["adam", "adagrad", "rowwise_adagrad", "sgd"]
        | OptimizerCallable = "adam",
        lr: float = 0.03,
        weight_decay: float = 0.0,
        lr_schedule: Literal["constant", "cosine"] | LRSchedulerCallable = "constant",
        lr_epochs: int | None = None,
        propagation: PropagationSearch = PropagationSearch(),  # noqa: B008 (frozen)
        episodes: EpisodeSettings | None = None,
        proximity: ProximitySearch | None = None,
        protocols: tuple[Literal["full", "sampled50", "merged", "strict"], ...] = (
            "full",
            "sampled50",
        ),
        reference: bool = False,
        seed: int = 0,
    ):
        super().__init__()
        if not protocols:
            raise ValueError("'protocols' needs at least one protocol (got none)")
        check_options(lr, weight_decay, lr_epochs)
        check_integer("seed", seed)
        if isinstance(propagation, dict):
            plain = dict(propagation)
            settings = PropagationSettings(**plain.pop("settings", {}))
            propagation = PropagationSearch(settings=settings, **plain)
        if isinstance(episodes, dict):
            episodes = EpisodeSettings(**episodes)
        if proximity is not None:
            proximity = ProximitySearch.of(proximity)
        self.episode_settings, self.proximity_search = episodes, proximity
        self.search = replace(propagation, settings=replace(propagation.settings, seed=seed))
        self.optimizer, self.lr_schedule = optimizer, lr_schedule
        injected = [name for name in _INJECTABLE if callable(getattr(self, name))]
        self.save_hyperparameters(ignore=["_instantiator", *injected], logger=False)
        # Plain values only, so that a checkpoint loads without unpickling classes.
        self.hparams.update(
            kge_args=dict(kge_args or {}),
            loss_args=dict(loss_args or {}),
            propagation=self.search.to_dict(),
            episodes=None if episodes is None else episodes.to_dict(),
            proximity=None if proximity is None else proximity.to_dict(),
            protocols=list(protocols),
        )
        names = ("sides", "num_candidates", "leave_out_known", "num_negatives", "seed")
        self.batch_loss = BatchLoss(loss, loss_args, **{n: self.hparams[n] for n in names})
        self._obstacle = find_obstacle(
            needs_negatives=bool(self.batch_loss.loss.needs_negatives),
            num_candidates=num_candidates,
            weight_decay=weight_decay,
        )
        check_choice("table", table, ("whole", "sharded"))
        if table == "sharded" and sparse is False:
            raise ValueError(
                "'table' can be 'sharded' only if 'sparse' is 'auto' or true (got false)"
            )
        if (sparse is True or table == "sharded") and self._obstacle is not None:
            what = "'sparse' cannot be true" if sparse is True else "'table' cannot be 'sharded'"
            raise ValueError(f"{what}: {self._obstacle}")
        self.build(1, 1)  # reports arguments that do not fit before any data is there
        self.kge: KGEModel | None = None
        self._stored_episodes: dict[str, Any] | None = None
        #: Relations trained through the diffusion, once they are.
        self.episodes: EpisodeModel | None = None
        self.episode_record: dict[str, Any] | None = None
        self.selection: Selection | None = None
        self.results: list[dict[str, Any]] = []
        self.protocol_boxes: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        #: Whether ``test`` repeats the search on validation, instead of taking what ``fit`` chose.
        self.reselect = False
        #: Whether loaded weights were trained on other data; None where that is not known.
        self.on_other_data: bool | None = None
        self.entities: Vocabulary | None = None
        self.relations: Vocabulary | None = None
        #: The training that ended here, or of which loaded weights are the best so far.
        self.training_record: dict[str, Any] | None = None
        #: A choice that is stored elsewhere, for checkpoints of version 0.1.0, which hold none.
        self.choice_of_run: Selection | None = None
        self._choice: Selection | None = None
        self._features: tuple[InductiveData, str, tuple[FeatureMap, Anchors]] | None = None
        self._valid_is_own = True
        self._other_options: tuple[str, ...] = ()
        self._epoch_began: float | None = None
        self._transductive: TransductiveRanking | None = None
        self._trained_on: TripleFilter | None = None
        self._sparse_note: str | None = None
        #: This process's part of the table while the whole is in its place; no module of this one.
        self._shards: list[ShardedTable] = []
        self._touched: Tensor | None = None  # rows of the last step, where it was sparse

    @property
    def data(self) -> InductiveData:
        """The graphs of the data module of the trainer."""
        return self.trainer.datamodule.data  # type: ignore[attr-defined]

    @property
    def model(self) -> KGEModel:
        """The embedding model; a :class:`RuntimeError` before a trainer has set this module up."""
        if self.kge is None:
            raise RuntimeError("the model is built when a Trainer sets the module up")
        return self.kge

    @property
    def proximity(self) -> ProximitySettings | None:
        """The settings of proximity, with the selected weights."""
        if self.proximity_search is None:
            return None
        chosen = self._choice or self.selection
        return self.proximity_search.settings_of(None if chosen is None else chosen.proximity)

    def configure_model(self) -> None:
        if self._trainer is None:
            return  # load_from_checkpoint, where the checkpoint knows the sizes
        check_trainer(self.trainer)
        if self.kge is None:
            ranks = table_ranks(self.hparams["table"], self.trainer)
            self.kge = self.build(self.data.train.num_nodes, self.data.num_relations, ranks)
            if ranks is not None:
                # Neither DDP nor Lightning may make these alike on all processes.
                self._ddp_params_and_buffers_to_ignore = [TABLE]
                return
            wanted = self.hparams["sparse"] if self.hparams["table"] == "whole" else True
            self.kge.node_emb.sparse, self._sparse_note = choose_sparse(
                wanted, self.kge.num_nodes, self._obstacle, self.optimizer, self.trainer
            )

    def build(self, num_nodes: int, num_relations: int, ranks: Ranks | None = None) -> KGEModel:
        """Builds an initialized embedding model.

        Args:
            num_nodes (int): Number of entities.
            num_relations (int): Number of relations.
            ranks (Ranks, optional): The processes that share its entity table.

        Raises:
            ValueError: If ``kge_args`` are invalid for the model.
        """
        s = self.hparams
        device = torch.get_default_device()
        try:
            with torch.device("meta"):  # parameters are drawn once, below
                model = build_model(
                    s["kge"],
                    num_nodes=num_nodes,
                    num_relations=num_relations,
                    hidden_channels=s["hidden_channels"],
                    **s["kge_args"],
                )
        except TypeError as error:
            raise ValueError(f"'kge_args' do not fit '{s['kge']}': {error}") from error
        if ranks is not None:
            share_table(model, ranks)
        model.to_empty(device=device)
        model.reset_parameters(s["seed"])
        return model

    def copy(self, **changes: Any) -> "SheafCompletion":
        """Returns a new, untrained module with the same arguments except for ``changes``."""
        given = {name: getattr(self, name) for name in _INJECTABLE}
        return type(self)(**(dict(self.hparams) | given | changes))

    def configure_optimizers(self) -> Any:
        optimizer = self._build_optimizer()
        if callable(self.lr_schedule):
            return LightningCLI.configure_optimizers(self, optimizer, self.lr_schedule(optimizer))
        if self.lr_schedule == "constant":
            return optimizer
        total = count_schedule_steps(self.trainer, self.hparams["lr_epochs"])
        schedule = {"scheduler": cosine_schedule(optimizer, total), "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    def _build_optimizer(self) -> torch.optim.Optimizer:
        if callable(self.optimizer):
            optimizer = self.optimizer(self.model.parameters())
            if self.model.node_emb.sparse:
                check_optimizer(optimizer)
            return optimizer
        return build_optimizer(
            self.optimizer,
            self.model,
            lr=self.hparams["lr"],
            weight_decay=self.hparams["weight_decay"],
            clips_gradients=bool(self.trainer.gradient_clip_val),
        )

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        table = self.model.node_emb
        if table.sparse and table.weight.grad is not None:
            table.weight.grad = grad = table.weight.grad.coalesce()
            self._touched = grad.indices()[0]

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        if self.model.node_emb.sparse:
            if gradient_clip_val:
                table = self.model.node_emb
                clip_gradients(
                    self.model.parameters(),
                    gradient_clip_val,
                    gradient_clip_algorithm,
                    table if isinstance(table, ShardedTable) else None,
                )
            return
        super().configure_gradient_clipping(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        datamodule: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        checkpoint[KEY] = describe_training(self.model, datamodule, self._train_seconds())

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        stored = checkpoint.get(KEY, {})
        # Those of earlier weights; the checkpoint keeps its own beside the weights.
        self.episodes = self.episode_record = None
        choice = stored_selection(checkpoint, self.hparams) or self.choice_of_run
        self.selection = self._choice = choice
        found, wanted = stored.get("episodes"), self.hparams["episodes"]
        same = False
        if found and wanted:
            own = EpisodeSettings.from_stored(found["settings"]).to_dict()
            # What could not be chosen then is as it was, whatever the default is now.
            fixed = FIXED_BEFORE.keys() - found["settings"].keys()
            same = own == wanted | {name: own[name] for name in fixed}
            if same and not (self._trainer is not None and self.trainer.state.fn == "fit"):
                self.hparams["episodes"] = own
        self._stored_episodes = found if same else None
        if self._trainer is None:  # load_from_checkpoint
            if not stored:
                raise ValueError(
                    "the checkpoint stores no labels, so it is not one of SheafCompletion"
                )
            self.entities, self.relations = vocabularies(checkpoint)
            self.kge = self.build(stored["num_nodes"], stored["num_relations"])
            self.kge.to(next(iter(checkpoint["state_dict"].values())).dtype)
            return
        if (path := self.trainer.ckpt_path) is not None:
            restore_rows(checkpoint, self.model.node_emb, Path(path).parent)
        resume = self.trainer.state.fn == "fit"
        datamodule: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        datamodule.data = renumber_like(checkpoint, datamodule.data)
        check_checkpoint(self.hparams, checkpoint, datamodule, resume=resume)
        self.on_other_data = is_other_data(checkpoint, datamodule.keys)
        self._other_options = describe_other_options(checkpoint, self.hparams)
        if "data" in stored:
            self._valid_is_own = stored["data"].get("valid") == datamodule.keys.get("valid")
        self.training_record = describe_unfinished_training(checkpoint)
        if resume:
            # A run that goes on has been trained for so long.
            self.seconds["train"] = float(stored.get("seconds", 0.0))
            began = stored.get("sparse", False)
            if isinstance(self.model.node_emb, ShardedTable) and not began:
                raise DataError(
                    "this run was trained with a whole table, so its table cannot be "
                    "shared now: leave out --model.table sharded, or start a new run"
                )
            if self.hparams["sparse"] == "auto" and began != self.model.node_emb.sparse:
                self.model.node_emb.sparse, self._sparse_note = began, None
            if not callable(self.lr_schedule):
                prefer_options(checkpoint, self._build_optimizer())

    def to_sheaf_model(self, data: InductiveData | None = None) -> SheafModel:
        """Returns the trained weights as a :class:`~sheafprop.SheafModel`.

        Args:
            data (InductiveData, optional): The training data, whose triples become the facts of the
                model. (default: that of the trainer)

        Raises:
            DataError: If the labels of the data differ from those of the training.
        """
        data = self.data if data is None else data
        if self.entities is not None:
            relations = self.relations or data.train.relations
            assert relations is not None
            data = renumber(data, self.entities, relations)
        if self.episodes is None:
            self.restore_episodes()
        return SheafModel(self.to_stored_model(data))

    def to_stored_model(
        self, data: InductiveData, metrics: dict[str, Any] | None = None
    ) -> StoredModel:
        """Returns the trained weights and the selected propagation in the form of a model folder.

        Args:
            data (InductiveData): The training data, with the ids of the weights.
            metrics (dict, optional): Metrics of the training.
        """
        train = data.train
        assert train.entities is not None
        assert train.relations is not None
        chosen = self.search.settings if self.selection is None else self.selection.settings
        return StoredModel.from_training(
            self.model,
            train.entities,
            train.relations,
            train.triples,
            settings=chosen.to_dict(),
            metrics=metrics,
            episodes=self.episodes,
            proximity=self.proximity,
            features=data.features,
            feature_map=self.fit_features(data)[0],
        )

    def on_train_start(self) -> None:
        self._choice = None
        if self._sparse_note is not None and self.trainer.is_global_zero:
            print(f"note: {self._sparse_note}", file=sys.stderr)
        if self.lr_schedule == "cosine":  # its span may be another where a run is resumed
            for config in self.trainer.lr_scheduler_configs:
                move_schedule(config.scheduler, self.trainer.global_step)  # type: ignore[arg-type]

    def on_train_epoch_start(self) -> None:
        self._epoch_began = time.perf_counter()

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        triples, number = batch
        train = self.data.train
        if self._trained_on is None and self.hparams["leave_out_known"]:
            self._trained_on = TripleFilter(train.triples, train.num_nodes, self.data.num_relations)
        loss = self.batch_loss(
            self.model, triples, number, self.current_epoch, self._trained_on, train.num_edges
        )
        if not bool(torch.isfinite(loss)):
            what = f"the training loss became {loss.item()}"
            raise self._divergence(what, "lower it, or constrain the entities")
        on: Any = {"on_step": False, "on_epoch": True}
        self.log("train/loss", loss, batch_size=len(triples), sync_dist=True, **on)
        return loss

    def on_train_batch_end(self, *args: Any) -> None:
        # After the optimizer has stepped, so that forward and backward see the same weights.
        if not self.model.node_emb.sparse:
            self.model.constrain_entities_()
        elif self._touched is not None:
            self.model.constrain_entities_(self._touched)
            self._touched = None

    def on_train_epoch_end(self) -> None:
        self._check_weights()
        self.seconds["train"] = self._train_seconds()
        self._epoch_began = None

    def _train_seconds(self) -> float:
        """Returns the wall time of all epochs so far, including validation."""
        running = 0.0 if self._epoch_began is None else time.perf_counter() - self._epoch_began
        return self.seconds.get("train", 0.0) + running

    def _check_weights(self) -> None:
        """Checks the weights, which may be useless even if the loss is finite."""
        for p in self.model.parameters():
            # A sum loses no NaN and no infinity, and takes no array of the table's size.
            if not math.isfinite(p.detach().sum().item()) and not bool(torch.isfinite(p).all()):
                raise self._divergence("weights are not finite")
        lengths = torch.linalg.vector_norm(self.model.node_emb.weight.detach(), dim=1)
        if self.model.entity_constraint == "unit" and bool((lengths == 0).any()):
            raise self._divergence("entity vectors vanished")

    def _divergence(self, what: str, advice: str = "lower it") -> DivergenceError:
        rate = "" if callable(self.optimizer) else f" (lr={self.hparams['lr']})"
        return DivergenceError(
            f"{what} at step {self.global_step} (epoch {self.current_epoch}); the likely cause is "
            f"a learning rate that is too large{rate}: {advice}"
        )

    def take_whole_table(self) -> None:
        """Replaces the shard by the whole table, memory-mapped. Must be called by all processes."""
        table = self.model.node_emb
        if isinstance(table, ShardedTable):
            place = temporary_table(Path(self.trainer.default_root_dir), table.ranks)
            self._shards, self.model.node_emb = [table], table.map_whole(place)

    def on_validation_epoch_start(self) -> None:
        self._check_weights()
        self.take_whole_table()
        self._transductive = None
        if self.data.train_valid is not None:
            # Also by a process that has none of the triples: their sums are added up together.
            self._transductive = TransductiveRanking(self.model, self.data)

    def validation_step(self, batch: tuple[str, Tensor], batch_idx: int) -> None:
        kind, triples = batch
        if kind == "transductive":
            assert self._transductive is not None
            self._transductive.update(triples)
            return
        data = replace(self.data, valid=triples.cpu())
        quick = self.trainer.state.fn == "fit"
        mapped, _ = self.fit_features()
        self.selection = selection = self.search.select(
            self.model, data, quick=quick, feature_map=mapped
        )
        best = max(selection.curve, key=lambda row: row[selection.metric])
        found = {name: best[name] for name in MAIN_METRICS}
        found["iterations"] = float(selection.settings.iterations)
        self._log("val", found, batch_size=1)

    def on_validation_epoch_end(self) -> None:
        if self._transductive is not None:
            metrics = self._transductive.metrics.compute()
            self._log("val/transductive", {name: metrics[name] for name in ("mrr", "hits@10")})
        if self._shards:
            self._transductive = None
            self.model.node_emb = self._shards.pop()  # type: ignore[assignment]

    def _log(self, stage: str, values: dict[str, Any], batch_size: int | None = None) -> None:
        named = {f"{stage}/{name}": value for name, value in values.items()}
        self.log_dict(named, batch_size=batch_size, sync_dist=True)

    def choose_propagation(self) -> Selection:
        """Selects the propagation settings, and weights of proximity that are ``"auto"``, on
        validation with the current weights."""
        mapped, _ = self.fit_features()
        selection = self.search.select(self.model, self.data, progress=True, feature_map=mapped)
        self.seconds["select"] = selection.seconds
        self._choice = self.selection = self._choose_proximity(selection)
        self._valid_is_own = True
        return self._choice

    def _choose_proximity(self, selection: Selection) -> Selection:
        """Adds the weights of proximity to a selection that lacks them."""
        search = self.proximity_search
        if search is None or search.is_fixed:
            return replace(selection, proximity=None)
        if search.fits(selection.proximity, self.episodes):
            return selection
        found = search.select(
            self.model,
            self.data,
            self.search,
            selection,
            episodes=self.episodes,
            seed=self.hparams["seed"],
            feature_map=self.fit_features()[0],
        )
        self.seconds["select"] = found.seconds
        return found

    def restore_episodes(self) -> bool:
        """Restores the episodes of the checkpoint; returns False if it has none with these
        settings."""
        if self._stored_episodes is None:
            return False
        self.episodes = EpisodeModel.from_stored(self.model, self._stored_episodes)
        self.episode_record = self._stored_episodes["record"]
        return True

    def train_episodes(
        self, folder: Path | None = None, loggers: Sequence[Logger] = (), progress: bool = False
    ) -> None:
        """Trains relations through the diffusion, starting from the current weights.

        Args:
            folder (Path, optional): Folder for the state of an interrupted training.
            loggers (sequence of Logger): Loggers of the loss of every step.
            progress (bool): Whether to show progress on standard error.
        """
        assert self.episode_settings is not None
        with torch.inference_mode(False), torch.enable_grad():  # also in the midst of a test
            self.episodes, record = train_episodes(
                self.model,
                self.data.train.triples,
                self.episode_settings,
                seed=self.hparams["seed"],
                folder=folder,
                loggers=loggers,
                progress=progress,
                anchors=self.fit_features()[1],
            )
        self.episode_record = asdict(record)
        self.seconds["episodes"] = record.seconds

    @torch.no_grad()
    def fit_features(
        self, data: InductiveData | None = None
    ) -> tuple[FeatureMap, Anchors] | tuple[None, None]:
        """The map from features to the vectors as they are, and what it predicts of each training
        entity from the others, once for these weights; None where the data (by default the
        trainer's) have no features."""
        data = self.data if data is None else data
        if data.features is None:
            return None, None
        key = fingerprint(self.model)
        kept = self._features
        if kept is None or kept[0] is not data or kept[1] != key:
            found = fit_features(data, self.model.entity_vectors(), self.model.sheaf())
            assert found is not None
            self._features = kept = data, key, found
        return kept[2]

    def test_step(self, batch: Tensor, batch_idx: int) -> None:
        data = replace(self.data, test=batch.cpu())
        if self.reselect and data.valid is None and self.on_other_data:
            raise DataError(f"{data.name}: there are no validation triples to choose on")
        wanted = self.episode_settings is not None and self.episodes is None
        if wanted and not self.restore_episodes():
            self.train_episodes()
        decides = self.reselect or (data.valid is not None and not self._valid_is_own)
        if decides or self._choice is None:
            self.choose_propagation()
        else:
            self._choice = self.selection = self._choose_proximity(self._choice)
        assert self.selection is not None
        selection = self.selection
        result = rank_completion(
            self.model,
            data,
            selection.settings,
            episodes=self.episodes,
            proximity=self.proximity,
            protocols=self.hparams["protocols"],
            selected=selection.on == "validation" and self._valid_is_own,
            selected_weights=selected_weights(selection.proximity),
            seed=self.hparams["seed"],
            feature_map=self.fit_features()[0],
            further=reference_scorers(self, data) if self.hparams["reference"] else None,
        )
        self.results = result.rows
        notes = "".join(f"\n{'note:':<12}{note}" for note in self._other_options)
        self.protocol_boxes = {name: box + notes for name, box in result.protocols.items()}
        self.seconds |= result.seconds
        full = [entry["metrics"] for entry in self.results if entry["protocol"] == "full"]
        if full:
            self._log("test", {name: full[0][name] for name in MAIN_METRICS}, batch_size=len(batch))
