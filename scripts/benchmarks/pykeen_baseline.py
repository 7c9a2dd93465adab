"""PyKEEN training and ranking the models of this package, from the same start."""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.transductive_data import TransductiveData
from sheafprop.kge import KGEModel


class PyKEENBaseline:
    """A model of PyKEEN with the parameters of one of ours, and PyKEEN's loops around it.

    Args:
        model (KGEModel): A TransE or RotatE model with Euclidean distances.
        data (TransductiveData): The triples.
        training (dict): The settings of :class:`~sheafprop.training.SheafCompletion`.
    """

    def __init__(self, model: KGEModel, data: TransductiveData, training: dict[str, Any]) -> None:
        from pykeen.losses import CrossEntropyLoss, NSSALoss
        from pykeen.models import RotatE, TransE
        from pykeen.triples import CoreTriplesFactory

        logging.getLogger("pykeen").setLevel(logging.ERROR)
        if model.p != 2.0 or model.squared or model.name not in ("transe", "rotate"):
            raise ValueError(f"PyKEEN is compared for TransE and RotatE with p=2 (got {model})")
        self.data, self.training = data, training
        self.factory = CoreTriplesFactory(
            data.train.triples, num_entities=data.num_nodes, num_relations=data.num_relations
        )
        arguments = training.get("loss_args", {})
        shared: dict[str, Any] = {
            "triples_factory": self.factory,
            "embedding_dim": model.hidden_channels,
            "loss": CrossEntropyLoss()
            if training["loss"] == "cross_entropy"
            else NSSALoss(**arguments),
        }
        if model.name == "transe":
            constrainer = (
                torch.nn.functional.normalize if model.entity_constraint == "unit" else None
            )
            self.model: Any = TransE(scoring_fct_norm=2, entity_constrainer=constrainer, **shared)
        elif model.entity_constraint is not None:
            raise ValueError("PyKEEN's RotatE has no constraint of entities: set it to None")
        else:
            self.model = RotatE(**shared)
        self.load(model)

    @torch.no_grad()
    def load(self, model: KGEModel) -> None:
        """Takes over the parameters of one of our models."""
        entities: Tensor = model.node_emb.weight
        rel_emb: Any = model.rel_emb
        relations: Tensor = rel_emb.weight
        if model.name == "rotate":
            relations = torch.view_as_real(torch.polar(torch.ones_like(relations), relations))
        for representation, values in (
            (self.model.entity_representations[0], entities),
            (self.model.relation_representations[0], relations),
        ):
            (weight,) = representation.parameters()
            weight.copy_(values.reshape(weight.shape))

    def train(self, epochs: int, batch_size: int, after_epoch: Callable[[], None]) -> None:
        """Trains for some epochs: SymmetricLCWA for cross entropy, sLCWA for negatives."""
        from pykeen.training import SLCWATrainingLoop, SymmetricLCWATrainingLoop
        from pykeen.training.callbacks import TrainingCallback

        class Watch(TrainingCallback):
            def post_epoch(self, epoch: int, epoch_loss: float, **kwargs: Any) -> None:
                after_epoch()

        start = {name: value.clone() for name, value in self.model.state_dict().items()}
        # A training loop of PyKEEN begins with a draw of its own.
        self.model.reset_parameters_ = lambda: self.model.load_state_dict(start)
        optimizer = torch.optim.Adam(self.model.parameters(), lr=self.training["lr"])
        shared: dict[str, Any] = {
            "model": self.model,
            "triples_factory": self.factory,
            "optimizer": optimizer,
        }
        more: dict[str, Any] = {}
        if self.training["loss"] == "cross_entropy":
            loop: Any = SymmetricLCWATrainingLoop(**shared)
            more["label_smoothing"] = self.training.get("loss_args", {}).get("label_smoothing", 0.0)
        else:
            loop = SLCWATrainingLoop(
                **shared,
                negative_sampler="basic",
                negative_sampler_kwargs={"num_negs_per_pos": self.training["num_negatives"]},
            )
        loop.train(
            self.factory,
            num_epochs=epochs,
            batch_size=batch_size,
            use_tqdm=False,
            callbacks=Watch(),
            **more,
        )

    def rank(self, batch_size: int) -> tuple[dict[str, Tensor], float]:
        """The filtered realistic ranks of the test triples by side, and the mean reciprocal rank.

        PyKEEN filters the triples that are ranked by itself.
        """
        from pykeen.evaluation import RankBasedEvaluator

        evaluator = RankBasedEvaluator(clear_on_finalize=False)
        result = evaluator.evaluate(
            self.model,
            self.data.test,
            additional_filter_triples=[self.data.train.triples, self.data.valid],
            batch_size=batch_size,
            use_tqdm=False,
        )
        ranks = {
            side: torch.cat([torch.as_tensor(part) for part in evaluator.ranks[side, "realistic"]])
            for side in ("head", "tail")
        }
        return ranks, float(result.get_metric("both.realistic.inverse_harmonic_mean_rank"))
