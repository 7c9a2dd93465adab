"""What the step of the paper's published code does, beside the step of the paper's text.

For RotatE with rotations R, a triple (h, r, t) and residual e = R x_h - x_t, the text's step moves
the tail by +e and the head by -R* e, each divided by the vertex's degree. The published code moves
the head by the residual itself, without the conjugate rotation, and divides both by the dimension,
too. Vectors are compared after the same numbers of steps by energy and by Hits@10 of the validation
triples; the library has the text's step alone.
"""

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.command_line import report_errors
from benchmarks.completion_cell import load_data, train_model
from benchmarks.presets import VERSIONS, completion_config
from sheafprop.inductive.propagation_search import inference_filter
from sheafprop.inductive.section_scorer import SectionScorer
from sheafprop.ranking import evaluate
from sheafprop.training import SheafCompletion

COUNTS = (0, 1, 4, 16, 64, 256, 1024)


def step_of(
    triples: Tensor, rotation: Tensor, num_nodes: int, *, conjugate: bool, by_dimension: bool
) -> Callable[[Tensor, float], Tensor]:
    """One Euler step on vectors ``[N, d]``: the text's, or with one or both changes of the code."""
    head, relation, tail = triples.T
    rotation = rotation[relation]
    degree = torch.bincount(triples[:, [0, 2]].flatten(), minlength=num_nodes).clamp(min=1)
    divisor = degree.unsqueeze(1) * (rotation.shape[1] if by_dimension else 1)

    def step(x: Tensor, step_size: float) -> Tensor:
        residual = rotation * x[head] - x[tail]
        back = rotation.conj() * residual if conjugate else residual
        change = torch.zeros_like(x).index_add(0, tail, residual).index_add(0, head, -back)
        return x + step_size * change / divisor

    return step


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", default="fb237", choices=("fb237", "WN18RR"), help="(fb237)")
    parser.add_argument("--version", default="v1", choices=VERSIONS, help="(v1)")
    parser.add_argument("--step-size", type=float, default=0.9, help="h (0.9)")
    parser.add_argument("--data", help="folder of the benchmark's files (default: SHEAFPROP_DATA)")
    options = parser.parse_args(arguments)
    with report_errors(parser):
        compare(options.family, options.version, options.step_size, options.data)


def compare(family: str, version: str, step_size: float, root: str | None) -> None:
    """Prints energy and Hits@10 after some numbers of steps of each kind."""
    config = completion_config("best", family, version, "rotate")
    data = load_data(config, root)
    model, _ = train_model(SheafCompletion(**(config["model"] | {"seed": 0})), config, data)
    triples, known = data.inference.triples, inference_filter(data)
    assert data.inference.entities is not None
    assert data.valid is not None
    with torch.no_grad():
        rotation = model.sheaf().diagonals("head")
        assert rotation is not None
        rotation = rotation.to(torch.complex128)
        start = model.draw_entities(data.inference.entities.labels, seed=0)[:, 0]
        print("step", "steps", "energy", "validation Hits@10", sep="\t")
        for name, conjugate, by_dimension in (
            ("the text's", True, False),
            ("divided by d", True, True),
            ("without conjugate", False, False),
            ("the code's (both)", False, True),
        ):
            step = step_of(
                triples, rotation, len(start), conjugate=conjugate, by_dimension=by_dimension
            )
            x = start.to(torch.complex128)
            for count in range(COUNTS[-1] + 1):
                if count in COUNTS:
                    residual = rotation[triples[:, 1]] * x[triples[:, 0]] - x[triples[:, 2]]
                    energy = float(residual.abs().square().sum())
                    hits = "not a number"
                    if torch.isfinite(torch.view_as_real(x).float()).all():
                        vectors = x.to(start.dtype).unsqueeze(1)
                        scorer = SectionScorer(model, vectors, (1.0,))
                        scores = scorer.score_tails, scorer.score_heads
                        result = evaluate(*scores, data.valid, known).metrics("full")
                        hits = f"{result['hits@10']:.3f}"
                    print(name, count, f"{energy:.3g}", hits, sep="\t", flush=True)
                x = step(x, step_size)
