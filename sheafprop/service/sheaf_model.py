import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from sheafprop.data import Vocabulary, connected_components, count_duplicates
from sheafprop.data.label_checks import check_choice
from sheafprop.data.triples import LabelTriples
from sheafprop.errors import DataError, UnknownRelationError
from sheafprop.io import StoredModel, load_model_folder, write_model_folder
from sheafprop.kge import KGEModel, build_model
from sheafprop.kge.base import Side
from sheafprop.ranking import RankingResult, TripleFilter, evaluate
from sheafprop.service.candidate_scorer import CandidateScorer
from sheafprop.service.entity_index import EntityIndex
from sheafprop.service.extension_report import ExtensionReport
from sheafprop.service.extension_solver import (
    ExtensionSolver,
    FreeSolution,
    FreeSystem,
    components,
)
from sheafprop.service.propagation_settings import PropagationSettings
from sheafprop.service.removal_report import RemovalReport
from sheafprop.service.row_blocks import RowBlocks
from sheafprop.service.section_scorer import SectionScorer
from sheafprop.service.triple_input import TripleInput, label_triples
from sheafprop.sheaf import RelationSheaf, edge_energy

if TYPE_CHECKING:
    import pandas as pd

Propagation = Literal["exact", "selected"] | PropagationSettings
Mode = Literal["keep", "refine"]

# Candidates that are scored again, beyond those asked for, by the definition of the score.
_SPARE = 64
_EXAMPLES = 5


