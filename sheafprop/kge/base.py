"""The one class of knowledge graph embedding models.

Long because all that a model does is documented here, once.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sheafprop.checks import check_integer
from sheafprop.errors import DataError
from sheafprop.kernels.backend import all_finite
from sheafprop.kernels.mapped_rows import groups
from sheafprop.kernels.pairwise_squares import BLOCK_ELEMENTS
from sheafprop.kernels.rows import full_precision, promote, real_rows, scale_rows
from sheafprop.kge.closed_forms import Facts
from sheafprop.kge.distance import grouped_distance, pairwise_distance, row_distance
from sheafprop.kge.distance_cross_entropy import distance_cross_entropy
from sheafprop.kge.losses import CrossEntropyLoss
from sheafprop.kge.replaced_distance import replaced_distance
from sheafprop.seeding import label_keys, seeded_normal, seeded_uniform
from sheafprop.sheaf import RelationSheaf
from sheafprop.sheaf.relation_sheaf import SIDES, Side

EntityConstraint = Literal["unit", "ball"]
# Triples and entities at a side, int64 [p] each; triples in ascending order.
LeftOut = Mapping[Side, tuple[Tensor, Tensor]]


# Rows of the entity table that are measured at once.
_ROWS = 2**16
# Lengths of unit rows that were stored in half precision differ from one by less than this.
_UNIT_TOLERANCE = 1e-3
# Rows of the entity table that are drawn at once, a multiple of 16.
_DRAWN_ROWS = 2**16


class TableSummary(NamedTuple):
    """What scaling to the length of the trained rows needs to know of them.

    Args:
        mean_length (float): The mean length of the rows.
        is_unit (bool): Whether all have length one.
    """

    mean_length: float
    is_unit: bool

    @classmethod
    def of(cls, parts: Iterable[Tensor]) -> "TableSummary":
        """The summary of the rows of a table, which come in parts ``[n, m]``."""
        total, number, is_unit = 0.0, 0, True
        for rows in parts:
            length = torch.linalg.vector_norm(promote(rows), dim=-1)
            total += float(length.double().sum())
            number += len(length)
            is_unit = is_unit and bool(((length - 1).abs() <= _UNIT_TOLERANCE).all())
        return cls(total / max(1, number), is_unit)


class KGEModel(torch.nn.Module, ABC):
    r"""Abstract base class of knowledge graph embedding models whose relations define a sheaf.

    The score of a triple is the negative norm of its residual,

    .. math::
        f(h, r, t) = - {\| \mathbf{R}^t_r \mathbf{x}_t - \mathbf{R}^h_r \mathbf{x}_h
        - \mathbf{b}_r \|}_p

    where :math:`\mathbf{R}^h_r, \mathbf{R}^t_r` are the restriction maps of the relation and
    :math:`\mathbf{b}_r` is its translation, as :meth:`sheaf` returns them. The score is higher for
    better triples, and its gradient at a residual of zero is zero.
    Vectors of several sections are scored by the sum of the scores of their sections.

    All parameters are real, including those of models with complex vectors. Scores are computed at
    least in single precision, also under autocast.

    Args:
        num_nodes (int): The number of nodes/entities in the graph.
        num_relations (int): The number of relations in the graph.
        hidden_channels (int): The dimension :math:`d` of the vertex stalks, in complex numbers for
            models with complex vectors.
        p (float, optional): The exponent of the norm, at least 1. (default: :obj:`2.0`)
        squared (bool, optional): If set to :obj:`True`, scores are minus the squared norm.
            (default: :obj:`False`)
        entity_constraint (str, optional): The constraint that :meth:`constrain_entities_` applies
            to the rows of the entity table: Euclidean norm one (:obj:`"unit"`), at most one
            (:obj:`"ball"`), or none (:obj:`None`). Relations and vectors that were not trained here
            are not constrained. (default: :obj:`"unit"`)

    Raises:
        ValueError: If a number is out of its range or the constraint is unknown.
    """

    #: The name of the model in :obj:`KGE_REGISTRY`.
    name: ClassVar[str]
    #: Whether the vectors are complex, and the entity table holds pairs of reals.
    is_complex: ClassVar[bool] = False
    #: Neighbouring columns of the vectors that are one number, whose modulus enters the norm.
    block: ClassVar[int] = 1
    #: Whether all maps keep lengths, so that candidates are compared with as they are and one moved
    #: vector stands for a query.
    isometric: ClassVar[bool] = False
    #: The summary of an entity table that is kept elsewhere; None where it is in the model.
    summarize_table: Callable[[], TableSummary] | None = None
    #: How entities start: Gaussian, or uniform in a cube. Both are scaled by the width.
    _start: ClassVar[Literal["normal", "uniform"]] = "normal"

    def __init__(
        self,
        num_nodes: int,
        num_relations: int,
        hidden_channels: int,
        *,
        p: float = 2.0,
        squared: bool = False,
        entity_constraint: EntityConstraint | None = "unit",
    ) -> None:
        super().__init__()
        for label, value in (
            ("num_nodes", num_nodes),
            ("num_relations", num_relations),
            ("hidden_channels", hidden_channels),
        ):
            check_integer(label, value, 1)
        if not p >= 1.0:
            raise ValueError(f"'p' needs to be at least 1 to be a norm (got {p})")
        if entity_constraint not in ("unit", "ball", None):
            raise ValueError(
                "'entity_constraint' needs to be 'unit', 'ball' or None "
                f"(got {entity_constraint!r})"
            )
        self.num_nodes = num_nodes
        self.num_relations = num_relations
        self.hidden_channels = hidden_channels
        #: Dimension :math:`k` of the edge stalks.
        self.edge_channels = hidden_channels
        self.p = float(p)
        self.squared = squared
        self.entity_constraint = entity_constraint
        width = 2 * hidden_channels if self.is_complex else hidden_channels
        self.node_emb = torch.nn.Embedding(num_nodes, width)
        self._make_relations()

    def _make_relations(self) -> None:
        """Makes the relation parameters, and draws all parameters."""

    # Parameters ----------------------------------------------------------------------------------

    def reset_parameters(self, seed: int | None = None) -> None:
        r"""Resets all learnable parameters of the module.

        Args:
            seed (int, optional): Seed of a new random generator, used instead of PyTorch's global
                one. (default: :obj:`None`)
        """
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        draw = torch.randn if self._start == "normal" else torch.rand
        # The numbers of one draw of the whole table, which would take four times its memory: torch
        # draws 16 at a time, so blocks hold multiples of 16, and the last one no less.
        table = self.node_emb.weight.detach()
        count = self.num_nodes
        bounds = [*range(0, max(1, count - _DRAWN_ROWS), _DRAWN_ROWS), count]
        own = getattr(self.node_emb, "first_row", 0)  # of a table that processes share
        for first, end in pairwise(bounds):
            start = draw((end - first, table.size(1)), generator=generator, dtype=torch.float64)
            low, high = max(first, own), min(end, own + len(table))
            if low < high:
                part = self._scale_start(start[low - first : high - first])
                fill_(table[low - own : high - own], part)
        self._reset_relations(generator)
        self.constrain_entities_()

    @abstractmethod
    def _reset_relations(self, generator: torch.Generator | None) -> None:
        """Draws the relation parameters."""

    def _scale_start(self, start: Tensor) -> Tensor:
        scale = math.sqrt(start.size(-1))
        return start / scale if self._start == "normal" else (12 * start - 6) / scale

    @torch.no_grad()
    def constrain_entities_(self, index: Tensor | None = None) -> None:
        r"""Projects the rows of the entity table onto the unit sphere or ball, in place.

        It is called after every optimizer step. Rows of zeros and relations do not change.

        Args:
            index (torch.Tensor, optional): The rows to project, without duplicates. (default: all)
        """
        if self.entity_constraint is None:
            return
        table = self.node_emb.weight
        if index is None:
            table.div_(self._excess(table))
        else:
            rows = table.index_select(0, index)
            table.index_copy_(0, index, rows.div_(self._excess(rows)))

    def _excess(self, rows: Tensor) -> Tensor:
        """What rows are divided by to fulfil the constraint."""
        length = torch.linalg.vector_norm(promote(rows), dim=-1, keepdim=True)
        keep = length == 0 if self.entity_constraint == "unit" else length <= 1
        return length.masked_fill_(keep, 1.0)

    def _constrain(self, rows: Tensor) -> Tensor:
        return rows if self.entity_constraint is None else rows / self._excess(rows)

    # Vectors -------------------------------------------------------------------------------------

    def entity_vectors(self, index: Tensor | None = None) -> Tensor:
        r"""Returns the trained vectors of all entities, of shape :math:`(N, d)`.

        Args:
            index (torch.Tensor, optional): The :math:`n` entities to return instead of all. If
                :obj:`node_emb` is sparse, the gradient then has only their rows.
        """
        rows = self.node_emb.weight if index is None else self.node_emb(index)
        return self.as_vectors(promote(rows))

    @torch.no_grad()
    def draw_entities(
        self, keys: Sequence[str] | np.ndarray, seed: int, num_sections: int = 1
    ) -> Tensor:
        r"""Draws initial vectors of new entities, seeded by their labels.

        The distribution is that of the initialization of the model, after its constraint; without a
        model, use :func:`sheafprop.nn.draw_sections`. The vectors of an entity depend only on its
        label and the seed, and its first sections do not depend on the number of sections.

        Args:
            keys (sequence of str or numpy.ndarray): The labels of the entities, or their
                :obj:`uint64` keys from ``sheafprop.seeding.label_keys``.
            seed (int): The seed.
            num_sections (int, optional): The number :math:`s` of independent draws for each entity.
                (default: :obj:`1`)

        Shapes:
            - **output:** :math:`(n, s, d)`

        Raises:
            ValueError: If :obj:`num_sections` is not positive.
        """
        check_integer("num_sections", num_sections, 1)
        if not (isinstance(keys, np.ndarray) and keys.dtype == np.uint64):
            keys = label_keys(list(keys))
        width = self.node_emb.weight.size(1)
        draw = seeded_normal if self._start == "normal" else seeded_uniform
        start = torch.from_numpy(draw(keys, num_sections * width, seed))
        rows = self._constrain(self._scale_start(start.view(-1, num_sections, width)))
        return self.as_vectors(rows.to(promote(self.like())))

    def rescale_entities(self, x: Tensor) -> Tensor:
        r"""Scales each row of :obj:`x` (of each section) to the norm used in training,
        :meth:`trained_length`.

        Rows of zeros do not change.

        Shapes:
            - **input:** :math:`(N, d)` or :math:`(N, s, d)`
            - **output:** the shape of the input
        """
        return scale_rows(x, self.trained_length())

    @torch.no_grad()
    def trained_length(self) -> float:
        r"""Returns the norm of entities in training: one if the trained rows have unit norm
        (:meth:`has_unit_rows`), otherwise their mean norm.
        """
        if self.entity_constraint == "unit":
            return 1.0
        summary = self._summary()
        is_unit = self.entity_constraint is None and summary.is_unit
        return 1.0 if is_unit else summary.mean_length

    @torch.no_grad()
    def has_unit_rows(self) -> bool:
        r"""Returns whether the trained entities have unit norm: by the constraint or, without one
        (as in imported models), by the values of the rows.
        """
        if self.entity_constraint is not None:
            return self.entity_constraint == "unit"
        return self._summary().is_unit

    def _summary(self) -> TableSummary:
        if self.summarize_table is not None:
            return self.summarize_table()
        return TableSummary.of(self.node_emb.weight.detach().split(_ROWS))

    def like(self) -> Tensor:
        """Returns an empty tensor with the dtype and device of the entity table."""
        weight = self.node_emb.weight.detach()
        return torch.empty(0, dtype=weight.dtype) if weight.is_meta else weight.new_empty(0)

    @abstractmethod
    def sheaf(self) -> RelationSheaf:
        r"""Returns the sheaf defined by the relations, differentiable in their parameters."""

    def as_vectors(self, rows: Tensor) -> Tensor:
        """Converts real ``rows`` of the entity table to vectors: pairs become complex numbers."""
        if not self.is_complex:
            return rows
        return torch.view_as_complex(rows.unflatten(-1, (-1, 2)))

    def _rows(self, x: Tensor) -> Tensor:
        """Vectors as real rows of shape [N, s, m]."""
        if x.is_complex() != self.is_complex:
            expected = "complex" if self.is_complex else "real"
            raise ValueError(f"{type(self).__name__} scores {expected} vectors (got {x.dtype})")
        if x.dim() not in (2, 3) or x.size(-1) != self.hidden_channels:
            raise ValueError(
                f"'x' needs shape [N, {self.hidden_channels}] or [N, s, {self.hidden_channels}] "
                f"(got {list(x.shape)})"
            )
        x = real_rows(promote(x))
        return x.unsqueeze(1) if x.dim() == 2 else x

    # Scores --------------------------------------------------------------------------------------

    def forward(self, head_index: Tensor, rel_type: Tensor, tail_index: Tensor) -> Tensor:
        r"""Returns the scores of the given triples under the trained vectors.

        Args:
            head_index (torch.Tensor): The head indices.
            rel_type (torch.Tensor): The relation types.
            tail_index (torch.Tensor): The tail indices.
        """
        return self.score_triples(self.entity_vectors(), head_index, rel_type, tail_index)

    def score_triples(
        self, x: Tensor, head_index: Tensor, rel_type: Tensor, tail_index: Tensor
    ) -> Tensor:
        r"""Returns the scores of the given triples under the vectors :obj:`x`.

        Args:
            x (torch.Tensor): The vectors of the entities.
            head_index (torch.Tensor): The head indices, as rows of :obj:`x`.
            rel_type (torch.Tensor): The relation types.
            tail_index (torch.Tensor): The tail indices, as rows of :obj:`x`.

        Shapes:
            - **x:** :math:`(N, d)` or :math:`(N, s, d)`
            - **indices:** :math:`(B)`, or any shapes that broadcast against each other
            - **output:** the shape of the broadcast indices
        """
        rows = self._rows(x)
        head_index, rel_type, tail_index = torch.broadcast_tensors(head_index, rel_type, tail_index)
        heads = rows.index_select(0, head_index.reshape(-1))
        tails = rows.index_select(0, tail_index.reshape(-1))
        with full_precision(x):
            residual = self._residual(heads, rel_type.reshape(-1), tails)
            distance = row_distance(residual, **self._norm())
        return -distance.sum(1).view(head_index.shape)

    def score_tails(self, x: Tensor, head_index: Tensor, rel_type: Tensor) -> Tensor:
        r"""Returns the scores of :math:`(h, r, \cdot)` for all tails.

        Candidates are processed in blocks, so that intermediate results take at most 64 MiB or the
        size of the output, whichever is larger.

        Args:
            x (torch.Tensor): The vectors of the entities.
            head_index (torch.Tensor): The head indices, as rows of :obj:`x`.
            rel_type (torch.Tensor): The relation types.

        Shapes:
            - **x:** :math:`(N, d)` or :math:`(N, s, d)`
            - **head_index, rel_type:** :math:`(B)`
            - **output:** :math:`(B, N)`
        """
        rows = self._rows(x)
        return self._score_rows(rows.index_select(0, head_index), rel_type, rows, "tail")

    def score_heads(self, x: Tensor, rel_type: Tensor, tail_index: Tensor) -> Tensor:
        r"""Returns the scores of :math:`(\cdot, r, t)` for all heads.

        Args:
            x (torch.Tensor): The vectors of the entities.
            rel_type (torch.Tensor): The relation types.
            tail_index (torch.Tensor): The tail indices, as rows of :obj:`x`.

        Shapes:
            - **x:** :math:`(N, d)` or :math:`(N, s, d)`
            - **rel_type, tail_index:** :math:`(B)`
            - **output:** :math:`(B, N)`
        """
        rows = self._rows(x)
        return self._score_rows(rows.index_select(0, tail_index), rel_type, rows, "head")

    def score_candidates(
        self, known: Tensor, rel_type: Tensor, candidates: Tensor, side: Side
    ) -> Tensor:
        r"""Returns the scores of candidate vectors on one side of triples with known vectors on the
        other.

        Args:
            known (torch.Tensor): The vectors at the other side, one for each query.
            rel_type (torch.Tensor): The relation types.
            candidates (torch.Tensor): The vectors to score.
            side (str): The side of the candidates, :obj:`"tail"` or :obj:`"head"`.

        Shapes:
            - **known:** :math:`(B, d)` or :math:`(B, s, d)`
            - **candidates:** :math:`(C, d)` or :math:`(C, s, d)`
            - **output:** :math:`(B, C)`
        """
        return self._score_rows(self._rows(known), rel_type, self._rows(candidates), side)

    def query_vectors(self, known: Tensor, rel_type: Tensor, side: Side) -> Tensor:
        r"""Returns the vectors :math:`q` for which the score of a triple is
        :math:`-\| q - v \|_p` (or its square), with :math:`v` the vector of its candidate.

        Only maps that keep distances, those of an :attr:`isometric` model, have such vectors.

        Args:
            known (torch.Tensor): The vectors at the other side, one for each query.
            rel_type (torch.Tensor): The relation types.
            side (str): The side of the candidates, :obj:`"tail"` or :obj:`"head"`.

        Shapes:
            - **known:** :math:`(B, d)` or :math:`(B, s, d)`
            - **output:** real rows of shape :math:`(B, s, m)` (:math:`m = 2d` where vectors are
              complex, else :math:`d`), with :math:`s = 1` where there are no sections

        Raises:
            ValueError: If the maps of the model do not keep distances.
        """
        if not self.isometric:
            raise ValueError(f"the maps of {type(self).__name__} do not keep distances")
        known = self._rows(known)
        with full_precision(known):
            return self._query(known, rel_type, side)

    # Training ------------------------------------------------------------------------------------

    def loss_over_entities(
        self,
        loss: torch.nn.Module,
        x: Tensor,
        triples: Tensor,
        sides: Literal["both", "tail"] = "both",
        left_out: LeftOut | None = None,
    ) -> Tensor:
        r"""Returns the mean of the loss of the true tails among all tails and of the true heads
        among all heads.

        Args:
            loss (torch.nn.Module): A loss over all entities, of scores :math:`(B, N)` and true
                entities :math:`(B)`.
            x (torch.Tensor): The vectors of the entities.
            triples (torch.Tensor): The triples :math:`(h, r, t)`, of shape :math:`(B, 3)`.
            sides (str, optional): :obj:`"both"`, or :obj:`"tail"` for tails only. (default:
                :obj:`"both"`)
            left_out (dict, optional): For each side, pairs of triples and entities to exclude, as
                in :class:`CrossEntropyLoss`. (default: :obj:`None`)
        """
        chosen: tuple[Side, ...] = ("tail", "head") if sides == "both" else ("tail",)
        if self.p == 2.0 and x.dim() == 2 and isinstance(loss, CrossEntropyLoss):
            one = triples[:1, 1]
            if self.isometric or (
                not self.is_complex and self._score_sheaf().map_parameters("tail", one).dim() == 3
            ):
                return self._distance_loss(loss, x, triples, chosen, left_out)
        head_index, rel_type, tail_index = triples.unbind(1)
        options = {side: {"left_out": pairs} for side, pairs in (left_out or {}).items()}
        scores = self.score_tails(x, head_index, rel_type)
        tails = loss(scores, tail_index, **options.get("tail", {}))
        if sides == "tail":
            return tails
        scores = self.score_heads(x, rel_type, tail_index)
        return (tails + loss(scores, head_index, **options.get("head", {}))) / 2

    def _distance_loss(
        self,
        loss: CrossEntropyLoss,
        x: Tensor,
        triples: Tensor,
        sides: tuple[Side, ...],
        left_out: LeftOut | None,
    ) -> Tensor:
        """The loss from distances, of which no array of queries x candidates is kept."""
        place: dict[Side, int] = {"tail": 2, "head": 0}
        rows = self._rows(x)
        settings: dict[str, Any] = {
            "squared": self.squared,
            "label_smoothing": loss.label_smoothing,
            "scale": loss.scale,
        }
        if self.isometric:
            # Both sides at once: the queries for heads follow those for tails.
            if left_out is not None:
                ends = enumerate(left_out[side] for side in sides)
                found = [(i + n * len(triples), j) for n, (i, j) in ends]
                settings["left_out"] = tuple(map(torch.cat, zip(*found, strict=True)))
            queries = torch.cat([self._queries_of(rows, triples, side) for side in sides])
            target = torch.cat([triples[:, place[side]] for side in sides])
            return distance_cross_entropy(queries.squeeze(1), rows.squeeze(1), target, **settings)
        order = triples[:, 1].argsort(stable=True)
        triples = triples[order]
        relations, group = triples[:, 1].unique_consecutive(return_inverse=True)
        sheaf, losses = self._score_sheaf(), []
        for side in sides:
            if left_out is not None:
                moved, pairs = order.argsort()[left_out[side][0]].sort()
                settings["left_out"] = moved, left_out[side][1][pairs]
            queries = self._queries_of(rows, triples, side)
            with full_precision(x):
                losses.append(
                    distance_cross_entropy(
                        queries.squeeze(1),
                        rows.squeeze(1),
                        triples[:, place[side]],
                        maps=sheaf.map_parameters(side, relations),
                        group=group,
                        **settings,
                    )
                )
        return losses[0] if len(losses) == 1 else (losses[0] + losses[1]) / 2

    def score_replaced(self, x: Tensor, triples: Tensor, entity: Tensor, at_head: Tensor) -> Tensor:
        r"""Returns the scores of corrupted triples, in which an entity replaces the head or the
        tail.

        Args:
            x (torch.Tensor): The vectors of the entities.
            triples (torch.Tensor): The triples :math:`(h, r, t)`, of shape :math:`(B, 3)`.
            entity (torch.Tensor): The replacing entities, as rows of :obj:`x`.
            at_head (torch.Tensor): Whether they replace the head instead of the tail.

        Shapes:
            - **entity, at_head, output:** :math:`(B, n)`
        """
        head_index, rel_type, tail_index = triples.unbind(1)
        rows = self._rows(x)
        if self.isometric and self.p == 2.0 and x.dim() == 2:
            queries = [self._queries_of(rows, triples, side).squeeze(1) for side in SIDES]
            return -replaced_distance(
                torch.stack(queries), rows.squeeze(1), entity, at_head.long(), squared=self.squared
            )
        if self.isometric:
            head, relation, tail = triples.t().unsqueeze(2)
            head, tail = torch.where(at_head, entity, head), torch.where(at_head, tail, entity)
            return self.score_triples(x, head, relation, tail)
        place = {"head": at_head.nonzero(as_tuple=True), "tail": (~at_head).nonzero(as_tuple=True)}
        known: dict[Side, Tensor] = {}
        put: dict[Side, Tensor] = {}
        ends: list[tuple[Side, Tensor]] = [("head", head_index), ("tail", tail_index)]
        with full_precision(x):
            # What a map is applied to goes through it at once, the ends that stay only once.
            for side, index in ends:
                triple = place[side][0]
                mapped = self._map(
                    rows.index_select(0, torch.cat([index, entity[place[side]]])),
                    torch.cat([rel_type, rel_type[triple]]),
                    side,
                )
                known[side], put[side] = mapped.split([index.numel(), triple.numel()])
            distance = rows.new_zeros(entity.shape)
            for side in SIDES[::-1]:
                query = self._shift(known[_other(side)], rel_type, side)
                residual = query.index_select(0, place[side][0]) - put[side]
                found = row_distance(residual, **self._norm())
                distance = distance.index_put(place[side], found.sum(1))
        return -distance

    # New relations -------------------------------------------------------------------------------

    @torch.no_grad()
    def fit_relation(
        self, head: Tensor, tail: Tensor, weight: Tensor | None = None
    ) -> dict[str, Tensor]:
        r"""Fits the parameters of a new relation to its facts,

        .. math::
            \min \sum_e w_e {\| \mathbf{R}^t \mathbf{x}_{t_e} - \mathbf{R}^h \mathbf{x}_{h_e}
            - \mathbf{b} \|}_2^2

        in closed form, over the maps and translations of this model. Degrees of freedom that scale
        the maps to zero or do not change the energy are fixed: maps at tails are the identity if
        the model supports it; otherwise maps have the mean norm of the existing relations. See
        :meth:`_fit` of each model.

        Args:
            head (torch.Tensor): The vectors at the heads of the facts.
            tail (torch.Tensor): The vectors at their tails.
            weight (torch.Tensor, optional): Nonnegative weights of the facts. (default: all one)

        Shapes:
            - **head, tail:** :math:`(m, d)`
            - **weight:** :math:`(m)`

        Returns:
            dict: The row of the relation for each parameter except the entity table, by its name in
                :meth:`state_dict`, in double precision.

        Raises:
            DataError: If there is no closed form for this model.
            ValueError: If shapes do not match, no fact has a positive weight, or a number is not
                finite.
        """
        shape = [len(head), self.hidden_channels]
        if list(head.shape) != shape or list(tail.shape) != shape:
            raise ValueError(
                f"'head' and 'tail' must both be [m, {self.hidden_channels}] "
                f"(got {list(head.shape)} and {list(tail.shape)})"
            )
        if not all_finite(head) or not all_finite(tail):
            raise ValueError(
                "'head' and 'tail' must be finite: drop facts of entities that are not"
            )
        weight = head.real.new_ones(len(head)) if weight is None else weight
        if weight.shape != head.shape[:1] or not bool((weight >= 0).all() & (weight > 0).any()):
            raise ValueError(
                f"'weight' must be [{len(head)}], not negative, and not zero for all facts "
                f"(got {list(weight.shape)} with the sum {float(weight.sum()):g})"
            )
        weight = weight.double()
        if bool(weight.isinf().any()):
            row = int(weight.isinf().nonzero()[0, 0])
            raise ValueError(
                f"'weight' must be finite (got {float(weight[row])} for fact {row}); to fit that "
                "one alone, give the others the weight zero"
            )
        # The largest first: a sum of finite weights may not be finite.
        weight = weight / weight.max()
        double = torch.complex128 if self.is_complex else torch.float64
        return self._fit(Facts(head.to(double), tail.to(double), weight / weight.sum()))

    def _fit(self, facts: Facts) -> dict[str, Tensor]:
        """The closed form of :meth:`fit_relation`, where the model has one."""
        raise DataError(
            f"{type(self).__name__} has no closed form for a new relation: train it again with the "
            "facts of that relation, or give its class a method '_fit'"
        )

    # Distances -----------------------------------------------------------------------------------

    def _norm(self) -> dict[str, Any]:
        """The norm of real residuals."""
        block = 2 if self.is_complex else self.block
        return {"p": self.p, "squared": self.squared, "block": block}

    def _score_sheaf(self) -> RelationSheaf:
        """The sheaf in the form that scores are computed with."""
        return self.sheaf()

    def _map(self, rows: Tensor, rel_type: Tensor, side: Side) -> Tensor:
        """Each row of [B, s, m] under the map of its own relation."""
        x = self.as_vectors(rows)
        return real_rows(self._score_sheaf().restrict_sections(x, rel_type, side))

    def _shift(self, mapped: Tensor, rel_type: Tensor, side: Side) -> Tensor:
        """Mapped rows of the known ends, moved to where candidates at a side should be."""
        shift = self._score_sheaf().translation_of(rel_type)
        if shift is None:
            return mapped
        return mapped.add(real_rows(shift).unsqueeze(1), alpha=1 if side == "tail" else -1)

    def _query(self, known: Tensor, rel_type: Tensor, side: Side) -> Tensor:
        """What candidates at a side are compared with, [B, s, m]: after their maps, or, where these
        keep distances, before."""
        query = self._shift(self._map(known, rel_type, _other(side)), rel_type, side)
        if not self.isometric:
            return query
        back = self.as_vectors(query).transpose(0, 1)
        back = self._score_sheaf().restrict_adjoint(back, rel_type, side)
        return real_rows(back.transpose(0, 1))

    def _queries_of(self, rows: Tensor, triples: Tensor, side: Side) -> Tensor:
        """The queries of triples for candidates at a side."""
        known = rows.index_select(0, triples[:, 0 if side == "tail" else 2])
        with full_precision(rows):
            return self._query(known, triples[:, 1], side)

    def _residual(self, heads: Tensor, rel_type: Tensor, tails: Tensor) -> Tensor:
        """The residual of each triple up to its sign, of shape [B, s, m]."""
        query = self._query(heads, rel_type, "tail")
        return query - (tails if self.isometric else self._map(tails, rel_type, "tail"))

    def _distances(self, known: Tensor, rel_type: Tensor, rows: Tensor, side: Side) -> Tensor:
        """The distances of each known row to all candidates on the given side, [B, C]."""

        def distance(queries: Tensor, candidates: Tensor) -> Tensor:
            return pairwise_distance(queries, candidates, **self._norm())

        queries = self._query(known, rel_type, side)
        if self.isometric:
            return distance(queries, rows)
        if rel_type.numel() == 0:
            return known.new_zeros(0, rows.size(0))
        sheaf = self._score_sheaf()
        order, relations, counts = groups(rel_type)
        return grouped_distance(
            distance,
            lambda rows, maps: real_rows(sheaf.apply_map(self.as_vectors(rows), maps)),
            order.split(counts),
            queries,
            rows,
            sheaf.map_parameters(side, relations),
        )

    def _score_rows(self, known: Tensor, rel_type: Tensor, rows: Tensor, side: Side) -> Tensor:
        with full_precision(rows):
            blocks = [
                self._distances(known, rel_type, chunk, side)
                for chunk in rows.split(self._chunk_size(rows))
            ]
            distances = blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=1)
            return -distances if distances.requires_grad else distances.neg_()

    def _chunk_size(self, rows: Tensor) -> int:
        if self.isometric:
            return max(1, rows.size(0))
        return max(1, BLOCK_ELEMENTS // (rows.size(1) * max(rows.size(2), self.edge_channels)))

    # Description ---------------------------------------------------------------------------------

    def config(self) -> dict[str, Any]:
        r"""Returns the arguments of the constructor as plain values."""
        return {
            "num_nodes": self.num_nodes,
            "num_relations": self.num_relations,
            "hidden_channels": self.hidden_channels,
            "p": self.p,
            "squared": self.squared,
            "entity_constraint": self.entity_constraint,
        }

    def __repr__(self) -> str:
        arguments = ", ".join(f"{key}={value!r}" for key, value in self.config().items())
        return f"{type(self).__name__}({arguments})"


def _other(side: Side) -> Side:
    return "head" if side == "tail" else "tail"


@torch.no_grad()
def fill_(parameter: Tensor, values: Tensor) -> None:
    """Copies values that were drawn on the CPU, so that a seed means the same on every device."""
    parameter.copy_(values)


def unit_translations(parameter: Tensor, generator: torch.Generator | None) -> None:
    """Draws translations as TransE does: uniform, and of length one at the start only."""
    values = 2 * torch.rand(parameter.shape, generator=generator, dtype=torch.float64) - 1
    fill_(parameter, torch.nn.functional.normalize(values, dim=-1))


def near_one(parameter: Tensor, noise: float, generator: torch.Generator | None) -> None:
    r"""Draws diagonals around one, with Gaussian noise of variance noise^2 per entry."""
    draw = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    fill_(parameter, 1 + noise * draw)


def near_identity(parameter: Tensor, noise: float, generator: torch.Generator | None) -> None:
    r"""Draws maps around the identity, with Gaussian noise of variance noise^2 / d per entry."""
    draw = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    eye = torch.eye(parameter.size(1), parameter.size(2), dtype=torch.float64)
    fill_(parameter, eye + draw * (noise / math.sqrt(parameter.size(2))))
