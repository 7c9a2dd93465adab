"""Ranks held-out triples of the training graph, without propagation."""

from torch import Tensor

from sheafprop.data.inductive_data import InductiveData
from sheafprop.kge import KGEModel
from sheafprop.ranking import RankMetrics, TripleFilter, evaluate


class TransductiveRanking:
    """Ranks batches of transductive validation triples among all training entities.

    Args:
        model (KGEModel): The model.
        data (InductiveData): The data. Its training and validation triples are filtered.
    """

    def __init__(self, model: KGEModel, data: InductiveData):
        assert data.train_valid is not None
        self.model = model
        self.known = TripleFilter(
            {"train": data.train.triples, "valid": data.train_valid},
            data.train.num_nodes,
            data.num_relations,
        )
        #: The metrics so far; computing them adds up the sums of all processes.
        self.metrics = RankMetrics("full").to(model.node_emb.weight.device)

    def update(self, triples: Tensor) -> None:
        """Ranks further triples."""
        x = self.model.entity_vectors()
        result = evaluate(
            lambda h, r: self.model.score_tails(x, h, r),
            lambda r, t: self.model.score_heads(x, r, t),
            triples,
            self.known,
        )
        for side, counts in result.counts.items():
            self.metrics.update(counts.better, counts.ties, counts.candidates, side)
