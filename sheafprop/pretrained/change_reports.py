"""What an extension or a removal did, in plain values and in words."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any

from sheafprop.checks import agree, count_noun, quote
from sheafprop.data.label_checks import format_lookalikes


@dataclass(frozen=True)
class ExtensionReport:
    """The report of an extension, in plain values.

    Args:
        facts (int): Facts that were added.
        new_entities (int): Entities that got a vector for the first time.
        known_entities (int): Known entities among the facts, matched by label.
        facts_between_known (int): Facts without an entity whose vector was computed; they are added
            but change no vector.
        solved_exactly (int): Entities with the exact solution.
        solved_finite_time (int): Entities propagated for a finite time.
        reasons (dict): Reasons for a finite time, with the number of entities.
        propagation (str): The requested propagation.
        settings (dict, optional): The finite-time settings, if any entity used them.
        relative_residual (float): That of the exact solution.
        rescaled (int): Exact vectors that were scaled to the norm used in training.
        length_before (float, optional): Their mean norm before scaling.
        unanchored (list of str): Entities that are not connected to a trained entity.
        dropped_facts (dict): Unknown relations with their numbers of dropped facts.
        dropped_at (str): The locations of the first dropped facts.
        duplicates (int): Repetitions among the given facts; a fact counts once.
        known_facts (int): Given facts that are known to the model and not added again.
        kept_facts (int): Earlier facts of the given entities that are not given again; an extension
            does not remove facts.
        touched (list of str): Entities of earlier extensions in new facts.
        pull (float): The largest distance that a full step with all their facts would move one of
            these; zero up to rounding.
        refined (list of str): Those (and their neighbours) that were solved again.
        with_features (int): Entities whose features were used.
        from_features_alone (int): New entities without facts.
        feature_notes (list of str): Notes on the features.
        seconds (float): Time of the extension.
        fitted_relations (dict): Relations that were fitted, with the number of ``facts`` each was
            fitted to, their mean squared ``residual``, the ``share`` of trained relations with a
            smaller one, and the known relation whose label it ``resembles``, or None.
        trained_residuals (dict): The ``median`` of the mean squared residuals of trained relations,
            and their first (``low``) and last (``high``) deciles.
        dimensions (int): Numbers of a vector, to compare numbers of facts with.
        fitted_before (dict): Relations that an earlier extension fitted, with their new facts
            between entities that have vectors, which do not change their maps.
        find_lookalikes (callable): Returns :attr:`lookalikes`.
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
    dropped_at: str
    duplicates: int
    known_facts: int
    kept_facts: int
    touched: list[str]
    pull: float
    refined: list[str]
    with_features: int = 0
    from_features_alone: int = 0
    feature_notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    fitted_relations: dict[str, dict[str, Any]] = field(default_factory=dict)
    trained_residuals: dict[str, float] = field(default_factory=dict)
    dimensions: int = 0
    fitted_before: dict[str, int] = field(default_factory=dict)
    find_lookalikes: Callable[[], dict[str, str]] = field(default=dict, repr=False, compare=False)

    @cached_property
    def lookalikes(self) -> dict[str, str]:
        """New labels that differ from another only in case, white space, Unicode form or hidden
        characters, with that label; computed at first use.
        """
        return self.find_lookalikes()

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values."""
        names = [f.name for f in fields(self) if f.name != "find_lookalikes"]
        return {name: getattr(self, name) for name in [*names, "lookalikes"]}

    def summary(self) -> str:
        """Returns a summary in a few lines."""
        lines = [
            f"{count_noun(self.new_entities, 'new entity')} from {count_noun(self.facts, 'fact')}"
        ]
        if self.facts or not self.with_features:
            lines[0] += (
                f", which {agree(self.facts, 'contains', 'contain')} "
                f"{count_noun(self.known_entities, 'known entity')}"
            )
        if self.with_features:
            lines.append(
                f"{count_noun(self.with_features, 'entity')} "
                f"{agree(self.with_features, 'has', 'have')} features, "
                f"{self.from_features_alone:,} of them no facts"
            )
        lines += [f"features: {note}" for note in self.feature_notes]
        if self.fitted_relations:
            lines += self._describe_fits()
        if self.fitted_before:
            named = _some(list(self.fitted_before))
            lines.append(
                f"{named} {agree(len(self.fitted_before), 'was', 'were')} fitted before, and "
                f"{count_noun(sum(self.fitted_before.values()), 'fact')} between known entities "
                "here change no maps; to fit to all facts, extend the earlier model by them"
            )
        if self.solved_exactly:
            lines.append(
                f"{count_noun(self.solved_exactly, 'vector')} "
                f"{agree(self.solved_exactly, 'is', 'are')} the exact solution "
                f"(relative residual {self.relative_residual:.1g})"
            )
        if self.rescaled:
            lines.append(
                f"{'it was' if self.rescaled == 1 else f'{self.rescaled:,} of them were'} scaled "
                "to the norm used in training (mean norm before: "
                f"{self.length_before:.3g}); normalize_output=False (--no-normalize-output) turns "
                "this off"
            )
        if self.solved_finite_time and self.settings:
            why = "; ".join(f"{count}: {reason}" for reason, count in self.reasons.items())
            lines.append(
                f"{count_noun(self.solved_finite_time, 'vector')} "
                f"{agree(self.solved_finite_time, 'was', 'were')} propagated for a finite time "
                f"({count_noun(self.settings['iterations'], 'step')}, "
                f"seed {self.settings['seed']})"
                + (f", because the exact solution is not unique ({why})" if why else "")
            )
        if self.unanchored:
            lines.append(f"unanchored: {_some(self.unanchored)}")
        if self.dropped_facts:
            named = ", ".join(f"{quote(k)}: {v}" for k, v in list(self.dropped_facts.items())[:5])
            lines.append(
                f"{count_noun(sum(self.dropped_facts.values()), 'fact')} dropped because of an "
                f"unknown relation ({named}; {self.dropped_at})"
            )
        if self.duplicates:
            lines.append(
                f"{count_noun(self.duplicates, 'fact')} "
                f"{agree(self.duplicates, 'repeats', 'repeat')} an earlier one of the input and "
                f"{agree(self.duplicates, 'is', 'are')} ignored"
            )
        if self.known_facts:
            lines.append(
                f"{count_noun(self.known_facts, 'fact')} "
                f"{agree(self.known_facts, 'is', 'are')} known to the model and "
                f"{agree(self.known_facts, 'is', 'are')} ignored"
            )
        if self.facts_between_known:
            lines.append(
                f"{count_noun(self.facts_between_known, 'fact')} "
                f"{agree(self.facts_between_known, 'changes', 'change')} no vector"
            )
        if self.kept_facts:
            lines.append(
                f"{count_noun(self.kept_facts, 'earlier fact')} of these entities "
                f"{agree(self.kept_facts, 'is', 'are')} not in the input and kept: to correct a "
                "file, extend the original model with the corrected file"
            )
        if self.refined:
            lines.append(f"recomputed: {_some(self.refined)}")
        elif self.touched and not self.pull:
            lines.append(
                "the facts contain entities of earlier extensions, whose vectors do not change (a "
                f"step with all their facts moves none of them): {_some(self.touched)}"
            )
        elif self.touched:
            lines.append(
                f"the facts contain entities of earlier extensions, whose vectors were kept "
                f"(a step would move them by up to {self.pull:.3g}; mode='refine', --mode refine, "
                f"recomputes them): {_some(self.touched)}"
            )
        if self.lookalikes:
            near = format_lookalikes("new entities", self.lookalikes)
            lines.append(f"{near}; labels are compared literally")
        return "\n".join(lines)

    def _describe_fits(self) -> list[str]:
        usual, fits = self.trained_residuals, self.fitted_relations
        compared = (
            f" (of trained relations: median {usual['median']:.3g}, most from {usual['low']:.3g} "
            f"to {usual['high']:.3g})"
            if usual
            else ""
        )
        shown = "; ".join(
            f"{quote(name)} to {count_noun(fit['facts'], 'fact')}, residual {fit['residual']:.3g}"
            for name, fit in list(fits.items())[:5]
        )
        more = f" and {len(fits) - 5} more" if len(fits) > 5 else ""
        lines = [
            f"{count_noun(len(fits), 'relation')} "
            f"{agree(len(fits), 'was', 'were')} fitted: {shown}{more}{compared}"
        ]
        if few := [name for name, fit in fits.items() if fit["facts"] < self.dimensions]:
            lines.append(
                f"the residual is that of the facts that were fitted to, and too small where they "
                f"are fewer than the {self.dimensions} dimensions ({_some(few)})"
            )
        near = {name: fit["resembles"] for name, fit in fits.items() if fit["resembles"]}
        if near:
            lines.append(
                f"{format_lookalikes('new relations', near)}; labels are compared literally"
            )
        return lines


@dataclass(frozen=True)
class RemovalReport:
    """The report of a removal, in plain values.

    Args:
        entities (int): Entities that were removed.
        facts (int): Facts of these entities.
        affected (list of str): Entities of earlier extensions that lost a fact.
        without_facts (list of str): Those without remaining facts.
        refined (list of str): Those (and their neighbours) that were solved again.
        seconds (float): Time of the removal.
    """

    entities: int
    facts: int
    affected: list[str]
    without_facts: list[str]
    refined: list[str]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values."""
        return asdict(self)

    def summary(self) -> str:
        """Returns a summary in one or two lines."""
        gone, lost = count_noun(self.entities, "entity"), count_noun(self.facts, "fact")
        lines = [f"{gone} removed, with {lost}"]
        if self.affected and not self.refined:
            lines.append(
                f"{count_noun(len(self.affected), 'entity')} of earlier extensions lost a fact and "
                f"kept {'its vector' if len(self.affected) == 1 else 'their vectors'} (remove with "
                f"mode='refine', --mode refine, to recompute): {_some(self.affected)}"
            )
        elif self.refined:
            lines.append(f"recomputed: {_some(self.refined)}")
        if self.without_facts:
            lines.append(
                f"{count_noun(len(self.without_facts), 'entity')} of earlier extensions "
                f"{agree(len(self.without_facts), 'has', 'have')} no facts left: "
                f"{_some(self.without_facts)}"
            )
        return "\n".join(lines)


def _some(labels: list[str]) -> str:
    more = f" and {len(labels) - 5} more" if len(labels) > 5 else ""
    return ", ".join(map(quote, labels[:5])) + more
