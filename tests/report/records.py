"""Small records of runs, as runs leave them in metrics.json."""

from __future__ import annotations

from typing import Any

SUFFIX = {"full": "", "sampled50": "_50", "merged": "_merged", "strict": "_strict"}


def scores(value: float, protocol: str = "full") -> dict[str, Any]:
    """Metrics that grow with one value, under the names of a protocol."""
    names = {"hits@1": value / 2, "hits@3": 0.8 * value, "hits@10": value, "mrr": 0.6 * value}
    return {name + SUFFIX[protocol]: number for name, number in names.items()}


def entry(
    method: str, value: float, protocol: str = "full", mark: str | None = None
) -> dict[str, Any]:
    """An entry of the test list."""
    plain = {"method": method, "protocol": protocol, "metrics": scores(value, protocol)}
    return plain | ({"mark": mark} if mark else {})


def curve(best: int = 8, top: float = 0.6, starts=("mixed",), steps=(0.9,)) -> list[dict[str, Any]]:
    """A validation curve with its best point at a number of iterations."""
    points = []
    for i, start in enumerate(starts):
        for j, step in enumerate(steps):
            for k in (0, 1, 2, 4, 8, 16, 32, 64):
                value = (
                    top / (1 + 0.25 * abs(k.bit_length() - best.bit_length())) - 0.05 * i - 0.03 * j
                )
                points.append({"start": start, "step_size": step, "iterations": k} | scores(value))
    return points


def record(
    name: str = "rotate",
    model: str = "RotatE",
    seed: int = 0,
    *,
    dataset: str = "umls",
    mode: str = "semi-inductive",
    value: float = 0.6,
    heuristic: float = 0.2,
    points: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """A complete record."""
    test = []
    for protocol, gain in (("sampled50", 0.3), ("full", 0.0)):
        test += [
            entry(f"{model} + sheaf propagation", value + gain, protocol),
            entry(f"{model}, random vectors (no propagation)", 0.05 + gain, protocol),
            entry("edge-type heuristic", heuristic + gain, protocol),
        ]
    points = curve() if points is None else points
    return {
        "format": 1,
        "run": {
            "name": name,
            "dataset": dataset,
            "mode": mode,
            "model": model,
            "seed": seed,
            "config_hash": "0a1b2c3d",
            "version": "0.1.0",
        },
        "data": {
            "name": dataset,
            "mode": mode,
            "train_entities": 101,
            "train_relations": 46,
            "train_triples": 3651,
            "train_duplicates": 0,
            "train_self_loops": 2,
            "inference_entities": 1350,
            "inference_relations": 46,
            "inference_triples": 5629,
            "free_entities": 34,
            "components_without_boundary": 3,
            "isolated_free": 1,
            "test_triples": 247,
            "unknown_relations": {"part|of": 4},
            "dropped_triples": {"observed": 3, "test": 1},
            "unseen_entities_test": {
                "triples": 2,
                "entities": 1,
                "examples": [["a_1", "part|of", "größe"], ["b", "is", "a_1"]],
            },
            "overlaps": {},
            "notes": ["semi-inductive split of all 6529 triples with seed 0"],
        },
        "training": {
            "epochs": 80,
            "monitor": "val/mrr",
            "best_epoch": 60,
            "stopped": "no better val/mrr in 20 epochs",
            "seconds": 61.0,
        },
        "selection": {
            "metric": "mrr",
            "protocol": "full",
            "on": "validation",
            "count": 206,
            "tried": len(points),
            "chosen": {
                "start": "mixed",
                "step_size": 0.9,
                "iterations": 8,
                "num_sections": 9,
                "normalize_output": True,
            },
            "curve": points,
            "seconds": 3.0,
        },
        "test": test,
        "protocols": {
            "full": "protocol:   full: Filtered ranking of all.\nties:       realistic",
            "sampled50": "protocol:   sampled50: Filtered ranking against 49 random negatives.",
        },
        "seconds": {"train": 61.04, "select": 3.0, "propagate": 0.25, "rank": 432.0},
        "peak_bytes": 1_610_612_736,
        "hardware": "2 cores, 23 GiB",
    }
