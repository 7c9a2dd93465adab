import torch
from torch import Tensor

from sheafprop.data.finite_rows import check_finite_rows
from sheafprop.data.inductive_data import InductiveData
from sheafprop.data.knowledge_graph import KnowledgeGraph
from sheafprop.kge.base import KGEModel
from sheafprop.nn.prototypes import RelationPrototypes
from sheafprop.nn.relation_weights import residual_variance
from sheafprop.service.free_propagation import FreePropagation
from sheafprop.service.propagation_settings import PropagationSettings
from sheafprop.service.section_scorer import SectionScorer


class InductivePropagation(FreePropagation):
    r"""Carries the vectors of a trained model into an inference graph by sheaf propagation.

    The relations' restriction maps and translations are those the model was trained with; the
    entities known from training (if any) are the boundary. No parameter is trained and none is
    changed. The method is that of Cobb and Gebhart, "Feature Propagation on Knowledge Graphs Using
    Cellular Sheaves".

    Args:
        model (KGEModel): The trained model.
        data (InductiveData): Training graph, observed inference graph and boundary.
        settings (PropagationSettings): How to propagate; its number of iterations is only what
            :meth:`vectors` takes by default.
    """

    @torch.no_grad()
    def __init__(self, model: KGEModel, data: InductiveData, settings: PropagationSettings):
        trained, sheaf = model.entity_vectors(), model.sheaf()
        edge_index, edge_type = _edges(data.inference, trained.device)
        train_index, train_type = _edges(data.train, trained.device)
        boundary_mask = data.boundary_mask.to(trained.device)
        known = data.boundary_source.to(trained.device).clamp_min(0)
        assert data.inference.entities is not None
        self._labels = data.inference.entities.labels
        if data.train.entities is not None:
            check_finite_rows(trained, data.train.entities.labels, "trained vectors")
        super().__init__(
            model,
            settings,
            torch.where(boundary_mask.unsqueeze(1), trained[known], 0).unsqueeze(1),
            boundary_mask,
            edge_index,
            edge_type,
            sheaf=sheaf,
            free_labels=data.inference.entities.labels_of((~boundary_mask).nonzero()),
            prototypes=RelationPrototypes.from_triples(
                trained, train_index, train_type, data.num_relations
            ),
            variance=residual_variance(trained, train_index, train_type, sheaf)
            if settings.relation_weights
            else None,
        )

    def scorer(self, x: Tensor) -> SectionScorer:
        """Scores triples of the inference graph under vectors ``x`` of :meth:`trajectory`."""
        return SectionScorer(self.model, x, self.settings.section_weight, self._labels)


def _edges(graph: KnowledgeGraph, device: torch.device) -> tuple[Tensor, Tensor]:
    triples = graph.triples.to(device)
    return triples[:, [0, 2]].T, triples[:, 1]
