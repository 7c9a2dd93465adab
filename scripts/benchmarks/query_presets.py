"""The configurations of the query benchmark, by preset, ratio and model."""

import hashlib
import json
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any

from sheafprop.config_files import load_config, merge
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.query import CONJUNCTIVE

Config = dict[str, Any]

RATIOS = ("106", "113", "122", "134", "150", "175", "217", "300", "550")
MODELS = ("transe", "rotate", "transr", "se")
PRESETS = ("best", "no-prior", "paper")
#: Batches to train for on the two largest training graphs, of 200,000 triples and more.
_LONGER = {"106": 5000, "113": 5000}
#: Models whose preset ``best`` has a prior of the vertices between; the others have no
#: preset ``no-prior``.
WITH_PRIOR = ("rotate",)
_PAPER_NAMES = {"transe": "TransE", "rotate": "RotatE", "transr": "TransR", "se": "SE"}
_PAPER_LOSSES = {"crossentropy": "cross_entropy", "nssa": "nssa"}


@dataclass(frozen=True)
class QueryConfig:
    r"""All that a cell of the query benchmark depends on, beside its data and seed.

    Args:
        model: Arguments of :class:`~sheafprop.training.sheaf_completion.SheafCompletion`.
        batch_size: Training triples in a batch.
        max_epochs: Rounds over the training triples; -1 for no bound.
        max_steps: Batches to train for; -1 for no bound.
        inverse_relations: Whether inverse relations are trained as relations of their own, instead
            of being walked backwards.
        propagation: How to propagate, without the number of iterations.
        iterations: The numbers of iterations to choose from.
        selection_types: The types of validation queries that choose.
        selection_queries: How many queries of each type are asked for that, at most.
        interior_prior: Whether the vertices between have a prior, that of the facts.
    """

    model: Config
    batch_size: int
    max_epochs: int
    max_steps: int
    inverse_relations: bool
    propagation: PropagationSettings
    iterations: tuple[int, ...]
    selection_types: tuple[str, ...]
    selection_queries: int = 1000
    interior_prior: bool = False

    def hash(self, *more: Any) -> str:
        """A hash of the configuration and of what else tells a cell from others."""
        values = asdict(self)
        if self.interior_prior:
            # Results with True are of a prior that counted the entities of the other split, too.
            values["interior_prior"] = "entities of the split"
        else:
            del values["interior_prior"]  # results are older than it
        text = json.dumps([values, *more], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def query_config(preset: str, ratio: str, model: str) -> QueryConfig:
    """The configuration of one model on one ratio.

    ``paper`` follows Cobb and Gebhart: inverse relations are relations of their own, one random
    start without rescaling, and the number of iterations is chosen on validation queries of one
    hop. Training takes all the triples and its full number of epochs. ``best`` walks relations
    backwards without parameters, propagates several starts, and chooses on all types.
    ``no-prior`` is ``best`` without what was added to it after its test results were known: the
    prior of the vertices between, and training that leaves out other true answers.

    Raises:
        ValueError: If ``no-prior`` is asked for and the model's ``best`` has no prior.
    """
    if preset == "no-prior" and model not in WITH_PRIOR:
        raise ValueError(f"'no-prior' needs a model of {', '.join(WITH_PRIOR)} (got {model!r})")
    if preset == "paper":
        config = merge(load_config(f"preset/paper/{model}.yaml"), _paper_numbers(ratio, model))
    else:
        config = load_config(f"preset/best/queries_{model}.yaml")
        if ratio in _LONGER:
            config = merge(config, {"trainer": {"max_steps": _LONGER[ratio]}})
    return _from_config(config, preset)


def _from_config(config: Config, preset: str) -> QueryConfig:
    model, own_inverse = dict(config["model"]), preset == "paper"
    if preset == "no-prior":
        del model["leave_out_known"]
    search = model.pop("propagation")
    (start,) = search["start"]
    (step_size,) = search.get("step_size", [PropagationSettings.step_size])
    return QueryConfig(
        model=model,
        batch_size=config["data"]["batch_size"],
        max_epochs=config["trainer"]["max_epochs"],
        max_steps=config["trainer"].get("max_steps", -1),
        inverse_relations=own_inverse,
        propagation=PropagationSettings(start=start, step_size=step_size, **search["settings"]),
        iterations=tuple(search["iterations"]),
        selection_types=("1p",) if own_inverse else CONJUNCTIVE,
        interior_prior=preset == "best" and model["kge"] in WITH_PRIOR,
    )


def _paper_numbers(ratio: str, model: str) -> Config:
    """What the paper's table of hyperparameters for queries says."""
    file = resources.files("sheafprop.report") / "published.json"
    table = json.loads(file.read_text("utf-8"))["paper_settings"]["query_training"]
    numbers = table[ratio][_PAPER_NAMES[model]]
    loss = _PAPER_LOSSES[numbers["loss"]]
    settings: Config = {
        "hidden_channels": numbers["embedding_dim"],
        "lr": numbers["lr"],
        "loss": loss,
    }
    if loss == "nssa":
        settings["loss_args"] = {key: numbers[key] for key in ("margin", "adversarial_temperature")}
        settings["num_negatives"] = int(numbers["num_negs_per_pos"])
    else:
        smoothing = {"transe": 0.72, "transr": 0.6}[model]
        settings["loss_args"] = {"label_smoothing": smoothing}
    return {"model": settings}
