from dataclasses import asdict, dataclass, fields
from typing import Any

from sheafprop.checks import check_integer
from sheafprop.nn.start import Start
from sheafprop.sheaf.plan import Normalization


@dataclass(frozen=True)
class PropagationSettings:
    r"""One way to carry a trained model's vectors to new entities, in plain values.

    Args:
        iterations: Number of diffusion steps :math:`k`.
        step_size: Step size :math:`h`.
        normalization: ``"block"``, ``"degree"`` or None; see
            :class:`~sheafprop.nn.SheafPropagation`.
        start: ``"random"``, ``"zeros"``, ``"prototype"``, or ``"mixed"``: one prototype section
            beside random ones.
        num_random: Number of random sections (``"random"`` and ``"mixed"``).
        prototype_share: Share of the prototype section in the score (``"mixed"``); the random
            sections have the rest in equal parts.
        normalize_output: Whether free vectors are scaled to the length the model trains with, after
            the last step.
        relation_weights: Whether triples are weighted by the inverse residual variance of their
            relation in training.
        teleport: :math:`a \ge 0`, the pull back to the start.
        seed: Seed of the random starts.

    Raises:
        ValueError: If a number is out of its range.
    """

    iterations: int = 8
    step_size: float = 0.9
    normalization: Normalization = "block"
    start: Start = "mixed"
    num_random: int = 8
    prototype_share: float = 0.33
    normalize_output: bool = True
    relation_weights: bool = False
    teleport: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_integer("iterations", self.iterations, 0)
        check_integer("num_random", self.num_random, 1)
        check_integer("seed", self.seed)
        if not 0 < self.prototype_share < 1:
            raise ValueError(
                f"'prototype_share' must lie between 0 and 1 (got {self.prototype_share})"
            )

    @property
    def num_sections(self) -> int:
        """How many sections are propagated together."""
        return {"random": self.num_random, "mixed": self.num_random + 1}.get(self.start, 1)

    @property
    def section_weight(self) -> tuple[float, ...]:
        """The weight of every section in the score; they add up to one."""
        if self.start != "mixed":
            return (1 / self.num_sections,) * self.num_sections
        rest = (1 - self.prototype_share) / self.num_random
        return (self.prototype_share, *(rest,) * self.num_random)

    @classmethod
    def from_stored(cls, chosen: dict[str, Any]) -> "PropagationSettings":
        """The settings that a model folder holds.

        Raises:
            ValueError: If one of them is not known here.
        """
        odd = sorted(set(chosen) - {field.name for field in fields(cls)})
        if odd:
            raise ValueError(f"the model's settings hold {odd[0]!r}, which is unknown here")
        return cls(**chosen)

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values."""
        return asdict(self)
