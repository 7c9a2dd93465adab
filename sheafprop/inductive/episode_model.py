"""Relation parameters that are trained through the diffusion, and the score they give.

Long because parameters, diffusion, score and energy are one definition.
"""

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from sheafprop.checks import check_choice, check_integer
from sheafprop.inductive.answer_counts import AnswerCounts
from sheafprop.inductive.feature_map import Anchors, weigh_by_facts
from sheafprop.kernels.rows import real_rows
from sheafprop.kge.base import KGEModel, Side
from sheafprop.nn.anchors import add_anchors
from sheafprop.nn.sheaf_propagation import SheafPropagation
from sheafprop.nn.start import RelationPrototypes
from sheafprop.sheaf.relation_sheaf import RelationSheaf

_TINY = 1e-12
#: Settings that were fixed in older versions, at these values.
FIXED_BEFORE: dict[str, Any] = {
    "observed": "number",
    "count_weight": 0.0,
    "rank_isolated": True,
}


@dataclass(frozen=True)
class EpisodeSettings:
    r"""How relations are trained through the diffusion, in plain values.

    Args:
        times (tuple of int): Numbers of diffusion steps :math:`k`, ascending; the vectors after
            each are scored together.
        step_size (float): Step size :math:`h` of the diffusion.
        maps (str): What the restriction maps start from: ``"trained"``, those of the trained model,
            or ``"random"``, freshly drawn ones.
        hidden_channels (int, optional): Dimension of random maps. (default: that of the model)
        own_maps (bool): Whether the score has maps of its own, beside those of the diffusion.
        counts (bool): Whether the score also sees on which sides of which relations a candidate
            was observed.
        observed (str): How the score uses the observed answers of the query's relation:
            ``"frequency"``, the Good-Turing estimate of the probability of a candidate, or
            ``"number"``, the number of triples with the candidate.
        count_weight (float): Initial value of the weight :math:`c_q` of this term.
        vector_share (float): Weight of the score of the entities' own vectors beside, where some
            are known from training: 1 where both scores spread alike over the candidates.
        num_random (int): Random sections in use.
        num_training_random (int): Random sections of a training step.
        hidden_share (float): Share of the training triples that a step hides.
        rank_isolated (bool): Whether a step also ranks hidden triples of entities without an
            observed triple. When the model is applied, every entity has one.
        batch_size (int): Hidden triples that a step ranks, at most.
        num_steps (int, optional): Training steps. None to find their number on an entity-disjoint
            part of the training graph. (default: None)
        max_steps (int): The most steps that are looked at to find their number.
        lr (float): Learning rate.
        weight_decay (float): Weight decay.
        walk_steps (int): Training steps of the weights that relations have in the walk of
            proximity, for each query relation; 0 for a walk that ignores relations.
        walk_lr (float): Learning rate of these weights.

    Raises:
        ValueError: If a number is out of its range.
    """

    times: tuple[int, ...] = (3,)
    step_size: float = 0.9
    maps: Literal["trained", "random"] = "trained"
    hidden_channels: int | None = None
    own_maps: bool = False
    counts: bool = False
    observed: Literal["frequency", "number"] = "frequency"
    count_weight: float = 0.5
    vector_share: float = 1.0
    num_random: int = 32
    num_training_random: int = 2
    hidden_share: float = 0.5
    rank_isolated: bool = False
    batch_size: int = 500
    num_steps: int | None = None
    max_steps: int = 400
    lr: float = 0.01
    weight_decay: float = 0.01
    walk_steps: int = 0
    walk_lr: float = 0.15

    def __post_init__(self) -> None:
        object.__setattr__(self, "times", tuple(self.times))
        if not self.times or list(self.times) != sorted(set(self.times)) or self.times[0] < 1:
            raise ValueError(f"'times' must be positive and ascend (got {list(self.times)})")
        check_choice("maps", self.maps, ("trained", "random"))
        check_choice("observed", self.observed, ("frequency", "number"))
        for name in ("num_random", "num_training_random", "batch_size", "max_steps"):
            check_integer(name, getattr(self, name), 1)
        check_integer("walk_steps", self.walk_steps, 0)
        for name in ("hidden_channels", "num_steps"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1)
        if not 0 < self.hidden_share < 1:
            raise ValueError(f"'hidden_share' must lie between 0 and 1 (got {self.hidden_share})")
        for name in ("step_size", "lr", "walk_lr"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"'{name}' must be positive (got {getattr(self, name)})")
        if not math.isfinite(self.count_weight):
            raise ValueError(f"'count_weight' must be finite (got {self.count_weight})")
        for name in ("weight_decay", "vector_share"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"'{name}' must not be negative (got {getattr(self, name)})")
        if self.hidden_channels is not None and self.maps == "trained":
            raise ValueError("'hidden_channels' is for maps='random': trained ones have their own")

    @classmethod
    def from_stored(cls, plain: dict[str, Any]) -> "EpisodeSettings":
        """The settings of :meth:`to_dict`, also of an older version."""
        return cls(**(FIXED_BEFORE | plain))

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values."""
        return asdict(self) | {"times": list(self.times)}


class DiffusedGraph(NamedTuple):
    """The vectors of a graph's entities, and what was observed of them.

    Args:
        prototype (tuple of Tensor): After each number of steps, the section that started at the
            prototypes, ``[N, 1, d]`` of unit length.
        random (tuple of Tensor): The random sections ``[N, s, d]``, of unit length together.
        observed (AnswerCounts): The observed answers.
    """

    prototype: tuple[Tensor, ...]
    random: tuple[Tensor, ...]
    observed: AnswerCounts


class EpisodeModel(torch.nn.Module):
    r"""A score of triples whose entity vectors are diffused and whose parameters are relations'.

    The sheaf of a model gets a weight :math:`w_r = e^{\omega_r}` for each relation. All entities
    of a graph are free: one section starts at the mean, over an entity's triple ends, of learned
    prototypes :math:`m_{r, side}`, the others at normal values. After :math:`k` steps of
    :class:`~sheafprop.nn.SheafPropagation` the prototype row :math:`p` has unit length and the
    random rows :math:`x^1 \dots x^s` have unit length together. For a query from entity :math:`e`
    along :math:`q`, a relation or its inverse, a candidate :math:`v` scores

    .. math::
        f(v) = - \tfrac{a_q}{2} \sum_s E_q(x^s_e, x^s_v) - \tfrac{b_q}{2} E_q(p_e, p_v)
        + \mathrm{Re} \langle u_q, p_v \rangle + c_q \log(N \hat p_q(v))

    with :math:`E_q` the energy of the triple under the sheaf's maps,
    :math:`\| R_t x_t - R_h x_h - b \|^2`, and :math:`\hat p_q(v)` the estimated probability that an
    answer of :math:`q` is :math:`v` (:class:`~sheafprop.inductive.AnswerCounts`); summed over
    ``times``. For unitary maps the first two terms are inner products, up to constants. No
    parameter belongs to an entity, so the score is defined on every graph of these relations.

    With ``observed="number"``, the last term is :math:`c_q \log(1 + n_{v, q})` instead, with
    :math:`n_{v, q}` the number of observed triples of :math:`q` whose answer is :math:`v`.

    With ``counts``, the score also has

    .. math::
        g_q \log(1 + \deg v) + \langle A_q, {\textstyle \sum_c} B_c \log(1 + n_{v, c}) \rangle

    where the sum is over all (relation, side) :math:`c`.

    With ``walk_steps``, the model also has :math:`\log w_{q, r}`: how much relation :math:`r`
    counts in the walk of proximity for queries along :math:`q`
    (:class:`~sheafprop.inductive.LogProximity`). It is no part of the score above.

    Args:
        kge (KGEModel): The model whose maps are taken; it is not changed.
        prototypes (Tensor): What the prototypes start from: mean vectors of the training entities
            at each (relation, side), ``[2R, d]``, tail sides first.
        settings (EpisodeSettings): Everything else.
        seed (int): Seed of random maps.
        gamma (float, optional): The weight, learned from there on, by which features draw the
            prototype section where :meth:`diffuse` is given some; for trained maps.
    """

    #: Columns of the low-rank part of ``counts``.
    RANK = 8

    def __init__(
        self,
        kge: KGEModel,
        prototypes: Tensor,
        settings: EpisodeSettings,
        seed: int = 0,
        gamma: float | None = None,
    ) -> None:
        super().__init__()
        self.settings = settings
        self.num_relations = kge.num_relations
        self.maps = _relations_of(kge, settings, seed)
        self.own_maps = copy.deepcopy(self.maps) if settings.own_maps else None
        rows, number = 2 * kge.num_relations, len(settings.times)
        width = self.maps.node_emb.weight.shape[1]
        if settings.maps == "trained":
            start = real_rows(prototypes.detach()).clone()
        else:
            generator = torch.Generator().manual_seed(seed)
            start = torch.randn(rows, width, generator=generator) / width**0.5
        self.prototypes = torch.nn.Parameter(start.to(self.maps.node_emb.weight))
        self.log_weight = torch.nn.Parameter(torch.zeros(kge.num_relations))
        self.log_random = torch.nn.Parameter(torch.full((number, rows), math.log(8.0 / number)))
        self.log_prototype = torch.nn.Parameter(torch.full((number, rows), math.log(3.2 / number)))
        self.direction = torch.nn.Parameter(torch.zeros(number, rows, width))
        self.count_weight = torch.nn.Parameter(torch.full((rows,), float(settings.count_weight)))
        self.log_walk = None
        if settings.walk_steps:
            self.log_walk = torch.nn.Parameter(torch.zeros(rows, kge.num_relations))
        self.log_gamma = None
        if gamma is not None and settings.maps == "trained":
            self.log_gamma = torch.nn.Parameter(torch.tensor(math.log(gamma)))
        if settings.counts:
            generator = torch.Generator().manual_seed(seed + 1)
            drawn = 0.1 * torch.randn(rows, self.RANK, generator=generator)
            self.degree_weight = torch.nn.Parameter(torch.zeros(rows))
            self.count_query = torch.nn.Parameter(torch.zeros(rows, self.RANK))
            self.count_candidate = torch.nn.Parameter(drawn)

    @classmethod
    def from_stored(cls, kge: KGEModel, stored: dict[str, Any]) -> "EpisodeModel":
        """The model of :meth:`stored`, with the kind and the sizes of ``kge``.

        Raises:
            ValueError: If the parts do not fit each other.
        """
        settings = EpisodeSettings.from_stored(stored["settings"])
        rows = torch.zeros(2 * kge.num_relations, kge.node_emb.weight.shape[1])
        gamma = 1.0 if "log_gamma" in stored["state"] else None
        model = cls(kge, kge.as_vectors(rows), settings, gamma=gamma)
        try:
            model.load_state_dict(stored["state"])
        except RuntimeError as error:
            raise ValueError(f"the parameters of the episodes do not fit: {error}") from error
        return model.eval()

    def stored(self) -> dict[str, Any]:
        """Settings as plain values and tensors by name: all that there is to keep."""
        state = {name: value.detach().cpu() for name, value in self.state_dict().items()}
        return {"settings": self.settings.to_dict(), "state": state}

    def trained_parameters(self) -> dict[str, torch.nn.Parameter]:
        """What episodes change: everything but the (unused) entity table of the maps, and the
        weights of the walk, which are trained on their own."""
        named = dict(self.named_parameters())
        kept = ("node_emb.weight", "log_walk")
        return {name: p for name, p in named.items() if not name.endswith(kept)}

    @property
    def score_maps(self) -> KGEModel:
        """The maps of the score, those of the diffusion unless it has its own."""
        return self.maps if self.own_maps is None else self.own_maps

    def draw_training_sections(self, num_nodes: int, generator: torch.Generator) -> Tensor:
        """Random sections ``[N, s, d]`` of one training step, of unit expected length.

        Args:
            num_nodes (int): Number of entities :math:`N`.
            generator (torch.Generator): Draws them.
        """
        width = self.maps.node_emb.weight.shape[1]
        shape = (num_nodes, self.settings.num_training_random, width)
        drawn = torch.randn(shape, generator=generator) / width**0.5
        return self.maps.as_vectors(drawn.to(self.prototypes))

    def draw_sections(self, labels: Sequence[str], seed: int) -> Tensor:
        """Random sections ``[N, s, d]`` to score with, each entity's from its own label.

        Args:
            labels (sequence of str): The labels of the entities.
            seed (int): The seed.
        """
        drawn = self.maps.draw_entities(labels, seed, self.settings.num_random)
        return drawn.to(self.prototypes.device)

    def weigh_sheaf(self) -> RelationSheaf:
        """The sheaf of the diffusion, whose relations have their weights."""
        return self.maps.sheaf().scale_energy(self.log_weight.exp(), self.maps.hidden_channels)

    def diffuse(
        self, triples: Tensor, num_nodes: int, random: Tensor, anchors: Anchors | None = None
    ) -> DiffusedGraph:
        """Propagates into a graph; differentiable in all parameters of the diffusion.

        Args:
            triples (Tensor): The observed triples ``[m, 3]``.
            num_nodes (int): Number of entities :math:`N`.
            random (Tensor): Random sections ``[N, s, d]``.
            anchors (Anchors, optional): Where features draw the prototype section of entities to,
                for a model with a weight for it. The random sections have frames of their own.
        """
        head, relation, tail = triples.unbind(1)
        edge_index = torch.stack([head, tail])
        sheaf = self.weigh_sheaf()
        every = torch.ones(2 * self.num_relations, device=head.device)
        prototypes = RelationPrototypes(self.maps.as_vectors(self.prototypes), every)
        start, _ = prototypes.start(edge_index, relation, num_nodes)
        layer = SheafPropagation(self.settings.times[-1], step_size=self.settings.step_size)
        x = torch.cat([start.unsqueeze(1), random], dim=1)
        plan = layer.plan(start, edge_index, relation, sheaf)
        drawn = None
        if anchors is not None and self.log_gamma is not None and anchors.nodes.numel():
            x = random
            drawn = self._draw_to(anchors, layer, start, edge_index, relation, sheaf)
        prototype, sections = [], []
        for _, y in layer.trajectory(plan, x, self.settings.times):
            p, y = (y[:, :1], y[:, 1:]) if drawn is None else (next(drawn)[1][:num_nodes], y)
            prototype.append(_unit(p))
            sections.append(_unit(y))
        observed = AnswerCounts(triples, num_nodes, self.num_relations)
        return DiffusedGraph(tuple(prototype), tuple(sections), observed)

    def _draw_to(
        self,
        anchors: Anchors,
        layer: SheafPropagation,
        start: Tensor,
        edge_index: Tensor,
        relation: Tensor,
        sheaf: RelationSheaf,
    ) -> Iterator[tuple[int, Tensor]]:
        """The prototype section ``[N + m, 1, d]`` after each number of steps, drawn to anchors."""
        assert self.log_gamma is not None
        nodes = anchors.nodes.to(start.device)
        count = torch.bincount(edge_index.flatten(), minlength=len(start))[nodes]
        gamma = self.log_gamma.exp()
        graph = add_anchors(
            start,
            edge_index,
            relation,
            sheaf,
            target=anchors.target.to(start),
            weight=weigh_by_facts(torch.ones_like(gamma.detach()), count),
            nodes=nodes,
            scale=gamma,
        )
        plan = layer.plan(*graph)
        return layer.trajectory(plan, graph.x.unsqueeze(1), self.settings.times)

    def score(self, graph: DiffusedGraph, entity: Tensor, relation: Tensor, side: Side) -> Tensor:
        """Scores ``[B, N]`` of all entities at a side of triples whose other end is ``entity``.

        Args:
            graph (DiffusedGraph): From :meth:`diffuse`.
            entity, relation (Tensor): The known ends and the relations, ``[B]``.
            side (str): The side of the candidates, ``"tail"`` or ``"head"``.
        """
        query = relation if side == "tail" else relation + self.num_relations
        unique, place = torch.unique(query, return_inverse=True)
        total = self._observed(graph, unique).index_select(0, place)
        for i, (p, x) in enumerate(zip(graph.prototype, graph.random, strict=True)):
            sections = (
                (self.log_random, x, None),
                (self.log_prototype, p, self.direction[i, query]),
            )
            for strength, rows, direction in sections:
                weight = strength[i, query].exp().unsqueeze(1)
                self._add_section_(total, weight, rows, direction, (entity, relation, side))
        return total

    def _add_section_(
        self,
        total: Tensor,
        weight: Tensor,
        rows: Tensor,
        direction: Tensor | None,
        queries: tuple[Tensor, Tensor, Side],
    ) -> None:
        r"""Adds :math:`-\tfrac{w}{2} E(x_e, x_v) + \langle u, x_v \rangle` to a table of scores, in
        place.

        The table ``[B, N]`` is larger than all else here, and each operation on it takes as long as
        reading it. For isometric maps, with the vector :math:`q` of a query,
        :math:`E = |q|^2 + |x_v|^2 - 2 \langle q, x_v \rangle`, so matrix products do all.

        Args:
            total (Tensor): The table.
            weight (Tensor): :math:`w`, ``[B, 1]``.
            rows (Tensor): The sections :math:`x` of all entities, ``[N, s, d]``.
            direction (Tensor, optional): :math:`u`, real rows ``[B, m]``; None for zero.
            queries (tuple): Entities, relations and the side of the candidates.
        """
        entity, relation, side = queries
        candidates, factor = real_rows(rows).flatten(1), direction
        if self.score_maps.isometric:
            wanted = self.score_maps.query_vectors(rows[entity], relation, side).flatten(1)
            factor = weight * wanted if direction is None else weight * wanted + direction
            of_queries = torch.cat(
                [torch.ones_like(weight), wanted.square().sum(1, keepdim=True)], 1
            )
            square = candidates.square().sum(1, keepdim=True)
            of_candidates = torch.cat([square, torch.ones_like(square)], 1)
            total.addmm_(-weight / 2 * of_queries, of_candidates.T)
        else:
            scores = self.score_maps.score_candidates(rows[entity], relation, rows, side)
            total.addcmul_(weight, scores, value=0.5)
        if factor is not None:
            total.addmm_(factor, candidates.T)

    def energy(self, graph: DiffusedGraph, head: Tensor, relation: Tensor, tail: Tensor) -> Tensor:
        r"""The energy ``[B]`` in the scores of triples, in the mean over both sides.

        .. math::
            \tfrac{1}{2} \sum_q \left[ \tfrac{a_q}{2} \sum_s E(x^s_h, x^s_t)
            + \tfrac{b_q}{2} E(p_h, p_t) \right]

        Args:
            graph (DiffusedGraph): From :meth:`diffuse`.
            head, relation, tail (Tensor): The triples, ``[B]`` each.
        """
        total, inverse = self.log_weight.new_zeros(len(head)), relation + self.num_relations
        for i, (p, x) in enumerate(zip(graph.prototype, graph.random, strict=True)):
            for strength, rows in ((self.log_random, x), (self.log_prototype, p)):
                energy = -self.score_maps.score_triples(rows, head, relation, tail)
                both = strength[i, relation].exp() + strength[i, inverse].exp()
                total = total + both / 4 * energy
        return total

    def _observed(self, graph: DiffusedGraph, query: Tensor) -> Tensor:
        """The part of the score that depends on counts alone, ``[n, N]`` for distinct queries."""
        observed, size = graph.observed, graph.observed.num_nodes
        dtype = self.log_weight.dtype
        if self.settings.observed == "number":
            row, entity, number = observed.of(query)
            table = self.log_weight.new_zeros(len(query), size)
            table[row, entity] = torch.log1p(number.to(dtype))
        else:
            table = observed.log_frequency(query, dtype)
        table = self.count_weight[query].unsqueeze(1) * table
        if not self.settings.counts:
            return table
        number = observed.number.to(dtype)
        degree = number.new_zeros(size).index_add_(0, observed.answer, number)
        seen = torch.log1p(number).unsqueeze(1) * self.count_candidate[observed.query]
        profile = seen.new_zeros(size, self.RANK).index_add(0, observed.answer, seen)
        table = table + self.degree_weight[query].unsqueeze(1) * torch.log1p(degree)
        return table + self.count_query[query] @ profile.T


def _relations_of(kge: KGEModel, settings: EpisodeSettings, seed: int) -> KGEModel:
    """A model of one entity with the relations of another, or fresh ones, in the squared norm."""
    config = kge.config() | {"num_nodes": 1, "p": 2.0, "squared": True}
    if settings.maps == "random" and settings.hidden_channels is not None:
        config["hidden_channels"] = settings.hidden_channels
    with torch.random.fork_rng(devices=[]):  # the constructor draws from the global generator
        maps = type(kge)(**config)
    maps.reset_parameters(seed)
    if settings.maps == "trained":
        own = {k: v for k, v in kge.state_dict().items() if k != "node_emb.weight"}
        maps.load_state_dict(own | {"node_emb.weight": maps.node_emb.weight.detach()})
    maps.node_emb.weight.requires_grad_(False)
    return maps.to(kge.like())


def _unit(x: Tensor) -> Tensor:
    """Rows ``[N, s, d]`` at unit length over all sections; rows of zeros stay."""
    rows = real_rows(x).flatten(1)
    square = rows.square().sum(1)
    length = torch.where(square > _TINY**2, square, 1).sqrt()
    return x / length.view(-1, 1, 1)
