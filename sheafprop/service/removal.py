import time
from collections.abc import Iterable

import torch

from sheafprop.data.label_checks import check_choice
from sheafprop.errors import DataError
from sheafprop.service.extension import Extension, Mode
from sheafprop.service.model_state import ModelState
from sheafprop.service.removal_report import RemovalReport


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
