"""The loss of a batch of training triples."""

from typing import Any, Literal

import torch
from torch import Tensor

from sheafprop.checks import check_choice, check_integer
from sheafprop.kge import KGEModel, NegativeSampler, build_loss
from sheafprop.kge.base import LeftOut, Side
from sheafprop.ranking import TripleFilter
from sheafprop.seeding import combine_keys, seeded_integers
from sheafprop.training.budget import count_candidates


class BatchLoss:
    """Computes the loss of a batch of triples against corrupted triples or candidates.

    Args:
        loss (str): ``"cross_entropy"`` over all entities, ``"nssa"`` or ``"margin_ranking"``.
        loss_args (dict, optional): Arguments of the loss.
        sides (str): Whether the cross entropy predicts ``"both"`` ends or only the ``"tail"``.
        num_candidates (int or str, optional): Number of candidates sampled per batch for the cross
            entropy, in addition to the entities of the batch; None for all entities, ``"auto"`` for
            :func:`count_candidates`.
        leave_out_known (bool): Whether the cross entropy excludes other true answers.
        num_negatives (int): Number of negatives per triple, for losses that use them.
        seed (int): Seed of candidates and negatives.

    Raises:
        ValueError: If an argument is out of range, or does not apply to the loss.
    """

    def __init__(
        self,
        loss: str = "cross_entropy",
        loss_args: dict[str, Any] | None = None,
        *,
        sides: Literal["both", "tail"] = "both",
        num_candidates: int | Literal["auto"] | None = None,
        leave_out_known: bool = False,
        num_negatives: int = 32,
        seed: int = 0,
    ):
        check_choice("sides", sides, ("both", "tail"))
        check_integer("num_negatives", num_negatives, 1)
        if num_candidates not in (None, "auto"):
            check_integer("num_candidates", num_candidates, 1)
        self.loss = build_loss(loss, **(loss_args or {}))
        if leave_out_known and self.loss.needs_negatives:
            raise ValueError(f"'leave_out_known' applies only to the cross entropy (got '{loss}')")
        self.sides, self.num_candidates = sides, num_candidates
        self.num_negatives, self.seed = num_negatives, seed

    def __call__(
        self,
        model: KGEModel,
        triples: Tensor,
        number: Tensor,
        epoch: int,
        known: TripleFilter | None = None,
        num_triples: int | None = None,
    ) -> Tensor:
        """Returns the loss of a batch.

        Args:
            model (KGEModel): The model.
            triples (Tensor): Head, relation, tail, int64 ``[B, 3]``.
            number (Tensor): The indices of the triples in the training set, ``[B]``. Random draws
                depend on them and on the epoch.
            epoch (int): The epoch.
            known (TripleFilter, optional): True triples, excluded from the candidates.
            num_triples (int, optional): The size of the training set, which ``"auto"`` depends on.
                (default: that of the batch)
        """
        if not self.loss.needs_negatives:
            ids = self._draw_candidates(model.num_nodes, triples, number, epoch, num_triples)
            excluded = None if known is None else _known_answers(known, triples, ids, self.sides)
            if ids is None and model.node_emb.sparse:
                ids = torch.arange(model.num_nodes, device=triples.device)
            if ids is not None:
                triples = _renumber(ids, triples)
            x = model.entity_vectors(ids)
            return model.loss_over_entities(self.loss, x, triples, self.sides, excluded)
        sampler = NegativeSampler(model.num_nodes, self.num_negatives, seed=self.seed)
        entity, at_head = sampler.replacements(triples, number, epoch)
        # The triple is scored together with its negatives, as its tail replaced by itself.
        entity = torch.cat([triples[:, 2:], entity], dim=1)
        at_head = torch.nn.functional.pad(at_head, (1, 0))
        ids = None
        if model.node_emb.sparse:
            ids, place = torch.cat([triples[:, :1], entity], dim=1).unique(return_inverse=True)
            triples, entity = _renumber(ids, triples), place[:, 1:]
        scores = model.score_replaced(model.entity_vectors(ids), triples, entity, at_head)
        return self.loss(scores[:, 0], scores[:, 1:])

    def _draw_candidates(
        self,
        num_nodes: int,
        triples: Tensor,
        number: Tensor,
        epoch: int,
        num_triples: int | None = None,
    ) -> Tensor | None:
        """Returns the sorted entities of a batch and of a sample, or None for all entities."""
        wanted = self.num_candidates
        if isinstance(wanted, str):
            size = len(triples) if num_triples is None else num_triples
            wanted = count_candidates(num_nodes, size)
        if wanted is None or wanted >= num_nodes:
            return None
        key = combine_keys(epoch, number[:1].cpu().numpy())
        drawn = torch.from_numpy(seeded_integers(key, wanted, num_nodes, self.seed)).flatten()
        return torch.cat([triples[:, [0, 2]].flatten(), drawn.to(triples.device)]).unique()


def _renumber(ids: Tensor, triples: Tensor) -> Tensor:
    """Renumbers the entities of triples by their positions in sorted ids."""
    head, tail = torch.searchsorted(ids, triples[:, [0, 2]]).unbind(1)
    return torch.stack([head, triples[:, 1], tail], dim=1)


def _known_answers(
    known: TripleFilter, triples: Tensor, ids: Tensor | None, sides: Literal["both", "tail"]
) -> LeftOut:
    """Returns the other true answers of each side, by their positions among the candidates."""
    head, relation, tail = triples.unbind(1)
    found: dict[Side, tuple[Tensor, Tensor]] = {}
    answers: list[tuple[Side, Tensor, tuple[Tensor, Tensor]]]
    answers = [("tail", tail, known.tails(head, relation))]
    if sides == "both":
        answers.append(("head", head, known.heads(relation, tail)))
    for side, true, (row, entity) in answers:
        others = entity != true[row]
        if ids is not None:
            place = torch.searchsorted(ids, entity).clamp_(max=len(ids) - 1)
            others &= ids[place] == entity
            entity = place
        found[side] = row[others], entity[others]
    return found
