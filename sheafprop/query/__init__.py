"""Logical queries over knowledge graphs.

- Language: :class:`Query` over labels (``query``) and its text (``parser``).
- Shape: the tree of operators, with the structures that have names (``query``), and many queries
  of one shape in ids (``query_batch``).
- Scores: every :class:`QueryScorer` (``query_scorer``) scores all entities, in blocks of queries.
- Scores by energy: :class:`EnergyScorer` (``energy_scorer``) eliminates the interior of the query
  graph (``elimination``, for ``diagonal_elimination`` and ``dense_elimination`` maps), which
  results in a quadratic function at the target; ``candidate_scores`` evaluates it at all entities.
  An :class:`InteriorPrior` (``interior_prior``) adds a prior on interior vertices.
- Scores over entities: :class:`EntityScorer` (``entity_scorer``) finds the best interior entities
  (``entity_search``, by the steps of ``max_product``), where facts have
  probability one and :class:`LinkProbabilities` gives the probabilities of other links
  (``link_probabilities``). :func:`explain_answers` finds the entities and links that lead to an
  answer (``derivation``). :class:`LinkCalibration` (``link_calibration``) fits the probabilities of
  links, :class:`TruthCalibration` (``truth_calibration``) those of answers, and
  :class:`ReliabilityTable` beside it compares them with the observed frequencies.
- Exact answers: :class:`GraphExecutor` finds them as sets in the triples (``graph_executor``).
- Evaluation: hard answers are ranked (``query_ranking``), also for a baseline,
  :class:`EdgeTypeScorer`.

``loops`` contains the compiled loops.
"""

from typing import TYPE_CHECKING, Any

from sheafprop.data.answer_sets import AnswerSets
from sheafprop.query.derivation import Derivation, explain_answers
from sheafprop.query.energy_scorer import Answer, EnergyScorer
from sheafprop.query.entity_scorer import EntityAnswer, EntityScorer, QueryTruth
from sheafprop.query.graph_executor import GraphExecutor, easy_and_hard
from sheafprop.query.interior_prior import InteriorPrior
from sheafprop.query.link_calibration import LinkCalibration, ScoredRows
from sheafprop.query.link_probabilities import LinkProbabilities, LinkScorer
from sheafprop.query.parser import parse_query
from sheafprop.query.query import CONJUNCTIVE, STRUCTURES, Query, QueryShape, structure
from sheafprop.query.query_batch import QueryBatch
from sheafprop.query.query_ranking import EdgeTypeScorer, QueryRanking, evaluate_queries
from sheafprop.query.query_scorer import QueryScorer
from sheafprop.query.truth_calibration import ReliabilityTable, TruthCalibration, TruthPairs
from sheafprop.renamed import find_renamed

__all__ = [
    "CONJUNCTIVE",
    "STRUCTURES",
    "Answer",
    "AnswerSets",
    "Derivation",
    "EdgeTypeScorer",
    "EnergyScorer",
    "EntityAnswer",
    "EntityScorer",
    "GraphExecutor",
    "InteriorPrior",
    "LinkCalibration",
    "LinkProbabilities",
    "LinkScorer",
    "Query",
    "QueryBatch",
    "QueryRanking",
    "QueryScorer",
    "QueryShape",
    "QueryTruth",
    "ReliabilityTable",
    "ScoredRows",
    "TruthCalibration",
    "TruthPairs",
    "easy_and_hard",
    "evaluate_queries",
    "explain_answers",
    "parse_query",
    "structure",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        return find_renamed(__name__, name)
