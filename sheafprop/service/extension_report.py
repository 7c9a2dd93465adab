from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class ExtensionReport:
    """What an extension did, in plain values.

    Args:
        facts (int): Facts that were taken.
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
        unanchored (list of str): Entities that no fact connects to a trained entity.
        dropped_facts (dict): Relations the model does not know, with the facts left out.
        duplicates (int): Facts given more than once, or known already; each one counts.
        touched (list of str): Entities of earlier extensions that new facts touch.
        pull (float): The longest distance a full step would move one of these now.
        refined (list of str): Those (and their neighbours) that were solved again.
        notes (list of str): What a user should know, in sentences.
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
    unanchored: list[str]
    dropped_facts: dict[str, int]
    duplicates: int
    touched: list[str]
    pull: float
    refined: list[str]
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values."""
        return asdict(self)

    def summary(self) -> str:
        """The report in a few lines."""
        head = (
            f"{self.new_entities} new entities from {self.facts} facts "
            f"({self.known_entities} known entities anchor them by label)"
        )
        lines = [head, *self.notes]
        return "\n".join(lines)
