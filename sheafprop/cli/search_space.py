"""What ``sheafprop tune`` tries: options of a configuration and the values each may take."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sheafprop.config_files import load_config
from sheafprop.errors import DataError

if TYPE_CHECKING:
    import optuna

_FIELDS = {
    "int": {"low", "high", "step", "log"},
    "float": {"low", "high", "step", "log"},
    "categorical": {"choices"},
}
_SECTIONS = ("model", "data", "trainer")


@dataclass(frozen=True)
class SearchSpace:
    """Distributions by dotted option, such as ``model.lr: {type: float, low: 0.001, high: 0.1}``.

    Args:
        options (dict): A distribution for each option: ``type`` (``int``, ``float`` or
            ``categorical``), and ``low``, ``high``, ``step``, ``log`` or ``choices``.
        source (str, optional): Where it was read, for errors. (default: ``"the space"``)

    Raises:
        DataError: If an option or a distribution cannot be used; it is named.
    """

    options: dict[str, dict[str, Any]]
    source: str = "the space"

    def __post_init__(self) -> None:
        if not self.options:
            raise DataError(f"{self.source} names no option to try")
        for option, entry in self.options.items():
            problem = _problem(option, entry)
            if problem:
                raise DataError(f"{self.source}: '{option}' {problem}")

    @classmethod
    def load(cls, path: str) -> "SearchSpace":
        """Reads a YAML file, or one that comes with the package (``search/paper_rotate``)."""
        return cls(load_config(path), path)

    def suggest(self, trial: "optuna.Trial") -> dict[str, Any]:
        """Values for one trial, by option."""
        values: dict[str, Any] = {}
        for option, entry in self.options.items():
            arguments = {key: value for key, value in entry.items() if key != "type"}
            if entry["type"] == "categorical":
                # Lists are allowed as choices, but not by the storage: their places are stored.
                place = trial.suggest_categorical(option, list(range(len(entry["choices"]))))
                values[option] = entry["choices"][place]
            else:
                values[option] = getattr(trial, f"suggest_{entry['type']}")(option, **arguments)
        return values


def _problem(option: Any, entry: Any) -> str | None:
    """What is wrong with an entry of a space."""
    if not isinstance(option, str) or option.split(".")[0] not in _SECTIONS or "." not in option:
        return (
            f"is not an option to try: it must begin with one of {', '.join(_SECTIONS)} and a dot"
        )
    if option.startswith("data.") and option != "data.batch_size":
        return "would change what is validated on; of the data only 'data.batch_size' may be tried"
    if not isinstance(entry, dict) or entry.get("type") not in _FIELDS:
        kind = entry.get("type") if isinstance(entry, dict) else entry
        return f"needs a 'type' among {', '.join(_FIELDS)} (got {kind!r})"
    fields = _FIELDS[entry["type"]]
    unknown = sorted(set(entry) - fields - {"type"})
    if unknown:
        return f"has no '{unknown[0]}'; a {entry['type']} takes {', '.join(sorted(fields))}"
    if entry["type"] == "categorical":
        choices = entry.get("choices")
        good = isinstance(choices, list) and choices
        return None if good else f"needs 'choices', a list that is not empty (got {choices!r})"
    for key in ("low", "high", "step"):
        value = entry.get(key, 0 if key == "step" else None)
        whole = isinstance(value, int) and not isinstance(value, bool)
        real = isinstance(value, float) and math.isfinite(value)
        if not (whole or (entry["type"] == "float" and real)):
            return f"needs a number of type {entry['type']} as '{key}' (got {value!r})"
    if not entry["low"] <= entry["high"]:
        return f"needs low <= high (got low={entry['low']!r}, high={entry['high']!r})"
    if "step" in entry and not entry["step"] > 0:
        return f"needs a positive 'step' (got {entry['step']!r})"
    if not isinstance(entry.get("log", False), bool):
        return f"needs 'log' to be true or false (got {entry['log']!r})"
    if entry.get("log") and "step" in entry:
        return "takes 'log' or 'step', not both"
    if entry.get("log") and not entry["low"] > 0:
        return f"needs a positive 'low' with 'log' (got {entry['low']!r})"
    return None
