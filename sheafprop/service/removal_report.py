from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class RemovalReport:
    """What a removal did, in plain values.

    Args:
        entities (int): Entities that were removed.
        facts (int): Facts that named them.
        affected (list of str): Entities of earlier extensions that lost a fact.
        refined (list of str): Those (and their neighbours) that were solved again.
        seconds (float): Time of the removal.
    """

    entities: int
    facts: int
    affected: list[str]
    refined: list[str]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values."""
        return asdict(self)

    def summary(self) -> str:
        """What a user should know, in a line or two."""
        lines = [f"{self.entities} entities removed, with {self.facts} facts"]
        if self.affected and not self.refined:
            lines.append(
                f"{len(self.affected)} entities of earlier extensions lost a fact and kept their "
                "vectors; mode='refine' solves them again"
            )
        elif self.refined:
            lines.append(f"{len(self.refined)} entities were solved again")
        return "\n".join(lines)
