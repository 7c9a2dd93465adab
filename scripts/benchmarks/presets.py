"""The configurations of the completion and the query benchmark, by preset, data set and model."""

import hashlib
import json
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any

from sheafprop.config_files import load_config, merge
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.query import CONJUNCTIVE

Config = dict[str, Any]

FAMILIES = ("fb237", "WN18RR", "nell")
VERSIONS = ("v1", "v2", "v3", "v4")
MODELS = ("transe", "rotate", "transr", "se")
#: Models that have a preset ``episodes``, by family; other than RotatE with its settings.
WITH_EPISODES = {
    "fb237": ("rotate", "transe", "se", "pairre"),
    "WN18RR": ("rotate",),
    "nell": ("rotate",),
}
#: What presets ``episodes`` were before, by family: also trained on triples of isolated entities;
#: before that with numbers of observed answers instead of their frequency, before that with one
#: walk of proximity for all relations, and before that with 64 columns and one weight of proximity.
FORMER: dict[str, dict[str, Config]] = {
    "isolated": {"fb237": {"proximity": {"weight": 0.4}}, "nell": {}, "WN18RR": {}},
    "numbers": {"fb237": {"proximity": {"weight": 0.4}}, "nell": {}},
    "plain-walk": {"fb237": {"proximity": {"weight": 0.4}}, "nell": {}},
    "narrow": {
        "fb237": {"hidden_channels": 64, "proximity": {"weight": 0.4, "share": 0.4}},
        "nell": {"hidden_channels": 64, "proximity": {"weight": 0.8, "share": 0.3}},
    },
    "peers": {
        "fb237": {"hidden_channels": 64, "proximity": {"weight": 0.25, "share": 0.3, "peers": 0.5}},
        "nell": {"hidden_channels": 64, "proximity": {"weight": 0.7, "share": 0.6, "peers": 0.5}},
    },
}
#: Changes of presets ``episodes`` that were ranked and not adopted, by family.
TRIED: dict[str, dict[str, Config]] = {"shorter": {"nell": {"trainer": {"max_steps": 100}}}}
VARIANTS = FORMER | TRIED
#: Presets with episodes.
EPISODES = ("episodes", *VARIANTS)
PRESETS = ("best", *EPISODES, "paper", "reference")
#: Weights of proximity of RotatE, where those of the versions differ: the best of two splits of
#: each training graph (search_episodes.py --width 128 --settings "connected, hidden .3"
#: --base-steps 100 for ``shorter``, without the last for ``episodes``; "frequency, walk", "counts,
#: walk" and "counts" for former presets).
_WEIGHTS = {
    "episodes": {"nell_v1": 0.4, "nell_v2": 0.8, "nell_v3": 0.4, "nell_v4": 0.8},
    "shorter": {"nell_v1": 0.4, "nell_v2": 0.6, "nell_v3": 0.6, "nell_v4": 0.8},
    "isolated": {"nell_v1": 0.4, "nell_v2": 0.8, "nell_v3": 0.4, "nell_v4": 0.8},
    "numbers": {"nell_v1": 0.6, "nell_v2": 0.6, "nell_v3": 0.6, "nell_v4": 1.2},
    "plain-walk": {"nell_v1": 0.6, "nell_v2": 0.8, "nell_v3": 0.4, "nell_v4": 0.6},
}
#: Shares of hidden triples in former presets.
_FORMER_SHARE = {"fb237": 0.5, "nell": 0.5, "WN18RR": 0.3}
RATIOS = ("106", "113", "122", "134", "150", "175", "217", "300", "550")
QUERY_PRESETS = ("best", "no-prior", "paper")
#: Models whose preset ``best`` has a prior of the interior of a query; the others have no preset
#: ``no-prior``.
WITH_PRIOR = ("rotate",)

#: Batches to train for on the two largest training graphs, of 200,000 triples and more.
_LONGER = {"106": 5000, "113": 5000}
_NO_MATTER = ("logger", "callbacks", "log_every_n_steps", "enable_model_summary", "accelerator")
_PAPER_NAMES = {"transe": "TransE", "rotate": "RotatE", "transr": "TransR", "se": "SE"}
_LOSSES = {
    "crossentropy": "cross_entropy",
    "nssa": "nssa",
    "MarginRankingLoss": "margin_ranking",
}


