from dataclasses import asdict, dataclass
from typing import Any

from sheafprop.data.label_checks import count_noun


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
        gone, lost = count_noun(self.entities, "entity"), count_noun(self.facts, "fact")
        lines = [f"{gone} removed, with {lost}"]
        if self.affected and not self.refined:
            lines.append(
                f"{count_noun(len(self.affected), 'entity')} of earlier extensions lost a fact and "
                f"kept {'its vector' if len(self.affected) == 1 else 'their vectors'}; "
                "mode='refine' solves again"
            )
        elif self.refined:
            lines.append(f"solved again: {count_noun(len(self.refined), 'entity')}")
        return "\n".join(lines)