class SheafModel:
    r"""A trained knowledge graph embedding model at work: vectors for new entities, predictions.

    A model is not changed by any method: :meth:`extend` and :meth:`remove` give new ones, which
    share the old vectors. Labels go in and labels come out.

    Args:
        stored (StoredModel): The trained model with its labels and facts.

    Example:
        >>> model = SheafModel.load("runs/umls/rotate")
        >>> larger = model.extend([("new drug", "treats", "headache")])
        >>> larger.predict_tails("new drug", "interacts_with", k=3)
    """

    def __init__(self, stored: StoredModel):
        self._base = _Base(stored)
        self._index = EntityIndex(stored.entities, stored.origins)
        rows = [stored.model.entity_vectors().detach().unsqueeze(1)]
        if stored.extended is not None and len(stored.extended):
            rows.append(stored.extended)
        self._rows = RowBlocks(rows)
        self._facts = RowBlocks([stored.facts])
        self._section_weight = stored.section_weight
        #: What the extension or removal that made this model did; None for a loaded model.
        self.report: ExtensionReport | RemovalReport | None = None

    @classmethod
    def load(cls, folder: str | PathLike[str]) -> "SheafModel":
        """Loads a model folder, or the model of a run folder. Runs no code.

        Raises:
            FormatError: If a file is missing, truncated, edited or of a newer version.
            StorageError: If a file cannot be read.
        """
        path = Path(folder).expanduser()
        inner = path / "model"
        if not (path / "manifest.json").exists() and inner.is_dir():
            path = inner
        return cls(load_model_folder(path))

    def _next(
        self,
        index: EntityIndex,
        rows: RowBlocks,
        facts: RowBlocks,
        section_weight: tuple[float, ...],
        report: ExtensionReport | RemovalReport | None,
    ) -> "SheafModel":
        model = object.__new__(SheafModel)
        model._base, model._index, model._rows = self._base, index, rows
        model._facts, model._section_weight, model.report = facts, section_weight, report
        return model

    # Contents -------------------------------------------------------------------------------------

    @property
    def kge(self) -> KGEModel:
        """The trained embedding model, with its trained entities only."""
        return self._base.stored.model

    @property
    def settings(self) -> dict[str, Any]:
        """The propagation that the run chose on validation, as plain values."""
        return self._base.stored.settings

    @property
    def metrics(self) -> dict[str, Any]:
        """What was measured when the model was trained."""
        return self._base.stored.metrics

    @property
    def relations(self) -> Vocabulary:
        """Labels of the relations."""
        return self._base.stored.relations

    @property
    def num_entities(self) -> int:
        """Number of entities with a vector."""
        return len(self._index)

    @property
    def num_trained(self) -> int:
        """Number of entities that the model was trained with."""
        return self.kge.num_nodes

    @property
    def num_facts(self) -> int:
        """Number of observed triples."""
        return len(self._facts)

    @property
    def num_sections(self) -> int:
        """Number of vectors of an entity; more than one only after a ``"selected"`` extension."""
        return len(self._section_weight)

    def labels(self) -> tuple[str, ...]:
        """Labels of all entities, trained ones first."""
        return self._index.vocabulary().labels

    def entities(self) -> "pd.DataFrame":
        """A frame of all entities: ``entity`` and ``origin``."""
        import pandas as pd

        return pd.DataFrame({"entity": self.labels(), "origin": self._index.origins()}, dtype=str)

    def facts(self) -> "pd.DataFrame":
        """A frame of the observed triples: ``head``, ``relation``, ``tail``."""
        return self._frame(self._facts.from_row(0))

    def vectors(self, labels: str | Iterable[str] | None = None) -> Tensor:
        """Vectors ``[n, s, d]`` of entities, of all without labels (a copy then).

        Raises:
            DataError: If a label is unknown.
        """
        rows = self._rows.from_row(0) if labels is None else self._rows.select(self._ids(labels))
        return rows.expand(-1, self.num_sections, -1).clone()

    def scorer(self) -> SectionScorer:
        """The scores of all triples under all vectors, for rankings."""
        return SectionScorer(self.kge, self.vectors(), self._section_weight)

    def _ids(self, labels: str | Iterable[str]) -> Tensor:
        return self._index.ids(labels)

    def _frame(self, triples: Tensor) -> "pd.DataFrame":
        import pandas as pd

        return pd.DataFrame(
            {
                "head": self._index.labels_of(triples[:, 0]),
                "relation": self.relations.labels_of(triples[:, 1]),
                "tail": self._index.labels_of(triples[:, 2]),
            },
            dtype=str,
        )

    # Extension ------------------------------------------------------------------------------------

    def extend(
        self,
        triples: TripleInput,
        *,
        propagation: Propagation = "exact",
        mode: Mode = "keep",
        on_unknown_relation: Literal["error", "drop"] = "error",
        seed: int | None = None,
    ) -> "SheafModel":
        r"""Gives a model that also has vectors for the new entities of some facts.

        Old vectors stay bit-identical and are not copied; the work is that of the new facts. With
        ``"exact"``, groups of new entities that reach a known one get the unique minimum of the
        energy, not rescaled; groups whose system is singular are propagated for a finite time from
        a seeded start with one section. :attr:`report` says which and why.

        Args:
            triples: Facts: a path, rows ``(head, relation, tail)`` of labels, or a pandas frame.
                Labels that the model knows are its entities, the others are new.
            propagation: ``"exact"``, ``"selected"`` (the choice that the run validated), or
                :class:`~sheafprop.service.PropagationSettings`.
            mode: ``"keep"`` leaves all old vectors. With ``"refine"``, entities of earlier
                extensions that the facts touch, and those that facts connect to them, are solved
                again together with the new ones, as if all facts had come at once.
            on_unknown_relation: ``"error"``, or ``"drop"`` the facts of relations that the model
                has no maps for (they are reported).
            seed: Seed of random starts. (default: that of the settings)

        Raises:
            UnknownRelationError: If a relation is unknown.
            DataError: If a triple is malformed or none is left.
            ValueError: If an argument is unknown or does not fit the model.
        """
        begin = time.perf_counter()
        check_choice("mode", mode, ("keep", "refine"))
        check_choice("on_unknown_relation", on_unknown_relation, ("error", "drop"))
        settings, name = self._settings(propagation, seed)
        labels = label_triples(triples)
        relation, dropped = self._relations(labels[:, 1], on_unknown_relation)
        labels = labels[(relation >= 0).numpy()]
        relation = relation[relation >= 0]
        if len(labels) == 0:
            raise DataError("no fact is left: the model knows none of the relations")
        ends = labels[:, [0, 2]].ravel()
        ids = self._index.lookup(ends)
        unknown = [ends[row] for row in (ids < 0).nonzero().flatten().tolist()]
        number = {label: i for i, label in enumerate(dict.fromkeys(unknown), self.num_entities)}
        ids[ids < 0] = torch.tensor([number[label] for label in unknown], dtype=torch.int64)
        known = torch.unique(ids[ids < self.num_entities])
        facts = torch.stack([ids[0::2], relation, ids[1::2]], dim=1)
        touched = known[known >= self.num_trained]

        again, used = touched[:0], facts
        if mode == "refine" and len(touched):
            again, used = self._neighbourhood(facts, touched)
        new = torch.arange(self.num_entities, self.num_entities + len(number))
        free, free_labels = torch.cat([again, new]), [*self._index.labels_of(again), *number]
        system, nodes = self._system(used, free, free_labels)
        solve = self._base.solver.exact if name == "exact" else self._base.solver.finite_time
        empty = FreeSolution(system.x[:0], torch.zeros(0, dtype=torch.bool), {}, 0.0)
        solution = solve(system, settings) if len(free) else empty
        origins = self._origins(system, nodes)

        index, rows = self._index, self._rows
        if len(again):
            index, rows = self._rewritten(again, solution.vectors, origins)
        weight = self._section_weight
        if name != "exact" and len(free):
            weight = settings.section_weight
        grown = self._next(
            index.add(list(number), origins[len(again) :]),
            rows.append(solution.vectors[len(again) :]),
            self._facts.append(facts),
            weight,
            None,
        )
        report = ExtensionReport(
            facts=len(facts),
            new_entities=len(number),
            known_entities=len(known),
            facts_between_known=int((~torch.isin(facts[:, [0, 2]], free).any(1)).sum()),
            solved_exactly=int(solution.exact.sum()),
            solved_finite_time=int((~solution.exact).sum()),
            reasons=solution.reasons,
            propagation=name,
            settings=settings.to_dict() if not bool(solution.exact.all()) else None,
            relative_residual=solution.relative_residual,
            unanchored=[
                label
                for label, origin in zip(free_labels, origins, strict=True)
                if origin == "unanchored"
            ],
            dropped_facts=dropped,
            duplicates=count_duplicates(facts),
            touched=self._index.labels_of(touched),
            pull=self._pull(facts, touched) if len(touched) and not len(again) else 0.0,
            refined=self._index.labels_of(again),
        )
        grown.report = replace(report, seconds=time.perf_counter() - begin)
        return grown

    def _settings(
        self, propagation: Propagation, seed: int | None
    ) -> tuple[PropagationSettings, str]:
        if isinstance(propagation, PropagationSettings):
            settings, name = propagation, "given"
        else:
            check_choice("propagation", propagation, ("exact", "selected"))
            if propagation == "selected" and not self.settings:
                raise ValueError(
                    "this model has no propagation that was chosen on validation: give "
                    "propagation=PropagationSettings(...), or 'exact'"
                )
            known = {f.name for f in fields(PropagationSettings)}
            odd = sorted(set(self.settings) - known)
            if odd:
                raise ValueError(f"the model's settings hold {odd[0]!r}, which is unknown here")
            settings, name = PropagationSettings(**self.settings), propagation
        if seed is not None:
            settings = replace(settings, seed=seed)
        other = self.num_sections > 1 and settings.section_weight != self._section_weight
        if name != "exact" and other:
            raise ValueError(
                f"this model has {self.num_sections} sections already, and these settings ask "
                f"for {settings.num_sections} or other weights: extend the trained model"
            )
        return settings, name

    def _relations(self, labels: Iterable[str], action: str) -> tuple[Tensor, dict[str, int]]:
        labels = list(labels)
        relation = self.relations.lookup(labels)
        unknown = Counter(labels[row] for row in (relation < 0).nonzero().flatten().tolist())
        if unknown and action == "error":
            named = ", ".join(f"{k!r} ({v} facts)" for k, v in unknown.most_common(_EXAMPLES))
            more = f" and {len(unknown) - _EXAMPLES} more" if len(unknown) > _EXAMPLES else ""
            raise UnknownRelationError(
                f"{len(unknown)} relations are unknown to the model, so it has no maps for them: "
                f"{named}{more}; {sum(unknown.values())} of {len(labels)} facts affected. "
                "Use on_unknown_relation='drop' to leave these facts out"
            )
        return relation, dict(unknown.most_common())

    def _added_facts(self) -> Tensor:
        """Facts that touch an added entity; they all came after those of training."""
        facts = self._facts.from_row(self._base.num_trained_facts)
        return facts[(facts[:, [0, 2]] >= self.num_trained).any(1)]

    def _neighbourhood(self, facts: Tensor, touched: Tensor) -> tuple[Tensor, Tensor]:
        """Added entities that facts connect to touched ones, and all facts at free entities."""
        facts = torch.cat([self._added_facts(), facts])
        ends = facts[:, [0, 2]]
        inner = (ends >= self.num_trained).all(1)
        size = int(ends.max()) + 1 - self.num_trained
        component = connected_components((ends[inner] - self.num_trained).T, size)
        reached = torch.isin(component, component[touched - self.num_trained])
        again = reached.nonzero().flatten() + self.num_trained
        again = again[again < self.num_entities]
        return again, facts[(torch.isin(ends, again) | (ends >= self.num_entities)).any(1)]

    def _system(
        self, facts: Tensor, free: Tensor, labels: Sequence[str]
    ) -> tuple[FreeSystem, Tensor]:
        """The facts at free entities in local numbers, and the ids these stand for."""
        facts = facts[torch.isin(facts[:, [0, 2]], free).any(1)]
        nodes = torch.unique(torch.cat([facts[:, [0, 2]].flatten(), free]))
        is_free = torch.isin(nodes, free)
        known = self._rows.select(nodes[~is_free])
        x = known.new_zeros(len(nodes), known.shape[1], self.kge.hidden_channels)
        x[~is_free] = known
        system = FreeSystem(
            x=x,
            boundary_mask=~is_free,
            edge_index=torch.searchsorted(nodes, facts[:, [0, 2]].T.contiguous()),
            edge_type=facts[:, 1].contiguous(),
            labels=labels,
        )
        return system, nodes

    def _origins(self, system: FreeSystem, nodes: Tensor) -> list[str]:
        """Where free vectors come from: an anchor that nothing anchors is none."""
        anchors = system.boundary_mask.clone()
        added = (anchors & (nodes >= self.num_trained)).nonzero().flatten()
        origins = self._index.origins_of(nodes[added])
        anchors[added] = torch.tensor([o != "unanchored" for o in origins], dtype=torch.bool)
        _, anchored = components(system, anchors)
        reached = anchored[~system.boundary_mask].tolist()
        return ["extended" if found else "unanchored" for found in reached]

    def _rewritten(
        self, again: Tensor, vectors: Tensor, origins: Sequence[str]
    ) -> tuple[EntityIndex, RowBlocks]:
        """Index and rows with new values for some added entities; trained ones are shared."""
        place = again - self.num_trained
        base, added = self._rows.blocks[0], self._rows.from_row(self.num_trained)
        sections = max(added.shape[1], vectors.shape[1])
        added = added.expand(-1, sections, -1).clone()
        added[place] = vectors[: len(again)].expand(-1, sections, -1)
        names = list(self._index.origins())
        for number, origin in zip(again.tolist(), origins, strict=False):
            names[number] = origin
        return EntityIndex(self._index.vocabulary(), names), RowBlocks([base, added])

    def _pull(self, facts: Tensor, touched: Tensor) -> float:
        """How far touched entities are from agreeing with all their facts; see the report."""
        facts = torch.cat([self._added_facts(), facts])
        old = (facts[:, [0, 2]] < self.num_entities).all(1)
        system, nodes = self._system(facts[old], touched, self._index.labels_of(touched))
        if not len(system.edge_type):
            return 0.0
        rows = self._rows.select(nodes)
        return self._base.solver.pull(replace(system, x=rows))

    def remove(self, entities: str | Iterable[str], *, mode: Mode = "keep") -> "SheafModel":
        r"""Gives a model without some entities and without the facts that name them.

        All other vectors stay bit-identical; with ``mode="refine"``, entities of earlier
        extensions that lose a fact are solved again (exactly where their system is nonsingular),
        with those that facts connect to them. :attr:`report` names them either way.

        Raises:
            DataError: If a label is unknown, or no trained entity would be left.
        """
        check_choice("mode", mode, ("keep", "refine"))
        begin = time.perf_counter()
        gone = torch.unique(self._ids(entities))
        kept = torch.ones(self.num_entities, dtype=torch.bool)
        kept[gone] = False
        if not bool(kept[: self.num_trained].any()):
            raise DataError("no trained entity would be left, so the model would know nothing")
        facts = self._facts.from_row(0)
        ends = facts[:, [0, 2]]
        lost = torch.isin(ends, gone).any(1)
        affected = torch.unique(ends[lost])
        affected = affected[(affected >= self.num_trained) & kept[affected]]
        stored = self._stored(kept, facts[~lost])
        model = SheafModel(stored)
        labels = self._index.labels_of(affected)
        again: list[str] = []
        if mode == "refine" and labels:
            model, again = model._resolved(labels)
        model.report = RemovalReport(
            entities=len(gone),
            facts=int(lost.sum()),
            affected=labels,
            refined=again,
            seconds=time.perf_counter() - begin,
        )
        return model

    def _resolved(self, labels: Sequence[str]) -> tuple["SheafModel", list[str]]:
        """Solves some added entities, and those that facts connect to them, again."""
        none = self._facts.blocks[0][:0]
        again, used = self._neighbourhood(none, self._ids(labels))
        names = self._index.labels_of(again)
        system, nodes = self._system(used, again, names)
        settings, _ = self._settings("exact", None)
        solution = self._base.solver.exact(system, settings)
        index, rows = self._rewritten(again, solution.vectors, self._origins(system, nodes))
        return self._next(index, rows, self._facts, self._section_weight, None), names

    # Storage --------------------------------------------------------------------------------------

    def save(self, folder: str | PathLike[str], *, overwrite: bool = False) -> Path:
        """Writes a model folder, completely or not at all.

        Raises:
            ValueError: If the folder exists and ``overwrite`` is False.
            StorageError: If the disk refuses; what was there before is still there.
        """
        return write_model_folder(Path(folder).expanduser(), self.stored(), overwrite=overwrite)

    def stored(self) -> StoredModel:
        """Everything in one place, as a model folder holds it."""
        kept = torch.ones(self.num_entities, dtype=torch.bool)
        return self._stored(kept, self._facts.from_row(0))

    def _stored(self, kept: Tensor, facts: Tensor) -> StoredModel:
        stored, trained = self._base.stored, kept[: self.num_trained]
        model, labels, origins = stored.model, self.labels(), self._index.origins()
        if not bool(kept.all()):
            ids = kept.nonzero().flatten().tolist()
            labels, origins = tuple(labels[i] for i in ids), tuple(origins[i] for i in ids)
            number = torch.cumsum(kept, 0) - 1
            facts = torch.stack([number[facts[:, 0]], facts[:, 1], number[facts[:, 2]]], dim=1)
        if not bool(trained.all()):
            model = _with_rows(model, trained)
        extended = None
        if self.num_entities > self.num_trained:
            extended = self._rows.from_row(self.num_trained)[kept[self.num_trained :]]
            extended = extended.expand(-1, self.num_sections, -1)
        return replace(
            stored,
            model=model,
            entities=Vocabulary(labels, kind="entities"),
            origins=origins,
            facts=facts,
            extended=extended,
            section_weight=self._section_weight,
        )

    # Predictions ----------------------------------------------------------------------------------

    def predict_tails(
        self,
        head: str | Sequence[str],
        relation: str | Sequence[str],
        k: int = 10,
        *,
        include_known: bool = False,
    ) -> "pd.DataFrame":
        r"""The best tails of :math:`(h, r, ?)`.

        Args:
            head: A label, or as many as there are queries.
            relation: A label for all queries, or one for each.
            k: How many tails; all there are if they are fewer.
            include_known: Whether tails of observed facts may come up; a column ``known`` tells
                them apart then.

        Returns:
            A frame with columns ``head``, ``relation``, ``tail``, ``score`` (higher is better) and
            ``origin`` of the tail; best first, equal scores in the order of the model's entities.

        Raises:
            DataError: If a label is unknown; the nearest spelling is suggested.
            ValueError: If ``k`` is not positive.
        """
        return self._predict("tail", head, relation, k, include_known)

    def predict_heads(
        self,
        relation: str | Sequence[str],
        tail: str | Sequence[str],
        k: int = 10,
        *,
        include_known: bool = False,
    ) -> "pd.DataFrame":
        r"""The best heads of :math:`(?, r, t)`; see :meth:`predict_tails`."""
        return self._predict("head", tail, relation, k, include_known)

    def _predict(
        self,
        side: Side,
        given: str | Sequence[str],
        relation: str | Sequence[str],
        k: int,
        include_known: bool,
    ) -> "pd.DataFrame":
        import pandas as pd

        if not isinstance(k, int) or isinstance(k, bool) or k < 1:
            raise ValueError(f"'k' must be a positive integer (got {k!r})")
        given = [given] if isinstance(given, str) else list(given)
        relation = [relation] * len(given) if isinstance(relation, str) else list(relation)
        if len(relation) != len(given):
            raise ValueError(
                f"give one relation, or one for each of the {len(given)} queries (got "
                f"{len(relation)})"
            )
        entity, edge_type = self._ids(given), self.relations.ids(relation)
        step = self._scorer.block_size()
        parts: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        for start in range(0, len(given), step):
            rows = slice(start, start + step)
            scores = self._scorer.scores(self._rows.select(entity[rows]), edge_type[rows], side)
            for row, one in enumerate(scores, start):
                known = self._known(side, entity[row], edge_type[row])
                if not include_known:
                    one[known] = -torch.inf
                found, value = self._best(one, entity[row], edge_type[row], side, k)
                where = torch.full_like(found, row)
                parts.append((where, found, value, torch.isin(found, known)))
        rows_of, found, value, seen = (
            torch.cat(column) if column else torch.zeros(0, dtype=torch.int64)
            for column in (zip(*parts, strict=True) if parts else ((),) * 4)
        )
        order = rows_of.tolist()
        columns: dict[str, Any] = {
            "head": [given[i] for i in order],
            "relation": [relation[i] for i in order],
            "tail": self._index.labels_of(found),
            "score": value.double().tolist(),
            "origin": self._index.origins_of(found),
        }
        if side == "head":
            columns |= {"head": columns["tail"], "tail": columns["head"]}
        if include_known:
            columns["known"] = seen.tolist()
        frame = pd.DataFrame(columns)
        return frame.astype({name: str for name in ("head", "relation", "tail", "origin")})

    def _best(
        self, scores: Tensor, entity: Tensor, relation: Tensor, side: Side, k: int
    ) -> tuple[Tensor, Tensor]:
        """The best candidates by the definition of the score, best first."""
        count = min(k + _SPARE, len(scores))
        value, found = torch.topk(scores, count)
        found = found[value > -torch.inf].sort().values
        known = entity.expand_as(found)
        ends = (known, found) if side == "tail" else (found, known)
        value = self._score(ends[0], relation.expand_as(found), ends[1])
        order = torch.sort(value, descending=True, stable=True).indices[:k]
        return found[order], value[order]

    def _known(self, side: Side, entity: Tensor, relation: Tensor) -> Tensor:
        """Entities that a fact names at a side of a relation of an entity."""
        given, asked = (0, 2) if side == "tail" else (2, 0)
        parts = []
        for block in self._facts.blocks:
            rows = (block[:, given] == entity).nonzero().flatten()
            rows = rows[block[rows, 1] == relation]
            parts.append(block[rows, asked])
        return torch.cat(parts)

    @cached_property
    def _scorer(self) -> CandidateScorer:
        return CandidateScorer(self.kge, self._base.sheaf, self._rows, self._section_weight)

    @torch.no_grad()
    def _score(self, head: Tensor, relation: Tensor, tail: Tensor) -> Tensor:
        ids, place = torch.unique(torch.stack([head, tail]), return_inverse=True)
        x = self._rows.select(ids)
        if x.shape[1] == 1:
            return self.kge.score_triples(x, place[0], relation, place[1])
        total = torch.zeros(len(relation), dtype=x.real.dtype)
        for section, weight in enumerate(self._section_weight):
            total += weight * self.kge.score_triples(x[:, section], place[0], relation, place[1])
        return total

    def score(self, triples: TripleInput) -> "pd.DataFrame":
        """Scores triples: a frame with ``head``, ``relation``, ``tail``, ``score``, ``known``.

        Raises:
            DataError: If a label is unknown; the nearest spelling is suggested.
        """
        ids = self._triple_ids(label_triples(triples))
        frame = self._frame(ids)
        frame["score"] = self._score(*ids.unbind(1)).double().tolist()
        frame["known"] = self._are_facts(ids).tolist()
        return frame

    def _are_facts(self, ids: Tensor) -> Tensor:
        found = torch.zeros(len(ids), dtype=torch.bool)
        size = self.num_entities

        def pairs(triples: Tensor) -> Tensor:
            return triples[:, 0] * size + triples[:, 2]

        wanted = pairs(ids)
        for block in self._facts.blocks:
            near = block[torch.isin(pairs(block), wanted)]
            both = torch.cat([near, ids])
            _, code = torch.unique(both, dim=0, return_inverse=True)
            found |= torch.isin(code[len(near) :], code[: len(near)])
        return found

    def rank(
        self, triples: TripleInput, *, known: TripleInput | None = None, progress: bool = False
    ) -> RankingResult:
        r"""Ranks true triples on both sides among all entities of the model.

        The filter leaves out every other fact of the model, ranked triple and ``known`` triple.

        Args:
            triples: The true triples to rank.
            known: More true triples; those with labels that the model does not know are left out.
            progress: Whether to show progress on standard error.

        Raises:
            DataError: If a label is unknown.
        """
        ids = self._triple_ids(label_triples(triples))
        parts = {"facts": self._facts.from_row(0), "ranked": ids}
        if known is not None:
            labels = label_triples(known)
            ends = self._index.lookup(labels[:, [0, 2]].ravel()).view(-1, 2)
            relation = self.relations.lookup(labels[:, 1])
            more = torch.stack([ends[:, 0], relation, ends[:, 1]], dim=1)
            parts["further"] = more[(more >= 0).all(1)]
        scores = self._scorer.scores
        rows = self._rows
        return evaluate(
            lambda head, rel: scores(rows.select(head), rel, "tail"),
            lambda rel, tail: scores(rows.select(tail), rel, "head"),
            ids,
            TripleFilter(parts, self.num_entities, len(self.relations)),
            test_set="given",
            progress=progress,
        )

    def _triple_ids(self, labels: LabelTriples) -> Tensor:
        ends = self._ids(labels[:, [0, 2]].ravel()).view(-1, 2)
        return torch.stack([ends[:, 0], self.relations.ids(labels[:, 1]), ends[:, 1]], dim=1)

    def explain(self, target: str | Sequence[str]) -> "pd.DataFrame":
        r"""The energy of the facts at an entity, or at the ends of a triple: what disagrees most.

        Args:
            target: The label of an entity, or a triple ``(head, relation, tail)`` of labels, which
                comes first in the frame.

        Returns:
            A frame with columns ``head``, ``relation``, ``tail``; ``energy``
            :math:`\| R_t x_t - R_h x_h - b \|^2` (weighted over sections), largest first;
            ``ratio``, the energy over its mean in training for that relation (above one: the fact
            fits worse than usual; NaN where the relation fits exactly or has no training fact);
            and ``fact``, whether the triple was observed.

        Raises:
            DataError: If a label is unknown.
        """
        if isinstance(target, str):
            asked, ids = None, self._ids(target)
        else:
            asked = self._triple_ids(label_triples([tuple(target)]))
            ids = asked[0, [0, 2]]
        facts = torch.cat(
            [
                block[torch.isin(block[:, 0], ids) | torch.isin(block[:, 2], ids)]
                for block in self._facts.blocks
            ]
        )
        if asked is not None:
            facts = facts[(facts != asked).any(1)]
        energy = self._energy(facts)
        order = torch.sort(energy, descending=True, stable=True).indices
        facts, energy = facts[order], energy[order]
        observed = [True] * len(facts)
        if asked is not None:
            observed = [bool(self._are_facts(asked)), *observed]
            facts = torch.cat([asked, facts])
            energy = torch.cat([self._energy(asked), energy])
        usual = self._base.stored.residual_variance.double()[facts[:, 1]]
        frame = self._frame(facts)
        frame["energy"] = energy.tolist()
        frame["ratio"] = torch.where(usual > 0, energy / usual, torch.nan).tolist()
        frame["fact"] = observed
        return frame

    @torch.no_grad()
    def _energy(self, triples: Tensor) -> Tensor:
        ids, place = torch.unique(triples[:, [0, 2]], return_inverse=True)
        x = self._rows.select(ids)
        weights = self._section_weight if x.shape[1] > 1 else (1.0,)
        total = torch.zeros(len(triples), dtype=torch.float64)
        for section, weight in enumerate(weights):
            energy = edge_energy(x[:, section], place.T, triples[:, 1], self._base.sheaf)
            total += weight * energy.double()
        return total

    def __repr__(self) -> str:
        added = self.num_entities - self.num_trained
        return (
            f"{type(self).__name__}({type(self.kge).__name__}, {self.num_trained} trained and "
            f"{added} added entities, {len(self.relations)} relations, {self.num_facts} facts, "
            f"d={self.kge.hidden_channels})"
        )


@dataclass(frozen=True)
class _Base:
    """What a model and its extensions share."""

    stored: StoredModel

    @cached_property
    def sheaf(self) -> RelationSheaf:
        with torch.no_grad():
            return self.stored.model.sheaf()

    @cached_property
    def solver(self) -> ExtensionSolver:
        stored = self.stored
        return ExtensionSolver(
            stored.model, self.sheaf, stored.prototypes, stored.residual_variance
        )

    @cached_property
    def num_trained_facts(self) -> int:
        """Facts before the first one that touches an added entity."""
        added = (self.stored.facts[:, [0, 2]] >= self.stored.model.num_nodes).any(1)
        return int(added.to(torch.uint8).argmax()) if bool(added.any()) else len(added)


def _with_rows(model: KGEModel, kept: Tensor) -> KGEModel:
    """The model with some of its entities only."""
    with torch.device("meta"):
        smaller = build_model(model.name, **model.config() | {"num_nodes": int(kept.sum())})
    state = dict(model.state_dict())
    state["node_emb.weight"] = state["node_emb.weight"][kept]
    smaller.load_state_dict(state, assign=True)
    return smaller
