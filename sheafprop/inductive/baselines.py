"""Methods that cost nothing, to rank beside a score: they need no training of their own."""

from sheafprop.data.inductive_data import InductiveData
from sheafprop.inductive.episode_scorer import Scorer
from sheafprop.inductive.inductive_propagation import InductivePropagation
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.inductive.proximity_scorer import LogProximity, ProximityScorer
from sheafprop.kge.base import KGEModel
from sheafprop.ranking import EdgeTypeHeuristic
from sheafprop.ranking.edge_type_heuristic import HEURISTIC

PROXIMITY = "proximity alone"
FILTERED_PROXIMITY = "proximity after the edge-type filter"
MEAN = "mean of messages, one step"

#: Products that the baselines of proximity may take; beyond, they are left to those who ask.
_MOST_PRODUCTS = 2e10


def proximity_is_cheap(data: InductiveData, num_iterations: int = 20) -> bool:
    """Whether the proximities of all entities that test triples ask for are soon computed."""
    test = data.test
    assert test is not None
    sources = len(test[:, [0, 2]].unique())
    return 2.0 * sources * data.inference.num_edges * num_iterations <= _MOST_PRODUCTS


def baselines(
    model: KGEModel, data: InductiveData, near: LogProximity | None, seed: int = 0
) -> dict[str, Scorer]:
    """The baselines of an inference graph, by name.

    Args:
        model (KGEModel): The trained model, which draws random vectors.
        data (InductiveData): The graphs; only observed triples are looked at.
        near (LogProximity, optional): Proximity in the observed inference graph; None to do without
            its baselines.
        seed (int): Seed of the random vectors.
    """
    name = type(model).__name__
    random = InductivePropagation(
        model, data, PropagationSettings(start="random", num_random=1, seed=seed)
    )
    found: dict[str, Scorer] = {
        f"{name}, random vectors (no propagation)": random.scorer(random.vectors(0))
    }
    if bool(data.boundary_mask.any()):
        settings = PropagationSettings(start="zeros", iterations=1, step_size=1.0)
        mean = InductivePropagation(model, data, settings)
        found[f"{name}, {MEAN}"] = mean.scorer(mean.vectors())
    heuristic = EdgeTypeHeuristic(
        data.inference.triples, data.inference.num_nodes or 0, data.num_relations
    )
    found[HEURISTIC] = heuristic
    if near is not None:
        found[PROXIMITY] = ProximityScorer(None, near)
        found[FILTERED_PROXIMITY] = ProximityScorer(None, near, filtered_by=heuristic)
    return found
