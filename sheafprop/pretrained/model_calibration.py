from dataclasses import dataclass
from typing import Any

from sheafprop.errors import FormatError
from sheafprop.query import LinkCalibration, TruthCalibration


@dataclass(frozen=True, eq=False)
class ModelCalibration:
    """What turns a model's scores and truths into probabilities.

    Args:
        links (LinkCalibration): Temperature and number of answers, by relation and side.
        truths (TruthCalibration): The probability of an answer from its truth, by structure.
    """

    links: LinkCalibration
    truths: TruthCalibration

    def state(self) -> dict[str, Any]:
        """The calibration as plain values."""
        return {"links": self.links.state(), "truths": self.truths.state()}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "ModelCalibration":
        """The calibration that :meth:`state` describes.

        Raises:
            FormatError: If it is something else.
        """
        try:
            parts = state["links"], state["truths"]
        except (KeyError, TypeError) as error:
            raise FormatError("not a calibration of links and truths") from error
        return cls(LinkCalibration.from_state(parts[0]), TruthCalibration.from_state(parts[1]))