def completion_config(preset: str, family: str, version: str, model: str) -> Config:
    """The configuration of one model on one benchmark, as ``sheafprop fit`` takes it.

    ``episodes`` is ``best`` with relations that learn through the diffusion, and proximity.
    ``isolated`` also trains on hidden triples of isolated entities; ``numbers`` also has
    ``observed: number``; ``plain-walk`` also has a walk of proximity that ignores relations;
    ``narrow`` also has 64 columns and one weight of proximity per family; ``peers`` also has the
    proximity of peers. Of these, WN18RR has ``isolated`` alone. ``shorter`` is ``episodes`` of
    NELL-995 with a base model of fewer steps. ``reference`` is ``best``, trained on the inference
    graph itself.

    Raises:
        ValueError: If the preset has no settings for the data set: the paper has none for NELL-995,
            WN18RR only one former ``episodes``, and ``shorter`` only those for NELL-995.
    """
    data = {"data": {"dataset": "grail", "name": f"{family}_{version}"}}
    if preset in EPISODES:
        config = merge(load_config(f"preset/episodes/{family}_{model}.yaml"), data)
        if family not in VARIANTS.get(preset, FAMILIES):
            raise ValueError(f"'{preset}' has no settings for '{family}'")
        if preset in TRIED:
            config = merge(config, TRIED[preset][family])
        if preset in FORMER:
            former, episodes = tuple(FORMER), config["model"]["episodes"]
            age = former.index(preset)
            episodes |= {"rank_isolated": True, "hidden_share": _FORMER_SHARE[family]}
            if age >= former.index("numbers"):
                episodes |= {"observed": "number", "count_weight": 0.0}
            if age >= former.index("plain-walk"):
                episodes.pop("walk_steps", None)
            config = merge(config, {"model": FORMER[preset][family]})
        weight = _WEIGHTS.get(preset, {}).get(f"{family}_{version}")
        if model == "rotate" and weight is not None:
            config = merge(config, {"model": {"proximity": {"weight": weight}}})
        return config
    if preset != "paper":
        return merge(load_config(f"preset/best/{family}_{model}.yaml"), data)
    config = merge(load_config(f"preset/paper/{model}.yaml"), data)
    return merge(config, _completion_numbers(family, version, model))


def config_hash(config: Config) -> str:
    """A hash of all that a run depends on beside its seed; where it logs is none of it."""
    trainer = {k: v for k, v in config.get("trainer", {}).items() if k not in _NO_MATTER}
    text = json.dumps(config | {"trainer": trainer}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


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
        interior_prior: Whether the interior of a query has a prior, that of the facts.
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
    prior of the interior, and training that excludes other true answers.

    Raises:
        ValueError: If ``no-prior`` is asked for and the model's ``best`` has no prior.
    """
    if preset == "no-prior" and model not in WITH_PRIOR:
        raise ValueError(f"'no-prior' needs a model of {', '.join(WITH_PRIOR)} (got {model!r})")
    if preset == "paper":
        config = merge(load_config(f"preset/paper/{model}.yaml"), _query_numbers(ratio, model))
    else:
        config = load_config(f"preset/best/queries_{model}.yaml")
        if ratio in _LONGER:
            config = merge(config, {"trainer": {"max_steps": _LONGER[ratio]}})
    module, own_inverse = dict(config["model"]), preset == "paper"
    if preset == "no-prior":
        del module["leave_out_known"]
    search = module.pop("propagation")
    (start,) = search["start"]
    (step_size,) = search.get("step_size", [PropagationSettings.step_size])
    return QueryConfig(
        model=module,
        batch_size=config["data"]["batch_size"],
        max_epochs=config["trainer"]["max_epochs"],
        max_steps=config["trainer"].get("max_steps", -1),
        inverse_relations=own_inverse,
        propagation=PropagationSettings(start=start, step_size=step_size, **search["settings"]),
        iterations=tuple(search["iterations"]),
        selection_types=("1p",) if own_inverse else CONJUNCTIVE,
        interior_prior=preset == "best" and model in WITH_PRIOR,
    )


def _paper_numbers(table: str) -> dict[str, Any]:
    file = resources.files("sheafprop.report") / "published.json"
    return json.loads(file.read_text("utf-8"))["paper_settings"][table]


def paper_numbers(family: str, version: str, model: str) -> dict[str, Any]:
    """The settings of the paper for one model on one completion benchmark.

    Raises:
        ValueError: If it has none.
    """
    name = {"fb237": "InductiveFB15k237", "WN18RR": "InductiveWN18RR"}.get(family)
    if name is None:
        raise ValueError(f"the paper has no settings for '{family}'; it has fb237 and WN18RR")
    return _paper_numbers("completion_training")[name][version][_PAPER_NAMES[model]]


def _completion_numbers(family: str, version: str, model: str) -> Config:
    numbers = paper_numbers(family, version, model)
    loss_args = {
        "cross_entropy": ("label_smoothing",),
        "nssa": ("margin", "adversarial_temperature"),
        "margin_ranking": ("margin",),
    }[_LOSSES[numbers["loss"]]]
    settings: Config = {
        "hidden_channels": numbers["embedding_dim"],
        "lr": numbers["lr"],
        "loss_args": {key: numbers.get(key) for key in loss_args},
        "propagation": {"step_size": [numbers["h"]]},
    }
    if "num_negs_per_pos" in numbers:
        settings["num_negatives"] = numbers["num_negs_per_pos"]
    if "relation_dim" in numbers:
        settings["kge_args"] = {"relation_channels": numbers["relation_dim"]}
    config: Config = {"model": settings, "trainer": {"max_epochs": numbers["max_epochs"]}}
    if numbers["batch_size"] is not None:
        config["data"] = {"batch_size": numbers["batch_size"]}
    return config


def _query_numbers(ratio: str, model: str) -> Config:
    numbers = _paper_numbers("query_training")[ratio][_PAPER_NAMES[model]]
    loss = _LOSSES[numbers["loss"]]
    settings: Config = {
        "hidden_channels": numbers["embedding_dim"],
        "lr": numbers["lr"],
        "loss": loss,
    }
    if loss == "nssa":
        settings["loss_args"] = {key: numbers[key] for key in ("margin", "adversarial_temperature")}
        settings["num_negatives"] = int(numbers["num_negs_per_pos"])
    else:
        settings["loss_args"] = {"label_smoothing": {"transe": 0.72, "transr": 0.6}[model]}
    return {"model": settings}
