import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor

from sheafprop.checks import check_choice, check_integer, count_noun, quote
from sheafprop.data import connected_components, first_occurrences
from sheafprop.data.finite_rows import check_finite_rows
from sheafprop.data.label_checks import swapped_hint
from sheafprop.data.triples import LabelTriples
from sheafprop.errors import DataError, UnknownRelationError
from sheafprop.inductive.extension_solver import FreeSolution
from sheafprop.inductive.free_system import FreeSystem, components
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.kernels.backend import all_finite
from sheafprop.kernels.threads import small_operations
from sheafprop.pretrained.entity_index import EntityIndex
from sheafprop.pretrained.model_state import ModelState
from sheafprop.pretrained.row_blocks import RowBlocks


@dataclass(frozen=True)
class ExtensionReport:
    """What an extension did, in plain values.

    Args:
        facts (int): Facts that were added.
        new_entities (int): Entities that got a vector for the first time.
        known_entities (int): Known entities among the facts, matched by label.
        facts_between_known (int): Facts that touch no entity whose vector was solved for; they
            are kept and move nothing.
        solved_exactly (int): Entities with the exact solution.
        solved_finite_time (int): Entities propagated for a finite time.
        reasons (dict): Why not exactly, with the number of entities.
        propagation (str): What was asked for.
        settings (dict, optional): The finite-time settings, where any entity took them.
        relative_residual (float): That of the exact solution.
        rescaled (int): Exact vectors that were scaled to the length that the model trains with.
        length_before (float, optional): Their mean length before.
        unanchored (list of str): Entities that no fact connects to a trained entity.
        dropped_facts (dict): Relations the model does not know, with the facts left out.
        duplicates (int): Repetitions among the given facts; a fact counts once.
        known_facts (int): Given facts that the model held already, which are not added again.
        touched (list of str): Entities of earlier extensions that new facts touch.
        pull (float): The longest distance a full step would move one of these now.
        refined (list of str): Those (and their neighbours) that were solved again.
        seconds (float): Time of the extension.
    """

    facts: int
    new_entities: int
    known_entities: int
    facts_between_known: int
    solved_exactly: int
    solved_finite_time: int
    reasons: dict[str, int]
    propagation: str
    settings: dict[str, Any] | None
    relative_residual: float
    rescaled: int
    length_before: float | None
    unanchored: list[str]
    dropped_facts: dict[str, int]
    duplicates: int
    known_facts: int
    touched: list[str]
    pull: float
    refined: list[str]
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values."""
        return asdict(self)

    def summary(self) -> str:
        """What a user should know, in a few lines."""
        lines = [
            f"{count_noun(self.new_entities, 'new entity')} from {count_noun(self.facts, 'fact')}, "
            f"which {_verb(self.facts, 'name')} {count_noun(self.known_entities, 'entity')} that "
            "the model knows by label"
        ]
        if self.solved_exactly:
            lines.append(
                f"{count_noun(self.solved_exactly, 'vector')} "
                f"{'is' if self.solved_exactly == 1 else 'are'} the exact solution "
                f"(relative residual {self.relative_residual:.1g})"
            )
        if self.rescaled:
            lines.append(
                f"{'it was' if self.rescaled == 1 else f'{self.rescaled:,} of them were'} scaled "
                "to the length that the model trains with (mean length before: "
                f"{self.length_before:.3g}); normalize_output=False (--no-normalize-output) keeps "
                "exact solutions as they are"
            )
        if self.solved_finite_time and self.settings:
            why = "; ".join(f"{count}: {reason}" for reason, count in self.reasons.items())
            lines.append(
                f"{count_noun(self.solved_finite_time, 'vector')} "
                f"{'was' if self.solved_finite_time == 1 else 'were'} propagated for a finite time "
                f"({count_noun(self.settings['iterations'], 'step')}, "
                f"seed {self.settings['seed']})"
                + (f", as no exact solution is unique ({why})" if why else "")
            )
        if self.unanchored:
            lines.append(f"unanchored: {_some(self.unanchored)}")
        if self.dropped_facts:
            named = ", ".join(f"{quote(k)}: {v}" for k, v in list(self.dropped_facts.items())[:5])
            lines.append(
                f"{count_noun(sum(self.dropped_facts.values()), 'fact')} dropped, as the model "
                f"knows no such relation ({named})"
            )
        if self.duplicates:
            lines.append(
                f"{count_noun(self.duplicates, 'fact')} {_verb(self.duplicates, 'repeat')} an "
                "earlier one of the input; a fact counts once"
            )
        if self.known_facts:
            lines.append(
                f"{count_noun(self.known_facts, 'fact')} "
                f"{'was' if self.known_facts == 1 else 'were'} known to the model already and "
                f"{'is' if self.known_facts == 1 else 'are'} not counted again"
            )
        if self.facts_between_known:
            lines.append(
                f"{count_noun(self.facts_between_known, 'fact')} "
                f"{_verb(self.facts_between_known, 'move')} no vector"
            )
        if self.refined:
            lines.append(f"solved again: {_some(self.refined)}")
        elif self.touched:
            lines.append(
                f"the facts touch entities of earlier extensions, whose vectors were kept "
                f"(a step would move them by up to {self.pull:.3g}; mode='refine', --mode refine, "
                f"solves them again): {_some(self.touched)}"
            )
        return "\n".join(lines)


def _verb(number: int, verb: str) -> str:
    return f"{verb}s" if number == 1 else verb


def _some(labels: list[str]) -> str:
    more = f" and {len(labels) - 5} more" if len(labels) > 5 else ""
    return ", ".join(map(quote, labels[:5])) + more


Propagation = Literal["exact", "selected"] | PropagationSettings
Mode = Literal["keep", "refine"]

_EXAMPLES = 5


class Extension:
    r"""Adds facts to a model, and vectors for the entities that are new in them.

    Args:
        state (ModelState): The model, which stays as it is.
    """

    def __init__(self, state: ModelState):
        self.state = state

    def run(
        self,
        labels: LabelTriples,
        *,
        propagation: Propagation,
        mode: Mode,
        on_unknown_relation: Literal["error", "drop"],
        seed: int | None,
        batch_size: int | None = None,
        normalize_output: bool | None = None,
    ) -> tuple[ModelState, ExtensionReport]:
        """The larger model, and what was done; see :meth:`SheafModel.extend`."""
        begin = time.perf_counter()
        if batch_size is not None:
            check_integer("batch_size", batch_size, 1)
        check_choice("mode", mode, ("keep", "refine"))
        check_choice("on_unknown_relation", on_unknown_relation, ("error", "drop"))
        state, size = self.state, self.state.num_entities
        settings, name = self._settings(propagation, seed, normalize_output)
        relation, dropped = self._relations(labels[:, 1], on_unknown_relation)
        if dropped:
            labels = labels[(relation >= 0).numpy()]
            relation = relation[relation >= 0]
        if len(labels) == 0:
            raise DataError("no fact is left: the model knows none of the relations")
        ends = labels[:, [0, 2]].ravel()
        ids = state.index.lookup(ends)
        missing = ids < 0
        unknown = ends[missing.numpy()].tolist()
        number = {label: i for i, label in enumerate(dict.fromkeys(unknown), size)}
        ids[missing] = torch.tensor([number[label] for label in unknown], dtype=torch.int64)
        known = torch.unique(ids[~missing])
        given = torch.stack([ids[0::2], relation, ids[1::2]], dim=1)
        distinct = given[first_occurrences(given)]
        facts = distinct[~self._is_fact(distinct)]
        # What was kept so far is solved again where asked, also if its facts are known already.
        touched = torch.unique((facts if mode == "keep" else distinct)[:, [0, 2]])
        touched = touched[(touched >= state.num_trained) & (touched < size)]

        again, used = touched[:0], facts
        if mode == "refine" and len(touched):
            again, used = self._neighbourhood(facts, touched)
        free = torch.cat([again, torch.arange(size, size + len(number))])
        free_labels = [*state.index.labels_of(again), *number]
        system, nodes = self._system(used, free, free_labels)
        normalize = self._normalize(settings, name, normalize_output)
        solver = state.base.solver

        def solve(part: FreeSystem) -> FreeSolution:
            if name == "exact":
                return solver.exact(part, settings, normalize_output=normalize)
            return solver.finite_time(part, settings)

        solution = FreeSolution(system.x[:0], torch.zeros(0, dtype=torch.bool), {}, 0.0)
        if len(free) and batch_size is None:
            solution = solve(system)
        elif len(free) and batch_size is not None:
            parts = ((p, solve(part)) for p, part in system.batches(batch_size))
            solution = FreeSolution.joined(len(free), parts)
        origins = self._origins(system, nodes)

        index, rows = state.index, state.rows
        if len(again):
            index, rows = self._rewritten(again, solution.vectors, origins)
        weight = state.section_weight
        if name != "exact" and len(free):
            weight = settings.section_weight
        grown = ModelState(
            state.base,
            index.add(list(number), origins[len(again) :]),
            rows.append(solution.vectors[len(again) :]),
            state.facts.append(facts),
            weight,
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
            rescaled=len(solution.lengths),
            length_before=float(solution.lengths.mean()) if len(solution.lengths) else None,
            unanchored=[
                label
                for label, origin in zip(free_labels, origins, strict=True)
                if origin == "unanchored"
            ],
            dropped_facts=dropped,
            duplicates=len(given) - len(distinct),
            known_facts=len(distinct) - len(facts),
            touched=state.index.labels_of(touched),
            pull=self._pull(facts, touched, normalize) if len(touched) and not len(again) else 0.0,
            refined=state.index.labels_of(again),
            seconds=time.perf_counter() - begin,
        )
        return grown, report

    def resolved(
        self, labels: Sequence[str], normalize_output: bool | None = None
    ) -> tuple[ModelState, list[str]]:
        """Solves some added entities, and those that facts connect to them, again."""
        state = self.state
        again, used = self._neighbourhood(state.facts.from_row(0)[:0], state.index.ids(labels))
        names = state.index.labels_of(again)
        system, nodes = self._system(used, again, names)
        settings, name = self._settings("exact", None, normalize_output)
        normalize = self._normalize(settings, name, normalize_output)
        with small_operations(system.x.numel()):
            solution = state.base.solver.exact(system, settings, normalize_output=normalize)
        index, rows = self._rewritten(again, solution.vectors, self._origins(system, nodes))
        return replace(state, index=index, rows=rows), names

    def _settings(
        self, propagation: Propagation, seed: int | None, normalize_output: bool | None
    ) -> tuple[PropagationSettings, str]:
        state, chosen = self.state, self.state.base.stored.settings
        if isinstance(propagation, PropagationSettings):
            settings, name = propagation, "given"
        else:
            check_choice("propagation", propagation, ("exact", "selected"))
            if propagation == "selected" and not chosen:
                raise ValueError(
                    "this model has no propagation that was chosen on validation: give "
                    "propagation=PropagationSettings(...), or 'exact'"
                )
            odd = sorted(set(chosen) - {f.name for f in fields(PropagationSettings)})
            if odd:
                raise ValueError(f"the model's settings hold {odd[0]!r}, which is unknown here")
            settings, name = PropagationSettings(**chosen), propagation
        if seed is not None:
            settings = replace(settings, seed=seed)
        if normalize_output is not None:
            settings = replace(settings, normalize_output=normalize_output)
        other = state.num_sections > 1 and settings.section_weight != state.section_weight
        if name != "exact" and other:
            raise ValueError(
                f"this model has {state.num_sections} sections already, and these settings ask "
                f"for {settings.num_sections} or other weights: extend the trained model"
            )
        return settings, name

    def _normalize(
        self, settings: PropagationSettings, name: str, normalize_output: bool | None
    ) -> bool:
        """Whether new vectors are scaled as the model trains: by default exact ones where it has
        unit rows, and propagated ones as their settings say."""
        if name != "exact":
            return settings.normalize_output
        return self.state.base.has_unit_rows if normalize_output is None else normalize_output

    def _relations(self, labels: Iterable[str], action: str) -> tuple[Tensor, dict[str, int]]:
        labels = list(labels)
        relation = self.state.relations.lookup(labels)
        unknown = Counter(labels[row] for row in (relation < 0).nonzero().flatten().tolist())
        if unknown and action == "error":
            named = ", ".join(
                f"{quote(label)} ({count_noun(count, 'fact')})"
                + self.state.relations.suggestion(label)
                for label, count in unknown.most_common(_EXAMPLES)
            )
            more = f" and {len(unknown) - _EXAMPLES} more" if len(unknown) > _EXAMPLES else ""
            raise UnknownRelationError(
                f"{count_noun(len(unknown), 'relation')} {'is' if len(unknown) == 1 else 'are'} "
                f"unknown to the model, so it has no maps: {named}{more}; "
                f"{sum(unknown.values())} of {count_noun(len(labels), 'fact')} affected. "
                + (
                    swapped_hint(unknown, self.state.index)
                    or "Leave these facts out with on_unknown_relation='drop' "
                    "(--on-unknown-relation drop)"
                )
            )
        return relation, dict(unknown.most_common())

    def _is_fact(self, triples: Tensor) -> Tensor:
        """Which triples are facts of the model; only those between its entities are looked up."""
        found = (triples[:, [0, 2]] < self.state.num_entities).all(1)
        if bool(found.any()):
            found[found.clone()] = self.state.facts.contain(triples[found])
        return found

    def _added_facts(self) -> Tensor:
        """Facts that touch an added entity; they all came after those of training."""
        facts = self.state.facts.from_row(self.state.base.num_trained_facts)
        return facts[(facts[:, [0, 2]] >= self.state.num_trained).any(1)]

    def _neighbourhood(self, facts: Tensor, touched: Tensor) -> tuple[Tensor, Tensor]:
        """Added entities that facts connect to touched ones, and all facts at free entities."""
        num_trained, num_entities = self.state.num_trained, self.state.num_entities
        facts = torch.cat([self._added_facts(), facts])
        ends = facts[:, [0, 2]]
        inner = (ends >= num_trained).all(1)
        largest = int(ends.max()) if len(ends) else 0
        size = max(num_entities, largest + 1) - num_trained
        component = connected_components((ends[inner] - num_trained).T, size)
        reached = torch.isin(component, component[touched - num_trained])
        again = reached.nonzero().flatten() + num_trained
        again = again[again < num_entities]
        return again, facts[(torch.isin(ends, again) | (ends >= num_entities)).any(1)]

    def _system(
        self, facts: Tensor, free: Tensor, labels: Sequence[str]
    ) -> tuple[FreeSystem, Tensor]:
        """The facts at free entities in local numbers, and the ids these stand for."""
        facts = facts[torch.isin(facts[:, [0, 2]], free).any(1)]
        nodes = torch.unique(torch.cat([facts[:, [0, 2]].flatten(), free]))
        is_free = torch.isin(nodes, free)
        known = self.state.rows.select(nodes[~is_free])
        if not all_finite(known):
            labels_of_all = self.state.index.vocabulary().labels
            check_finite_rows(known, labels_of_all, "known vectors", ids=nodes[~is_free])
        x = known.new_zeros(len(nodes), known.shape[1], self.state.kge.hidden_channels)
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
        added = (anchors & (nodes >= self.state.num_trained)).nonzero().flatten()
        origins = self.state.index.origins_of(nodes[added])
        anchors[added] = torch.tensor([o != "unanchored" for o in origins], dtype=torch.bool)
        _, anchored = components(system, anchors)
        reached = anchored[~system.boundary_mask].tolist()
        return ["extended" if found else "unanchored" for found in reached]

    def _rewritten(
        self, again: Tensor, vectors: Tensor, origins: Sequence[str]
    ) -> tuple[EntityIndex, RowBlocks]:
        """Index and rows with new values for some added entities; trained ones are shared."""
        state = self.state
        base, added = state.rows.blocks[0], state.rows.from_row(state.num_trained)
        sections = max(added.shape[1], vectors.shape[1])
        added = added.expand(-1, sections, -1).clone()
        added[again - state.num_trained] = vectors[: len(again)].expand(-1, sections, -1)
        named = dict(zip(again.tolist(), origins, strict=False))
        return state.index.with_origins(named), RowBlocks([base, added])

    def _pull(self, facts: Tensor, touched: Tensor, normalize: bool) -> float:
        """How far touched entities are from agreeing with all their facts; see the report."""
        state = self.state
        facts = torch.cat([self._added_facts(), facts])
        old = (facts[:, [0, 2]] < state.num_entities).all(1)
        system, nodes = self._system(facts[old], touched, state.index.labels_of(touched))
        if not len(system.edge_type):
            return 0.0
        system = replace(system, x=state.rows.select(nodes))
        return state.base.solver.pull(system, normalize_output=normalize)
