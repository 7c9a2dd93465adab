from collections.abc import Sequence

import torch
from torch import Tensor

from sheafprop.inductive.episode_model import EpisodeModel


class EpisodeScorer:
    """Scores triples of a graph by an :class:`EpisodeModel` diffused over its observed triples.

    Args:
        model (EpisodeModel): The trained model.
        triples (Tensor): The observed triples, ``[m, 3]``.
        labels (sequence of str): Labels of the entities, from which random sections are drawn.
        seed (int): Seed of the random sections.
    """

    @torch.no_grad()
    def __init__(self, model: EpisodeModel, triples: Tensor, labels: Sequence[str], seed: int = 0):
        self.model = model
        device = model.prototypes.device
        random = model.draw_sections(labels, seed)
        self.graph = model.diffuse(triples.to(device), len(labels), random)

    @torch.no_grad()
    def score_tails(self, head_index: Tensor, rel_type: Tensor) -> Tensor:
        """Scores ``[B, N]`` of all tails for heads ``head_index`` and relations ``rel_type``."""
        return self.model.score(self.graph, head_index, rel_type, "tail")

    @torch.no_grad()
    def score_heads(self, rel_type: Tensor, tail_index: Tensor) -> Tensor:
        """Scores ``[B, N]`` of all heads for relations ``rel_type`` and tails ``tail_index``."""
        return self.model.score(self.graph, tail_index, rel_type, "head")
