"""Times extensions and predictions of a large model against recomputing and bare products."""

import argparse
from collections.abc import Sequence
from typing import Any

import torch

from sheafprop.data import Vocabulary
from sheafprop.experiments.measuring import interleaved, timed, with_peak
from sheafprop.io import StoredModel
from sheafprop.kge import build_model
from sheafprop.nn import HarmonicExtension, RelationPrototypes
from sheafprop.service import SheafModel

_RELATIONS = 50
_MODELS = {"transe": 1, "rotate": 2, "transr": 1}


def large_model(name: str, num_entities: int, width: int) -> SheafModel:
    """A model of random parameters; ``width`` counts real numbers."""
    with torch.device("meta"):
        model = build_model(
            name,
            num_nodes=num_entities,
            num_relations=_RELATIONS,
            hidden_channels=width // _MODELS[name],
        )
    g = torch.Generator().manual_seed(0)
    state = {
        key: torch.randn(value.shape, generator=g) / value.shape[-1] ** 0.5
        for key, value in model.state_dict().items()
    }
    model.load_state_dict(state, assign=True)
    d = model.hidden_channels
    dtype = torch.complex64 if model.is_complex else torch.float32
    return SheafModel(
        StoredModel(
            model=model,
            entities=Vocabulary((f"e{i}" for i in range(num_entities)), kind="entities"),
            relations=Vocabulary((f"r{i}" for i in range(_RELATIONS)), kind="relations"),
            origins=("trained",) * num_entities,
            facts=torch.zeros(0, 3, dtype=torch.int64),
            prototypes=RelationPrototypes(
                torch.zeros(2 * _RELATIONS, d, dtype=dtype),
                torch.zeros(2 * _RELATIONS, dtype=torch.int64),
            ),
            residual_variance=torch.zeros(_RELATIONS),
        )
    )


def new_facts(count: int, num_entities: int, each: int = 10) -> list[tuple[str, str, str]]:
    """Facts of new entities, a fifth of them with another new one."""
    g = torch.Generator().manual_seed(1)
    rows = torch.randint(0, 2**31, (count * each, 4), generator=g).tolist()
    facts = []
    for i, (other, relation, side, kind) in enumerate(rows):
        near = f"n{other % count}" if kind % 5 == 0 and count > 1 else f"e{other % num_entities}"
        pair = (f"n{i // each}", near) if side % 2 else (near, f"n{i // each}")
        facts.append((pair[0], f"r{relation % _RELATIONS}", pair[1]))
    return facts


def measure(name: str, num_entities: int, width: int) -> dict[str, Any]:
    """Times of one model."""
    model = large_model(name, num_entities, width)
    thousand, one = new_facts(1000, num_entities), new_facts(1, num_entities)
    model.extend(one)
    grown, extend_seconds = timed(lambda: model.extend(thousand))
    _, peak = with_peak(lambda: model.extend(thousand))
    single = interleaved({"one": lambda: model.extend(one)}, 5)["one"]

    table = model.kge.node_emb.weight.detach()
    query = torch.randn(width)
    squares = table.square().sum(1)
    out = torch.empty(num_entities)
    if name == "transr":
        maps = model.kge.sheaf().head[0].detach()
        bare = lambda: table @ maps.T  # noqa: E731
    else:
        bare = lambda: torch.addmv(squares, table, query, alpha=-2, out=out).clamp_(0).sqrt_()  # noqa: E731
    model.predict_tails("e1", "r1", k=10)
    times = interleaved({"predict": lambda: model.predict_tails("e1", "r1", k=10), "bare": bare}, 5)
    return {
        "model": name,
        "extend 1000 (s)": extend_seconds,
        "extend 1000, memory (MB)": None if peak is None else peak / 1e6,
        "extend one (ms)": 1000 * single,
        "recompute / extend 1000": _recomputed(model, grown) / extend_seconds,
        "predict (ms)": 1000 * times["predict"],
        "bare product (ms)": 1000 * times["bare"],
        "predict / bare": times["predict"] / times["bare"],
    }


def _recomputed(model: SheafModel, grown: SheafModel) -> float:
    """Seconds for the same extension over all rows, as one call of the layer."""
    facts = grown._state.facts.from_row(0)
    x = torch.cat(
        [model.kge.entity_vectors().detach(), grown.vectors(grown.labels()[-1000:])[:, 0]]
    )
    known = torch.arange(len(x)) < model.num_entities
    layer = HarmonicExtension(tol=1e-6)
    with torch.no_grad():
        _, seconds = timed(
            lambda: layer(
                x, facts[:, [0, 2]].T, facts[:, 1], model.kge.sheaf(), boundary_mask=known
            )
        )
    return seconds


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entities", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--models", nargs="+", choices=sorted(_MODELS), default=list(_MODELS))
    options = parser.parse_args(arguments)
    for name in options.models:
        for key, value in measure(name, options.entities, options.width).items():
            print(f"{key}: {value}" if isinstance(value, str) else f"  {key}: {value:.3g}")
