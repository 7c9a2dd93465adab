"""The configurations of the completion benchmarks, by preset, data set and model."""

import hashlib
import json
from importlib import resources
from typing import Any

from sheafprop.config_files import load_config, merge

Config = dict[str, Any]

FAMILIES = ("fb237", "WN18RR", "nell")
VERSIONS = ("v1", "v2", "v3", "v4")
MODELS = ("transe", "rotate", "transr", "se")
PRESETS = ("best", "paper", "reference")
_PAPER_NAMES = {"transe": "TransE", "rotate": "RotatE", "transr": "TransR", "se": "SE"}


def completion_config(preset: str, family: str, version: str, model: str) -> Config:
    """The configuration of one model on one benchmark, as ``sheafprop fit`` takes it.

    ``reference`` is ``best``, trained on the inference graph itself.

    Raises:
        ValueError: If the preset has no settings for the data set; the paper has none for NELL-995.
    """
    data = {"data": {"dataset": "grail", "name": f"{family}_{version}"}}
    if preset != "paper":
        return merge(load_config(f"preset/best/{family}_{model}.yaml"), data)
    config = merge(load_config(f"preset/paper/{model}.yaml"), data)
    return merge(config, _paper_numbers(family, version, model))


def config_hash(config: Config) -> str:
    """A hash of all that a run depends on beside its seed; where it logs is none of it."""
    trainer = {k: v for k, v in config.get("trainer", {}).items() if k not in _NO_MATTER}
    text = json.dumps(config | {"trainer": trainer}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


_NO_MATTER = ("logger", "callbacks", "log_every_n_steps", "enable_model_summary", "accelerator")


def _paper_numbers(family: str, version: str, model: str) -> Config:
    file = resources.files("sheafprop.report") / "published.json"
    table = json.loads(file.read_text("utf-8"))["paper_settings"]["completion_training"]
    name = {"fb237": "InductiveFB15k237", "WN18RR": "InductiveWN18RR"}.get(family)
    if name is None:
        raise ValueError(f"the paper has no settings for '{family}'; it has fb237 and WN18RR")
    numbers = table[name][version][_PAPER_NAMES[model]]
    loss_args = {
        "cross_entropy": {"label_smoothing": numbers["label_smoothing"]},
        "nssa": {key: numbers.get(key) for key in ("margin", "adversarial_temperature")},
        "margin_ranking": {"margin": numbers.get("margin")},
    }[_LOSSES[numbers["loss"]]]
    settings: Config = {
        "hidden_channels": numbers["embedding_dim"],
        "lr": numbers["lr"],
        "loss_args": loss_args,
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


_LOSSES = {
    "crossentropy": "cross_entropy",
    "nssa": "nssa",
    "MarginRankingLoss": "margin_ranking",
}
