import math
import time
from dataclasses import asdict, replace
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from sheafprop.checks import check_choice, check_integer
from sheafprop.data import Vocabulary
from sheafprop.data.inductive_data import InductiveData, renumber
from sheafprop.errors import DataError, DivergenceError
from sheafprop.inductive.propagation_search import PropagationSearch, Selection
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.inductive.rank_completion import rank_completion
from sheafprop.inductive.section_scorer import SectionScorer
from sheafprop.kge import KGEModel, NegativeSampler, build_loss, build_model
from sheafprop.kge.base import LeftOut, Side
from sheafprop.pretrained.sheaf_model import SheafModel
from sheafprop.pretrained.stored_model import StoredModel
from sheafprop.ranking import RankMetrics, TripleFilter, evaluate
from sheafprop.seeding import combine_keys, seeded_integers
from sheafprop.training.checkpoint_state import (
    KEY,
    check_checkpoint,
    is_other_data,
    prefer_settings,
    stored_selection,
    unfinished_training,
    vocabularies,
    with_ids_of,
)
from sheafprop.training.cosine_decay import CosineDecay
from sheafprop.training.precision import check_precision
from sheafprop.training.reference import train_reference

_OPTIMIZERS = {
    "adam": torch.optim.Adam,
    "adagrad": torch.optim.Adagrad,
    "sgd": torch.optim.SGD,
}


