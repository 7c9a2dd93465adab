from dataclasses import asdict, dataclass, fields
from typing import Any

from sheafprop.checks import check_integer
from sheafprop.nn.start import Start
from sheafprop.sheaf.plan import Normalization


@dataclass(frozen=True)
class PropagationSettings:
    r"""The settings of a propagation, in plain values.

    Args:
        iterations: Number of diffusion steps :math:`k`.
        step_size: Step size :math:`h`.
        normalization: ``"block"``, ``"degree"`` or None; see
            :class:`~sheafprop.nn.SheafPropagation`.
        start: ``"random"``, ``"zeros"``, ``"prototype"``, or ``"mixed"``, that is, one prototype
            section and random sections.
        num_random: Number of random sections, for ``"random"`` and ``"mixed"``.
        prototype_share: Weight of the prototype section in the score, for ``"mixed"``. The random
            sections share the rest equally.
        normalize_output: Whether to scale free vectors to the norm of the training after the last
            step.
        relation_weights: Whether triples are weighted by the inverse residual variance of their
            relation in training.
        teleport: Strength :math:`a \ge 0` of the pull towards the start in every step.
        seed: Seed of the random starts.

    Raises:
        ValueError: If a number is out of range.
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
        """The number of sections."""
        return {"random": self.num_random, "mixed": self.num_random + 1}.get(self.start, 1)

    @property
    def section_weight(self) -> tuple[float, ...]:
        """The weights of the sections in the score, which add up to one."""
        if self.start != "mixed":
            return (1 / self.num_sections,) * self.num_sections
        rest = (1 - self.prototype_share) / self.num_random
        return (self.prototype_share, *(rest,) * self.num_random)

    @classmethod
    def from_stored(cls, chosen: dict[str, Any]) -> "PropagationSettings":
        """Creates settings from ``chosen``, the plain values stored in a model folder.

        Raises:
            ValueError: If a setting is unknown.
        """
        odd = sorted(set(chosen) - {field.name for field in fields(cls)})
        if odd:
            raise ValueError(f"the model's settings hold {odd[0]!r}, which is unknown here")
        return cls(**chosen)

    def to_dict(self) -> dict[str, Any]:
        """Returns the settings as plain values."""
        return asdict(self)
