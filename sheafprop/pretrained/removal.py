import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from sheafprop.checks import check_choice, count_noun
from sheafprop.errors import DataError
from sheafprop.pretrained.extension import Extension, Mode
from sheafprop.pretrained.model_state import ModelState


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


class Removal:
    r"""Takes entities out of a model, with the facts that name them.

    Args:
        state (ModelState): The model, which stays as it is.
    """

    def __init__(self, state: ModelState):
        self.state = state

    def run(
        self,
        entities: str | Iterable[str],
        mode: Mode = "keep",
        normalize_output: bool | None = None,
    ) -> tuple[ModelState, RemovalReport]:
        """The smaller model, and what was done; see :meth:`SheafModel.remove`."""
        begin = time.perf_counter()
        check_choice("mode", mode, ("keep", "refine"))
        state = self.state
        gone = torch.unique(state.index.ids(entities))
        kept = torch.ones(state.num_entities, dtype=torch.bool)
        kept[gone] = False
        if not bool(kept[: state.num_trained].any()):
            raise DataError("no trained entity would be left, so the model would know nothing")
        facts = state.facts.from_row(0)
        ends = facts[:, [0, 2]]
        lost = torch.isin(ends, gone).any(1)
        affected = torch.unique(ends[lost])
        affected = affected[(affected >= state.num_trained) & kept[affected]]
        labels = state.index.labels_of(affected)
        smaller = ModelState.of(state.stored(kept, facts[~lost]))
        again: list[str] = []
        if mode == "refine" and labels:
            smaller, again = Extension(smaller).resolved(labels, normalize_output)
        report = RemovalReport(
            entities=len(gone),
            facts=int(lost.sum()),
            affected=labels,
            refined=again,
            seconds=time.perf_counter() - begin,
        )
        return smaller, report