class SheafCompletion(LightningModule):
    r"""Trains a knowledge graph embedding model, then completes a graph of entities it never saw.

    ``fit`` trains on the training graph alone. ``validate`` ranks the transductive validation
    triples, propagates into the inference graph and ranks its validation triples, which choose the
    start, the step size and the number of iterations. ``test`` propagates with that choice and
    ranks the test triples once, beside baselines that cost nothing: random vectors without
    propagation, the start without propagation, and the edge-type heuristic.

    Args:
        kge: ``"transe"``, ``"rotate"``, ``"transr"``, ``"se"``, ``"pairre"``, ``"transh"``,
            ``"stranse"``, ``"lineare"`` or ``"um"``.
        hidden_channels: Dimension :math:`d` of the entity stalks (complex numbers for RotatE).
        kge_args: Further arguments of the model, such as ``squared`` or ``entity_constraint``.
        loss: ``"cross_entropy"`` over all entities, ``"nssa"`` or ``"margin_ranking"``.
        loss_args: Arguments of the loss.
        sides: Whether the cross entropy asks for ``"both"`` ends of a triple, or for its
            ``"tail"`` alone.
        num_candidates: Entities that the cross entropy compares with, drawn anew for every batch
            beside those of the batch; None for all. Fewer make training on large graphs cheaper.
            Each of several processes draws for its own share of a batch.
        leave_out_known: Whether the cross entropy leaves out the other true answers of the training
            graph, instead of treating them as wrong ones.
        num_negatives: Negatives for each triple, for losses that need them.
        optimizer: ``"adam"``, ``"adagrad"`` or ``"sgd"``.
        lr: Learning rate.
        weight_decay: Weight decay.
        lr_schedule: ``"constant"``, or ``"cosine"`` down to zero.
        lr_epochs: Epochs the schedule spans; None for as long as the trainer trains
            (``max_epochs`` or ``max_steps``), also where a run is resumed with more epochs: the
            schedule then spans all of them anew.
        propagation: What is tried on validation; a
            :class:`~sheafprop.inductive.PropagationSearch` or its plain values.
        protocols: Protocols to report at test.
        reference: Whether to train a model of the same kind on the observed inference graph itself
            and rank with it too, as a reference (not an upper bound).
        seed: Seed of the parameters, the batches, the negatives and the random starts.

    Raises:
        ValueError: If an argument is out of its range, or does not fit the model or the loss.

    Example:
        A checkpoint has the weights, the labels and the chosen propagation; with the training
        triples it becomes a :class:`~sheafprop.SheafModel`. The run folder that the command ``fit``
        leaves holds that model already: ``SheafModel.load("runs/umls/rotate")``.

        >>> module = SheafCompletion.load_from_checkpoint("runs/umls/rotate/checkpoints/best.ckpt")
        >>> data = InductiveDataModule("pykeen", name="umls").data
        >>> model = module.to_sheaf_model(data)
        >>> model.extend([("gene_therapy", "treats", "virus")]).save("extended")
    """

    def __init__(
        self,
        kge: Literal[
            "transe", "rotate", "transr", "se", "pairre", "transh", "stranse", "lineare", "um"
        ] = "rotate",
        hidden_channels: int = 64,
        kge_args: dict[str, Any] | None = None,
        loss: Literal["cross_entropy", "nssa", "margin_ranking"] = "cross_entropy",
        loss_args: dict[str, Any] | None = None,
        sides: Literal["both", "tail"] = "both",
        num_candidates: int | None = None,
        leave_out_known: bool = False,
        num_negatives: int = 32,
        optimizer: Literal["adam", "adagrad", "sgd"] = "adam",
        lr: float = 0.03,
        weight_decay: float = 0.0,
        lr_schedule: Literal["constant", "cosine"] = "constant",
        lr_epochs: int | None = None,
        propagation: PropagationSearch = PropagationSearch(),  # noqa: B008 (frozen)
        protocols: tuple[Literal["full", "sampled50", "merged"], ...] = ("full", "sampled50"),
        reference: bool = False,
        seed: int = 0,
    ):
        super().__init__()
        if not protocols:
            raise ValueError("'protocols' needs at least one protocol (got none)")
        check_choice("sides", sides, ("both", "tail"))
        if not lr > 0:
            raise ValueError(f"'lr' must be positive (got {lr})")
        if not weight_decay >= 0:
            raise ValueError(f"'weight_decay' must not be negative (got {weight_decay})")
        for label, number in (
            ("num_candidates", num_candidates),
            ("num_negatives", num_negatives),
            ("lr_epochs", lr_epochs),
        ):
            if number is not None:
                check_integer(label, number, 1)
        check_integer("seed", seed)
        if isinstance(propagation, dict):
            plain = dict(propagation)
            settings = PropagationSettings(**plain.pop("settings", {}))
            propagation = PropagationSearch(settings=settings, **plain)
        propagation = replace(propagation, settings=replace(propagation.settings, seed=seed))
        self.settings = {
            "kge": kge,
            "hidden_channels": hidden_channels,
            "kge_args": dict(kge_args or {}),
            "loss": loss,
            "loss_args": dict(loss_args or {}),
            "sides": sides,
            "num_candidates": num_candidates,
            "leave_out_known": leave_out_known,
            "num_negatives": num_negatives,
            "optimizer": optimizer,
            "lr": lr,
            "weight_decay": weight_decay,
            "lr_schedule": lr_schedule,
            "lr_epochs": lr_epochs,
            "propagation": _plain(asdict(propagation)),
            "protocols": list(protocols),
            "reference": reference,
            "seed": seed,
        }
        # Plain values only, so that a checkpoint loads without unpickling classes.
        self.hparams.update(self.settings)
        self.search = propagation
        self.loss = build_loss(loss, **(loss_args or {}))
        if leave_out_known and self.loss.needs_negatives:
            raise ValueError(f"'leave_out_known' is for the cross entropy (the loss is '{loss}')")
        self.build(1, 1)  # arguments that do not fit are told before any data is there
        self.kge: KGEModel | None = None
        self.selection: Selection | None = None
        self.results: list[dict[str, Any]] = []
        self.protocol_boxes: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        #: Whether ``test`` repeats the search on validation, instead of taking what ``fit`` chose.
        self.reselect = False
        #: Whether the data differ from those that the loaded weights were trained on; None where
        #: that is not known.
        self.on_other_data: bool | None = None
        self.entities: Vocabulary | None = None
        self.relations: Vocabulary | None = None
        #: What is known of the training of loaded weights that no finished run chose; else None.
        self.unfinished: dict[str, Any] | None = None
        #: A choice that is stored elsewhere, for checkpoints of version 0.1.0, which hold none.
        self.choice_of_run: Selection | None = None
        self._choice: Selection | None = None
        self._valid_is_own = True
        self._resumed = False
        self._epoch_began: float | None = None
        self._transductive: RankMetrics | None = None
        self._known: TripleFilter | None = None
        self._trained_on: TripleFilter | None = None

    # Set-up ---------------------------------------------------------------------------------------

    @property
    def data(self) -> InductiveData:
        """The graphs of the trainer's data module."""
        return self.trainer.datamodule.data  # type: ignore[attr-defined]

    @property
    def model(self) -> KGEModel:
        """The embedding model; a :class:`RuntimeError` before a trainer has set this module up."""
        if self.kge is None:
            raise RuntimeError("the model is built when a Trainer sets the module up")
        return self.kge

    def configure_model(self) -> None:
        if self._trainer is None:
            return  # load_from_checkpoint, where the checkpoint knows the sizes
        check_precision(self.trainer)
        if self.trainer.overfit_batches:  # type: ignore[attr-defined]
            raise ValueError(
                "'overfit_batches' is not supported, since validation would rank a part of its "
                "triples: train on a small 'train.txt', or limit --trainer.limit_train_batches"
            )
        if self.kge is None:
            self.kge = self.build(self.data.train.num_nodes, self.data.num_relations)

    def build(self, num_nodes: int, num_relations: int) -> KGEModel:
        """A freshly initialised embedding model of this module's kind.

        Args:
            num_nodes (int): Number of entities.
            num_relations (int): Number of relations.

        Raises:
            ValueError: If ``kge_args`` do not fit the model.
        """
        s = self.settings
        try:
            model = build_model(
                s["kge"],
                num_nodes=num_nodes,
                num_relations=num_relations,
                hidden_channels=s["hidden_channels"],
                **s["kge_args"],
            )
        except TypeError as error:
            raise ValueError(f"'kge_args' do not fit '{s['kge']}': {error}") from error
        model.reset_parameters(s["seed"])
        return model

    def configure_optimizers(self) -> Any:
        s = self.settings
        # Lightning cannot clip what a fused optimizer may unscale.
        optimizer = self.build_optimizer(self.model, fused=not self.trainer.gradient_clip_val)
        if s["lr_schedule"] == "constant":
            return optimizer
        end = self.trainer.estimated_stepping_batches
        total: float = end
        if s["lr_epochs"]:
            batches = self.trainer.num_training_batches
            total = s["lr_epochs"] * math.ceil(batches / self.trainer.accumulate_grad_batches)
        if total == math.inf:
            raise ValueError(
                "the cosine schedule needs an end: the trainer's 'max_epochs' or 'max_steps'"
            )
        fast = self.trainer.fast_dev_run  # type: ignore[attr-defined]
        if total < end and not fast:
            raise ValueError(
                f"the learning rate reaches zero after {s['lr_epochs']} epochs ({int(total)} steps "
                f"of {end}), so that later ones would change nothing: raise --model.lr_epochs to "
                "the epochs of --trainer.max_epochs, or leave it out with --model.lr_epochs null"
            )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, CosineDecay(int(total)))
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def build_optimizer(self, model: KGEModel, *, fused: bool = True) -> torch.optim.Optimizer:
        """The optimizer of this module's settings for the parameters of a ``model``.

        With ``fused``, Adam updates all parameters in one pass, where gradients are not clipped.
        """
        s = self.settings
        options = {"fused": True} if fused and s["optimizer"] == "adam" else {}
        return _OPTIMIZERS[s["optimizer"]](
            model.parameters(), lr=s["lr"], weight_decay=s["weight_decay"], **options
        )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        train, datamodule = self.data.train, self.trainer.datamodule  # type: ignore[attr-defined]
        checkpoint[KEY] = {
            "num_nodes": self.model.num_nodes,
            "num_relations": self.model.num_relations,
            "entities": train.entities.labels if train.entities else (),
            "relations": train.relations.labels if train.relations else (),
            "data": datamodule.keys,
            "batches": {"batch_size": datamodule.batch_size, "drop_last": datamodule.drop_last},
            "seconds": self._train_seconds(),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        stored = checkpoint.get(KEY, {})
        self._choice = stored_selection(checkpoint, self.settings) or self.choice_of_run
        self.selection = self._choice
        if self._trainer is None:  # load_from_checkpoint
            if not stored:
                raise ValueError("the checkpoint holds no labels: it is not of a SheafCompletion")
            self.entities, self.relations = vocabularies(checkpoint)
            self.kge = self.build(stored["num_nodes"], stored["num_relations"])
            self.kge.to(next(iter(checkpoint["state_dict"].values())).dtype)
            return
        resume = self.trainer.state.fn == "fit"
        datamodule: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        datamodule.data = with_ids_of(checkpoint, datamodule.data)
        check_checkpoint(self.settings, checkpoint, datamodule, resume=resume)
        self.on_other_data = is_other_data(checkpoint, datamodule.keys)
        if "data" in stored:
            self._valid_is_own = stored["data"].get("valid") == datamodule.keys.get("valid")
        self.unfinished = unfinished_training(checkpoint)
        if resume:
            # A run that goes on has been trained for so long.
            self.seconds["train"] = float(stored.get("seconds", 0.0))
            fused = not self.trainer.gradient_clip_val
            prefer_settings(checkpoint, self.build_optimizer(self.model, fused=fused))
            self._resumed = True

    def to_sheaf_model(self, data: InductiveData | None = None) -> SheafModel:
        """The trained weights as a :class:`~sheafprop.SheafModel`, which extends and predicts.

        Args:
            data (InductiveData, optional): The data of the training, whose triples become the facts
                of the model. (default: that of the trainer)

        Raises:
            DataError: If the labels of the data are not those that the module was trained on.
        """
        data = self.data if data is None else data
        entities, relations = data.train.entities, data.train.relations
        assert entities is not None
        assert relations is not None
        if self.entities is not None:
            entities, relations = self.entities, self.relations or relations
            data = renumber(data, entities, relations)
        chosen = self.search.settings if self.selection is None else self.selection.settings
        stored = StoredModel.from_training(
            self.model, entities, relations, data.train.triples, settings=chosen.to_dict()
        )
        return SheafModel(stored)

    # Training -------------------------------------------------------------------------------------

    def on_train_start(self) -> None:
        self._choice = None
        if self._resumed:
            self._place_schedules()
            self._resumed = False

    def _place_schedules(self) -> None:
        """Puts schedules where this run stands, since their span may be another now."""
        for config in self.trainer.lr_scheduler_configs:
            schedule: Any = config.scheduler
            if not schedule.last_epoch:  # there was no schedule before
                schedule.last_epoch = self.trainer.global_step
            rates = [
                base * factor(schedule.last_epoch)
                for base, factor in zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)
            ]
            for group, rate in zip(schedule.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
            schedule._last_lr = rates

    def on_train_epoch_start(self) -> None:
        self._epoch_began = time.perf_counter()

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        triples, number = batch
        if self._trained_on is None and self.settings["leave_out_known"]:
            train = self.data.train
            self._trained_on = TripleFilter(train.triples, train.num_nodes, self.data.num_relations)
        loss = self.batch_loss(self.model, triples, number, self.current_epoch, self._trained_on)
        if not bool(torch.isfinite(loss)):
            raise DivergenceError(
                f"the training loss became {loss.item()} at step {self.global_step} (epoch "
                f"{self.current_epoch}); the likely cause is a learning rate that is too large "
                f"(lr={self.settings['lr']}): lower it, or constrain the entities"
            )
        self.log(
            "train/loss",
            loss,
            on_step=False,
            on_epoch=True,
            batch_size=len(triples),
            sync_dist=True,
        )
        return loss

    def batch_loss(
        self,
        model: KGEModel,
        triples: Tensor,
        number: Tensor,
        epoch: int,
        known: TripleFilter | None = None,
    ) -> Tensor:
        """The loss of a batch.

        Args:
            model (KGEModel): The model.
            triples (Tensor): The triples, int64 ``[B, 3]``.
            number (Tensor): Their numbers in the training set ``[B]``, which negatives follow.
            epoch (int): The epoch, which they follow too.
            known (TripleFilter, optional): True triples that are left out of the candidates.
        """
        x = model.entity_vectors()
        if not self.loss.needs_negatives:
            count, place, own = self.settings["num_candidates"], None, triples
            if count is not None and count < len(x):
                x, triples, place = self._among_candidates(x, triples, number, epoch)
            sides = self.settings["sides"]
            left_out = None if known is None else _known_answers(known, own, place, sides)
            return model.loss_over_entities(self.loss, x, triples, sides, left_out)
        sampler = NegativeSampler(
            model.num_nodes,
            model.num_relations,
            self.settings["num_negatives"],
            seed=self.settings["seed"],
        )
        entity, at_head = sampler.replacements(triples, number, epoch)
        # A triple itself is scored beside its negatives, as the one with its own tail put in.
        entity = torch.cat([triples[:, 2:], entity], dim=1)
        at_head = torch.nn.functional.pad(at_head, (1, 0))
        scores = model.score_replaced(x, triples, entity, at_head)
        return self.loss(scores[:, 0], scores[:, 1:])

    def _among_candidates(
        self, x: Tensor, triples: Tensor, number: Tensor, epoch: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The vectors of the batch's entities and some others, the triples in their ids, and the id
        that each entity has among them, or -1."""
        key = combine_keys(epoch, number[:1].cpu().numpy())
        count, seed = self.settings["num_candidates"], self.settings["seed"]
        drawn = torch.from_numpy(seeded_integers(key, count, len(x), seed)).to(x.device)
        own = triples[:, [0, 2]]
        ids, place = torch.cat([own.flatten(), drawn.flatten()]).unique(return_inverse=True)
        head, tail = place[: own.numel()].view(-1, 2).unbind(1)
        index = ids.new_full((len(x),), -1)
        index[ids] = torch.arange(len(ids), device=x.device)
        return x[ids], torch.stack([head, triples[:, 1], tail], dim=1), index

    def on_train_batch_end(self, *args: Any) -> None:
        # After the optimizer has stepped, so that forward and backward see the same weights.
        self.model.constrain_entities_()

    def on_train_epoch_end(self) -> None:
        self._check_weights()
        self.seconds["train"] = self._train_seconds()
        self._epoch_began = None

    def _train_seconds(self) -> float:
        """Wall time of all epochs so far, their validations included."""
        running = 0.0 if self._epoch_began is None else time.perf_counter() - self._epoch_began
        return self.seconds.get("train", 0.0) + running

    def _check_weights(self) -> None:
        """A finite loss may still have led to weights that no longer mean anything."""
        finite = all(bool(torch.isfinite(p).all()) for p in self.model.parameters())
        lengths = torch.linalg.vector_norm(self.model.node_emb.weight.detach(), dim=1)
        vanished = self.model.entity_constraint == "unit" and bool((lengths == 0).any())
        if not finite or vanished:
            what = "entity vectors vanished" if finite else "weights are not finite"
            raise DivergenceError(
                f"{what} at step {self.global_step} (epoch {self.current_epoch}); the likely cause "
                f"is a learning rate that is too large (lr={self.settings['lr']}): lower it"
            )

    # Validation -----------------------------------------------------------------------------------

    def on_validation_epoch_start(self) -> None:
        self._check_weights()
        self._transductive = self._known = None
        if self.data.train_valid is not None:
            # Also by a process that has none of the triples: their sums are added up together.
            self._transductive = RankMetrics("full").to(self.device)

    def validation_step(self, batch: tuple[str, Tensor], batch_idx: int) -> None:
        kind, triples = batch
        if kind == "transductive":
            self._rank_transductive(triples)
            return
        selection = self.search.select(
            self.model, self.data, quick=self.trainer.state.fn == "fit", progress=False
        )
        self.selection = selection
        best = max(selection.curve, key=lambda row: row[selection.metric])
        for name in ("mrr", "hits@1", "hits@3", "hits@10"):
            self.log(f"val/{name}", best[name], batch_size=1, sync_dist=True)
        iterations = float(selection.settings.iterations)
        self.log("val/iterations", iterations, batch_size=1, sync_dist=True)

    def _rank_transductive(self, triples: Tensor) -> None:
        data = self.data
        assert self._transductive is not None
        assert data.train_valid is not None
        if self._known is None:
            self._known = TripleFilter(
                {"train": data.train.triples, "valid": data.train_valid},
                data.train.num_nodes,
                data.num_relations,
            )
        x = self.model.entity_vectors()
        result = evaluate(
            lambda h, r: self.model.score_tails(x, h, r),
            lambda r, t: self.model.score_heads(x, r, t),
            triples,
            self._known,
        )
        for side, counts in result.counts.items():
            self._transductive.update(counts.better, counts.ties, counts.candidates, side)

    def on_validation_epoch_end(self) -> None:
        if self._transductive is not None:
            metrics = self._transductive.compute()
            for name in ("mrr", "hits@10"):
                self.log(f"val/transductive/{name}", metrics[name], sync_dist=True)

    # Test -----------------------------------------------------------------------------------------

    def choose_propagation(self) -> Selection:
        """The full search on validation with the weights as they are."""
        self._choice = self.selection = self.search.select(self.model, self.data, progress=True)
        self.seconds["select"] = self.selection.seconds
        self._valid_is_own = True
        return self.selection

    def test_step(self, batch: Tensor, batch_idx: int) -> None:
        data = self.data
        if self.reselect and data.valid is None:
            raise DataError(f"{data.name}: there are no validation triples to choose on")
        if self._choice is None or self.reselect:
            selection = self.choose_propagation()
        else:
            selection = self.selection = self._choice
        further = {}
        if self.settings["reference"]:
            batch_size = self.trainer.datamodule.batch_size  # type: ignore[attr-defined]
            epochs = self.trainer.max_epochs
            reference = train_reference(
                self,
                data,
                epochs=None if epochs in (None, -1) else epochs,
                steps=self.trainer.max_steps,
                batch_size=batch_size,
            )
            name = f"{type(self.model).__name__} trained on the inference graph (reference)"
            vectors = reference.entity_vectors().unsqueeze(1)
            further[name] = SectionScorer(reference, vectors, [1.0])
        result = rank_completion(
            self.model,
            data,
            selection.settings,
            protocols=self.settings["protocols"],
            selected=selection.on == "validation" and self._valid_is_own,
            seed=self.settings["seed"],
            further=further,
        )
        self.results, self.protocol_boxes = result.rows, result.protocols
        self.seconds |= result.seconds
        full = [entry for entry in self.results if entry["protocol"] == "full"]
        first = full[0]["metrics"] if full else {}
        for key in ("hits@1", "hits@3", "hits@10", "mrr"):
            if key in first:
                self.log(f"test/{key}", first[key], batch_size=len(batch), sync_dist=True)


def _known_answers(
    known: TripleFilter, triples: Tensor, place: Tensor | None, sides: Literal["both", "tail"]
) -> LeftOut:
    """For each side the other true answers of triples, by their place among the candidates."""
    head, relation, tail = triples.unbind(1)
    found: dict[Side, tuple[Tensor, Tensor]] = {}
    answers: list[tuple[Side, Tensor, tuple[Tensor, Tensor]]]
    answers = [("tail", tail, known.tails(head, relation))]
    if sides == "both":
        answers.append(("head", head, known.heads(relation, tail)))
    for side, true, (row, entity) in answers:
        others = entity != true[row]
        if place is not None:
            others &= place[entity] >= 0
        row, entity = row[others], entity[others]
        found[side] = row, entity if place is None else place[entity]
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value
