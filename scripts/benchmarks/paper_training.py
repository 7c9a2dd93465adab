"""Training as the paper's released code does it, through PyKEEN's loops.

The cross entropy goes over pairs of a head and a relation, each once an epoch, with the mean over
all its tails as the target. TransR projects, clamps what it has projected to the unit ball, and
takes the squared distance (PyKEEN before 1.11). The Hits@10 that stops training is that of
triples which are given.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.training import rank_triples
from sheafprop.kernels.mapped_rows import groups
from sheafprop.kernels.rows import real_rows
from sheafprop.kge import KGEModel
from sheafprop.kge.distance import grouped_distance, pairwise_distance
from sheafprop.kge.transr import TransR
from sheafprop.ranking import TripleFilter
from sheafprop.sheaf.relation_sheaf import Side

#: Hits@10 has to grow by this share to count as better.
RELATIVE_DELTA = 0.002


def clamp_rows(rows: Tensor) -> Tensor:
    """Rows scaled down to length one where they are longer."""
    return rows / torch.linalg.vector_norm(rows, dim=-1, keepdim=True).clamp(min=1.0)


class ProjectedTransR(TransR):
    """TransR with projected entities of length at most one, which no linear map gives."""

    def _map(self, rows: Tensor, rel_type: Tensor, side: Side) -> Tensor:
        return clamp_rows(super()._map(rows, rel_type, side))

    def _distances(self, known: Tensor, rel_type: Tensor, rows: Tensor, side: Side) -> Tensor:
        def distance(queries: Tensor, candidates: Tensor) -> Tensor:
            return pairwise_distance(queries, candidates, p=self.p, squared=self.squared, block=1)

        sheaf, (order, relations, counts) = self._score_sheaf(), groups(rel_type)
        return grouped_distance(
            distance,
            lambda rows, maps: clamp_rows(real_rows(sheaf.apply_map(rows, maps))),
            order.split(counts),
            self._query(known, rel_type, side),
            rows,
            sheaf.map_parameters(side, relations),
        )


@torch.no_grad()
def start_maps_at_random_(model: TransR, seed: int) -> None:
    """Draws the maps as PyKEEN does: uniform in all entries, and small."""
    count, width, height = model.rel_map.shape
    bound = math.sqrt(6 / (width * (height + count)))
    generator = torch.Generator().manual_seed(seed)
    draw = torch.rand(model.rel_map.shape, generator=generator, dtype=torch.float64)
    model.rel_map.copy_(bound * (2 * draw - 1))


class PairBatches:
    """Shuffled batches of the pairs of head and relation, each with the mean over its tails.

    Args:
        triples (Tensor): The training triples.
        merged (bool): Whether a pair occurs once, with all its tails; else once for each triple.
        num_nodes (int): Number of entities.
        batch_size (int): Pairs in a batch.
        seed (int): Seed of the order.
    """

    def __init__(
        self, triples: Tensor, num_nodes: int, batch_size: int, seed: int, *, merged: bool = True
    ) -> None:
        self.pairs, pair = triples[:, :2], torch.arange(len(triples))
        if merged:
            self.pairs, pair = torch.unique(self.pairs, dim=0, return_inverse=True)
        order = pair.argsort()
        self.tails = triples[order, 2]
        self.counts = torch.bincount(pair, minlength=len(self.pairs))
        self.starts = self.counts.cumsum(0) - self.counts
        self.num_nodes, self.batch_size = num_nodes, batch_size
        self.generator = torch.Generator().manual_seed(seed)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.pairs), generator=self.generator)
        for batch in order.split(self.batch_size):
            yield self.pairs[batch], self.targets(batch)

    def targets(self, batch: Tensor) -> Tensor:
        """The distribution over all entities that each pair should have, ``[B, N]``."""
        count = self.counts[batch]
        row = torch.repeat_interleave(count)
        within = torch.arange(len(row)) - (count.cumsum(0) - count)[row]
        target = torch.zeros(len(batch), self.num_nodes)
        target[row, self.tails[self.starts[batch][row] + within]] = 1 / count[row].float()
        return target


def train_on_pairs(
    model: KGEModel,
    triples: Tensor,
    watched: Tensor,
    *,
    batch_size: int,
    lr: float,
    label_smoothing: float,
    max_epochs: int,
    check_every: int,
    seed: int,
    pairs: bool = True,
    unit_relations: bool = False,
    clamped_relations: bool = False,
) -> dict[str, Any]:
    """Trains in place; weights go back to the best ones only where training stopped early.

    Args:
        model (KGEModel): The model, at its start.
        triples (Tensor): What to train on.
        watched (Tensor): The triples whose Hits@10 stops training after two checks without growth.
        batch_size (int): Pairs in a batch.
        lr (float): Learning rate of Adam.
        label_smoothing (float): Of the cross entropy.
        max_epochs (int): Epochs at most.
        check_every (int): Epochs between checks.
        seed (int): Seed of the batches.
        pairs (bool): Whether a pair of head and relation is met once, with all its tails.
        unit_relations (bool): Whether translations are kept at length one.
        clamped_relations (bool): Whether they are kept at length one at most.

    Returns:
        The epochs that were trained, the best of them, and its Hits@10.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    batches = PairBatches(triples, model.num_nodes, batch_size, seed, merged=pairs)
    known = TripleFilter(
        torch.cat([triples, watched]).unique(dim=0), model.num_nodes, model.num_relations
    )
    best, waited, epoch = (-1.0, 0), 0, 0
    weights: dict[str, Tensor] = {}
    translations: Tensor = model.rel_emb.weight  # type: ignore[union-attr, assignment]
    for epoch in range(1, max_epochs + 1):
        for queries, target in batches:
            scores = model.score_tails(model.entity_vectors(), queries[:, 0], queries[:, 1])
            optimizer.zero_grad()
            cross_entropy(scores, target, label_smoothing=label_smoothing).backward()
            optimizer.step()
            model.constrain_entities_()
            with torch.no_grad():
                if unit_relations:
                    translations.copy_(torch.nn.functional.normalize(translations, dim=1))
                elif clamped_relations:
                    translations.copy_(clamp_rows(translations))
        if epoch % check_every:
            continue
        hits = rank_triples(model, watched, known).metrics("full")["hits@10"]
        if hits > best[0] and not math.isclose(hits, best[0], rel_tol=RELATIVE_DELTA):
            best, waited = (hits, epoch), 0
            weights = {name: value.clone() for name, value in model.state_dict().items()}
        else:
            waited += 1
        if waited == 2:
            model.load_state_dict(weights)
            break
    model.eval()
    return {"epochs": epoch, "best_epoch": best[1], "watched_hits@10": best[0]}
